"""The registry of methods: built-in ones and those of installed packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.contract import Method

ENTRY_POINTS: Final = "feddbp.methods"
"""The entry-point group in which a package declares its methods: `name = "module:METHOD"`."""


class MethodRegistry(Mapping[str, Method]):
    """Built-in methods in their order, then those of other packages by name.

    Entry points are only read for a name that is not built-in and to list all methods, because reading them is slow
    compared with the start of a server. A package cannot replace a built-in method.
    """

    def __init__(self, builtin: Iterable[Method]) -> None:
        self._builtin = {method.name: method for method in builtin}
        self._loaded: dict[str, Method] = {}

    def __getitem__(self, name: str) -> Method:
        if name in self._builtin:
            return self._builtin[name]
        if name not in self._loaded:
            self._loaded[name] = _load(_entries()[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._builtin
        yield from sorted(_entries().keys() - self._builtin.keys())

    def __len__(self) -> int:
        return len(list(iter(self)))


def _entries() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        before = found.setdefault(entry.name, entry)
        if before.value != entry.value:
            raise ConfigurationError(f"{_origin(before)} and {_origin(entry)} both define a method {entry.name!r}")
    return found


def _load(entry: EntryPoint) -> Method:
    try:
        method = entry.load()
    except Exception as error:
        raise ConfigurationError(f"method {entry.name!r} of {_origin(entry)} cannot be loaded: {error}") from error
    if not isinstance(method, Method) or method.name != entry.name:
        raise ConfigurationError(f"{entry.value} of {_origin(entry)} is not a method called {entry.name!r}")
    return method


def _origin(entry: EntryPoint) -> str:
    return f"package {entry.dist.name}" if entry.dist is not None else entry.value
