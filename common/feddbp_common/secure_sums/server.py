"""The server's side of one sum: removes the masks from a sum of vectors, and nothing from any single one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from feddbp_common.errors import ProtocolViolationError
from feddbp_common.secure_sums import shamir
from feddbp_common.secure_sums.client import own_mask, pair_mask, public_key
from feddbp_common.secure_sums.digests import digest
from feddbp_common.secure_sums.fixed_point import Words
from feddbp_common.secure_sums.messages import Reveal, Roster


def check_reveal(reveal: Reveal, *, client_id: int, sharing: frozenset[int], survivors: frozenset[int]) -> None:
    """Raises unless a reveal has a share of the right kind for every client of the sum."""
    if reveal.seeds.keys() != survivors or reveal.mask_keys.keys() != sharing - survivors:
        raise ProtocolViolationError(f"client {client_id} revealed shares that were not asked for, or not all")


def unmasked_sum(
    vectors: Iterable[Words],
    *,
    roster: Roster,
    sharing: frozenset[int],
    survivors: frozenset[int],
    reveals: Mapping[int, Reveal],
) -> Words:
    """The sum of the survivors' vectors.

    Raises:
        ProtocolViolationError: fewer reveals than the threshold, or shares that do not give the secrets that were
            committed to.
    """
    if len(reveals) < roster.threshold:
        raise ProtocolViolationError(f"{len(reveals)} clients revealed shares; {roster.threshold} have to")
    total: Words | None = None
    for vector in vectors:
        total = vector.copy() if total is None else np.add(total, vector, out=total)
    if total is None:
        raise ProtocolViolationError("no vector arrived")
    bound_to, length = roster.masked_digest(sharing), len(total)
    for client_id in sorted(survivors):
        total -= own_mask(_seed(client_id, roster, reveals), bound_to, length)
    for lost in sorted(sharing - survivors):
        key = _mask_key(lost, roster, reveals)
        for peer in sorted(survivors):
            mask = pair_mask(key, lost, peer, roster, bound_to, length)
            # what the survivor had done is undone
            total = np.subtract(total, mask, out=total) if peer < lost else np.add(total, mask, out=total)
    return total


def _seed(client_id: int, roster: Roster, reveals: Mapping[int, Reveal]) -> bytes:
    seed = _combined({holder: reveal.seeds[client_id] for holder, reveal in reveals.items()}, roster)
    if seed is None or digest("seed", seed) != roster.advertisements[client_id].seed_digest:
        raise ProtocolViolationError(f"the shares of client {client_id}'s seed do not fit together")
    return seed


def _mask_key(client_id: int, roster: Roster, reveals: Mapping[int, Reveal]) -> bytes:
    key = _combined({holder: reveal.mask_keys[client_id] for holder, reveal in reveals.items()}, roster)
    if key is None or public_key(key) != roster.advertisements[client_id].mask_key:
        raise ProtocolViolationError(f"the shares of client {client_id}'s mask key do not fit together")
    return key


def _combined(shares: Mapping[int, int], roster: Roster) -> bytes | None:
    secret = shamir.combine(shares, threshold=roster.threshold)
    return secret.to_bytes(shamir.SECRET_BYTES, "big") if secret < 2 ** (8 * shamir.SECRET_BYTES) else None
