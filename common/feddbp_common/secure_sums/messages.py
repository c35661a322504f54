"""What clients and server send each other for one sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from feddbp_common.errors import ProtocolViolationError
from feddbp_common.secure_sums import MAX_CLIENTS, MIN_CLIENTS, threshold_of
from feddbp_common.secure_sums.digests import SumContext, digest, digest_of_ids
from feddbp_common.secure_sums.identity import Verifier, check_signature

_TRIAL_KEY: Final = X25519PrivateKey.from_private_bytes(bytes([1]) * 32)
"""Agreed with a key of a client to see whether that can be used."""


@dataclass(frozen=True, kw_only=True)
class Advertisement:
    """A client's fresh public keys, signed."""

    client_id: int
    share_key: bytes
    """X25519; peers encrypt shares to it."""
    mask_key: bytes
    """X25519; agreed with each peer's, it gives the mask of the pair."""
    seed_digest: bytes
    """Commits to the seed of the client's own mask, so that a wrong share of it is noticed."""
    certificate: bytes
    signature: bytes

    def signed_part(self, context: SumContext) -> bytes:
        return digest("keys", context.digest, self.client_id, self.share_key, self.mask_key, self.seed_digest)

    def check(self, context: SumContext, signing_key: ec.EllipticCurvePublicKey) -> None:
        """Raises unless the keys are signed for this sum, and agreements with them are secret."""
        check_signature(signing_key, self.signature, self.signed_part(context), of=f"client {self.client_id}'s keys")
        for key in (self.share_key, self.mask_key):
            try:
                _TRIAL_KEY.exchange(X25519PublicKey.from_public_bytes(key))
            except ValueError:  # a point on which every agreement gives the same
                raise ProtocolViolationError(f"a public key of client {self.client_id} cannot be used") from None


@dataclass(frozen=True)
class Roster:
    """The clients of a sum, checked: their keys and who signed them."""

    advertisements: Mapping[int, Advertisement]
    signing_keys: Mapping[int, ec.EllipticCurvePublicKey]
    digest: bytes

    @classmethod
    def checked(
        cls,
        context: SumContext,
        advertisements: Iterable[Advertisement],
        verifier: Verifier,
        *,
        least: int = MIN_CLIENTS,
    ) -> Roster:
        """Raises unless every advertisement can be used, and is signed for this sum by the client that it names."""
        found: dict[int, Advertisement] = {}
        keys: dict[int, ec.EllipticCurvePublicKey] = {}
        for item in sorted(advertisements, key=lambda item: item.client_id):
            client_id = item.client_id
            if client_id in found:
                raise ProtocolViolationError(f"client {client_id} has two sets of keys")
            keys[client_id] = verifier.public_key(client_id, item.certificate)
            item.check(context, keys[client_id])
            found[client_id] = item
        if not max(least, MIN_CLIENTS) <= len(found) <= MAX_CLIENTS:
            raise ProtocolViolationError(
                f"a sum over {len(found)} clients; it takes {max(least, MIN_CLIENTS)} to {MAX_CLIENTS}"
            )
        parts = (item.signed_part(context) for item in found.values())
        return cls(found, keys, digest("roster", context.digest, *parts))

    @property
    def threshold(self) -> int:
        return threshold_of(len(self.advertisements))

    def __contains__(self, client_id: object) -> bool:
        return client_id in self.advertisements

    def masked_digest(self, sharing: Iterable[int]) -> bytes:
        """Binds masks to those clients whose shares all have."""
        return digest_of_ids("masked", self.digest, sharing)

    def survivors_digest(self, survivors: Iterable[int]) -> bytes:
        return digest_of_ids("survivors", self.digest, survivors)


@dataclass(frozen=True)
class Reveal:
    """A client's shares of its peers' secrets: of the seed of a survivor, or of the mask key of another; never both."""

    seeds: Mapping[int, int]
    mask_keys: Mapping[int, int]
