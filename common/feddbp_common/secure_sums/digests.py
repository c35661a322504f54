"""Digests that bind what is signed, derived or encrypted to its purpose and to the context it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

DOMAIN: Final = b"feddbp secure sums 1"


def digest(purpose: str, *parts: bytes | int | str) -> bytes:
    """A hash of the parts, each with its length, so that no two lists of parts give the same input."""
    state = hashlib.sha256(DOMAIN)
    for part in (purpose, *parts):
        data = part if isinstance(part, bytes) else str(part).encode()
        state.update(len(data).to_bytes(8, "little") + data)
    return state.digest()


@dataclass(frozen=True, kw_only=True)
class SumContext:
    """What a sum is bound to. Clients that differ in any of it have masks that do not cancel.

    A round has one sum: one that fails is given up, and not tried again under the same number.
    """

    run_id: str
    round: int
    config_sha256: bytes
    """Of the run's configuration: a server cannot give clients different ones, of which some would send nothing."""
    state_sha256: bytes
    """Of the global state that the client trained with."""

    @property
    def digest(self) -> bytes:
        return digest("sum", self.run_id, self.round, self.config_sha256, self.state_sha256)


def digest_of_ids(purpose: str, context: bytes, ids: Iterable[int]) -> bytes:
    return digest(purpose, context, *sorted(ids))
