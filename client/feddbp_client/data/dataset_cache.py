"""The data set cache of a process: its clients share one loaded data set and one computed split."""

from __future__ import annotations

import threading
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from feddbp_client.data.images import DownloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
R = TypeVar("R")

_cache_clears: list[Callable[[], None]] = []
"""Clears each cache that `cache_last` has made."""


def cache_last(function: Callable[P, R]) -> Callable[P, R]:
    """Caches the last result, for hashable arguments; concurrent callers wait for one computation.

    A failed download is a result, too: each client of a process would repeat its attempts.
    """
    lock = threading.Lock()

    def outcome_of(*args: P.args, **kwargs: P.kwargs) -> R | DownloadError:
        try:
            return function(*args, **kwargs)
        except DownloadError as error:
            return error

    cached = lru_cache(maxsize=1)(outcome_of)
    _cache_clears.append(cached.cache_clear)

    @wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with lock:
            outcome = cast("Callable[P, R | DownloadError]", cached)(*args, **kwargs)
        if isinstance(outcome, DownloadError):
            raise DownloadError(str(outcome)) from outcome
        return outcome

    return locked


def clear_dataset_cache() -> None:
    """Frees every cached result; the next load reads its files again."""
    for clear in _cache_clears:
        clear()


class SharedDatasetCache:
    """Reference count of the cache: clears it when every client of the process has released it."""

    def __init__(self, client_ids: Iterable[int]) -> None:
        self._users = frozenset(client_ids)
        self._holders = set(self._users)

    def release(self, client_id: int) -> None:
        self._holders.discard(client_id)
        if not self._holders:
            clear_dataset_cache()
            self._holders.update(self._users)  # the server may start another run, for which every client loads again
