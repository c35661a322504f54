"""Nested dicts, such as a parsed TOML file, and access to their leaves by location."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

Location = tuple[str, ...]
Tree = Mapping[str, Any]


def leaves(tree: Tree, *, whole: Collection[Location] = (), under: Location = ()) -> Iterator[tuple[Location, Any]]:
    """Yields the leaves with their locations; tables at one of the locations in `whole` are leaves too."""
    for key, value in tree.items():
        here = (*under, key)
        if isinstance(value, Mapping) and here not in whole:
            yield from leaves(value, whole=whole, under=here)
        else:
            yield here, value


def dotted(tree: Tree) -> dict[str, Any]:
    """Returns the leaves by dotted name."""
    return {".".join(location): value for location, value in leaves(tree)}


def first_difference(one: Tree, other: Tree) -> str | None:
    """Returns the dotted name of the first leaf, by name, in which two trees differ; None if they are equal."""
    ours, theirs = dotted(one), dotted(other)
    return next((name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)), None)


def undotted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tree with these leaves."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        put(tree, tuple(name.split(".")), value)
    return tree


def put(tree: dict[str, Any], location: Location, value: Any) -> None:
    """Sets a leaf; creates the tables above it."""
    *path, leaf = location
    for key in path:
        tree = tree.setdefault(key, {})
    tree[leaf] = value


def get(tree: Tree, location: Location) -> Any:
    """Returns a leaf or a branch; None if there is neither."""
    node: Any = tree
    for key in location:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def without(tree: Tree, location: Location) -> dict[str, Any]:
    """Returns a copy of the tree without a leaf or branch."""
    return dict(_others(tree, location))


def _others(tree: Tree, location: Location) -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if key != location[0]:
            yield key, value
        elif len(location) > 1:
            yield key, without(value, location[1:])
