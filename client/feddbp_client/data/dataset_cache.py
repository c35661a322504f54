"""The data set cache of a process: its clients share one loaded data set and one computed split."""

from __future__ import annotations

import math
import threading
import time
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, cast

from feddbp_client.data.images import DownloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
R = TypeVar("R")

_RETRY_SECONDS: Final = 60.0
"""How long a failed download is not tried again: within it all clients of a process have begun to load."""
_cache_clears: list[Callable[[], None]] = []
"""Clears each cache that `cache_last` has made."""


def cache_last(function: Callable[P, R]) -> Callable[P, R]:
    """Caches the last result, for hashable arguments; concurrent callers wait for one computation.

    A failed download is not tried again for a minute: each client of a process would repeat its attempts.
    """
    lock = threading.Lock()
    cached = lru_cache(maxsize=1)(function)
    failed: dict[object, tuple[str, float]] = {}
    """The message and the time of the last failure, by its arguments."""

    @wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        arguments = args, tuple(kwargs.items())
        with lock:
            message, since = failed.get(arguments, ("", -math.inf))
            if time.monotonic() - since < _RETRY_SECONDS:
                raise DownloadError(message)
            try:
                return cast("Callable[P, R]", cached)(*args, **kwargs)
            except DownloadError as error:
                failed.clear()
                failed[arguments] = str(error), time.monotonic()
                raise

    def clear() -> None:
        cached.cache_clear()
        failed.clear()

    _cache_clears.append(clear)
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
