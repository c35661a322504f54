"""Sums of uploads that are terms: added as they are, or opened as a whole by the clients that masked them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from feddbp_common.errors import FedDBPError
from feddbp_common.secure_sums.fixed_point import Words, added


class SumFailedError(FedDBPError):
    """A round's sum could not be opened; the state before the round stays."""


class SumAbortedError(FedDBPError):
    """A round's sum is not opened now, because the server stops or the run is over; the round stays as it is."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How a round's uploads are summed."""

    clients: frozenset[int]
    """Whose uploads are in the sum."""
    total: Callable[[Iterable[Words]], Words]
    """The sum of their vectors, which come in the order of client ids."""


OpenSum: TypeAlias = Callable[[int, frozenset[int]], Awaitable[Opening]]
"""Given a round and the clients that have uploaded to it. Raises SumFailedError."""


async def open_plain_sum(_: int, uploaded: frozenset[int]) -> Opening:
    return Opening(clients=uploaded, total=_plain_sum)


def _plain_sum(vectors: Iterable[Words]) -> Words:
    total = added(vectors)
    if total is None:
        raise SumFailedError("no client has uploaded")
    return total
