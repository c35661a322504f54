"""Keeping the last result: one process may host many clients, and all of them start from the same data."""

from __future__ import annotations

import threading
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
R = TypeVar("R")

_forget: list[Callable[[], None]] = []


def cache_last(function: Callable[P, R]) -> Callable[P, R]:
    """For hashable arguments. Callers wait for each other, so clients in threads do not all load at once."""
    lock = threading.Lock()
    cached = lru_cache(maxsize=1)(function)
    _forget.append(cached.cache_clear)

    @wraps(function)
    def remembered(*args: P.args, **kwargs: P.kwargs) -> R:
        with lock:
            return cast("Callable[P, R]", cached)(*args, **kwargs)

    return remembered


def clear_dataset_cache() -> None:
    """Frees what was kept; for a process that has cut all its shards, or wants files read anew."""
    for clear in _forget:
        clear()


class SharedLoad:
    """What the clients of one process load together, freed once none of them has a shard left to cut."""

    def __init__(self, client_ids: Iterable[int]) -> None:
        self._everyone = frozenset(client_ids)
        self._left = set(self._everyone)

    def no_longer_needed_by(self, client_id: int) -> None:
        self._left.discard(client_id)
        if not self._left:
            clear_dataset_cache()
            self._left.update(self._everyone)  # the server may begin another run, for which all of them load again
