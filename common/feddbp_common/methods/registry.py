"""Where methods are found by name: ours, and those that installed packages bring."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.contract import Method

ENTRY_POINTS: Final = "feddbp.methods"
"""The group under which a package names its methods: `name = "module:METHOD"`."""


class MethodRegistry(Mapping[str, Method]):
    """Ours in their order, then those of other packages by name.

    Packages are only looked through for a name that is not one of ours, and for a list of all: it takes longer than a
    server should need to start. A name of ours cannot be taken over.
    """

    def __init__(self, own: Iterable[Method]) -> None:
        self._own = {method.name: method for method in own}
        self._loaded: dict[str, Method] = {}

    def __getitem__(self, name: str) -> Method:
        if name in self._own:
            return self._own[name]
        if name not in self._loaded:
            self._loaded[name] = _load(_entries()[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from sorted(_entries().keys() - self._own.keys())

    def __len__(self) -> int:
        return len(list(iter(self)))


def _entries() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        before = found.setdefault(entry.name, entry)
        if before.value != entry.value:
            raise ConfigurationError(f"{_origin(before)} and {_origin(entry)} both bring a method {entry.name!r}")
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
