"""The server's side of one sum: removes the masks from a sum of vectors, and nothing from any single one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from feddbp_common.errors import ProtocolViolationError
from feddbp_common.secure_sums import shamir
from feddbp_common.secure_sums.client import own_mask, pair_mask, public_key
from feddbp_common.secure_sums.digests import digest
from feddbp_common.secure_sums.fixed_point import Words, added
from feddbp_common.secure_sums.messages import Reveal, Roster

_SUBSETS: Final = 300
"""Sets of holders that are tried for a secret before it counts as lost. One liar among the fewest that reveal more than
they have to is left out by the first few; a third of them by one of hundreds."""


def check_reveal(reveal: Reveal, *, client_id: int, sharing: frozenset[int], survivors: frozenset[int]) -> None:
    """Raises unless a reveal has a share of the right kind for every client of the sum."""
    if reveal.seeds.keys() != survivors or reveal.mask_keys.keys() != sharing - survivors:
        raise ProtocolViolationError(f"client {client_id} revealed shares that were not asked for, or not all")


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """What has to be known to remove the masks from a sum."""

    seeds: Mapping[int, bytes]
    """Of the own masks of survivors."""
    mask_keys: Mapping[int, bytes]
    """Of the clients that were lost."""

    @classmethod
    def rebuilt(
        cls, *, roster: Roster, sharing: frozenset[int], survivors: frozenset[int], reveals: Mapping[int, Reveal]
    ) -> Secrets:
        """The secrets, from the shares that clients revealed; shares that are wrong are found out and left out.

        Raises:
            ProtocolViolationError: too few of the shares are right. Whose are wrong is not known.
        """
        if len(reveals) < roster.threshold:
            raise ProtocolViolationError(f"{len(reveals)} clients revealed shares; {roster.threshold} have to")
        known = roster.advertisements

        def is_seed(client_id: int, secret: bytes) -> bool:
            return digest("seed", secret) == known[client_id].seed_digest

        def is_mask_key(client_id: int, secret: bytes) -> bool:
            return public_key(secret) == known[client_id].mask_key

        seeds = {holder: reveal.seeds for holder, reveal in reveals.items()}
        mask_keys = {holder: reveal.mask_keys for holder, reveal in reveals.items()}
        return cls(
            seeds={number: _secret(number, seeds, roster.threshold, is_seed) for number in sorted(survivors)},
            mask_keys={
                number: _secret(number, mask_keys, roster.threshold, is_mask_key)
                for number in sorted(sharing - survivors)
            },
        )


def unmasked_sum(vectors: Iterable[Words], *, roster: Roster, sharing: frozenset[int], secrets: Secrets) -> Words:
    """The sum of the survivors' vectors, which are those whose seeds are known."""
    total = added(vectors)
    if total is None:
        raise ProtocolViolationError("no vector arrived")
    bound_to, length = roster.masked_digest(sharing), len(total)
    for seed in secrets.seeds.values():
        total -= own_mask(seed, bound_to, length)
    for lost, key in secrets.mask_keys.items():
        for peer in sorted(secrets.seeds):
            mask = pair_mask(key, lost, peer, roster, bound_to, length)
            # what the survivor had done is undone
            total = np.subtract(total, mask, out=total) if peer < lost else np.add(total, mask, out=total)
    return total


def _secret(
    client_id: int,
    shares: Mapping[int, Mapping[int, int]],
    threshold: int,
    fits: Callable[[int, bytes], bool],
) -> bytes:
    """The secret of a client, from the shares of it by holder."""
    for holders in _subsets(sorted(shares), threshold):
        value = shamir.combine({holder: shares[holder][client_id] for holder in holders}, threshold=threshold)
        if value < 2 ** (8 * shamir.SECRET_BYTES):
            secret = value.to_bytes(shamir.SECRET_BYTES, "big")
            if fits(client_id, secret):
                return secret
    raise ProtocolViolationError("shares that clients revealed do not fit together")


def _subsets(holders: list[int], size: int) -> Iterator[list[int]]:
    """Sets of holders: the first, its rotations, then others in an order that is always the same."""
    if len(holders) == size:
        yield holders
        return
    for start in range(len(holders)):
        yield [*holders[start:], *holders[:start]][:size]
    chosen = random.Random(size)  # noqa: S311 - an order, no secret
    for _ in range(_SUBSETS):
        yield chosen.sample(holders, size)
