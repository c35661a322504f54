"""The client's side of one sum. Every step is a function of the client's secret and of what it received."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from feddbp_common.errors import ProtocolViolationError
from feddbp_common.secure_sums import MIN_CLIENTS, shamir
from feddbp_common.secure_sums.derivation import KeyStream, derive_key
from feddbp_common.secure_sums.digests import SumContext, digest
from feddbp_common.secure_sums.fixed_point import Words
from feddbp_common.secure_sums.identity import Signer, Verifier, check_signature
from feddbp_common.secure_sums.messages import Advertisement, Reveal, Roster

_NONCE: Final = bytes(12)
"""A key encrypts the shares for one peer of one sum and nothing else, so the nonce is fixed."""


class SumClient:
    """Takes part in one sum. `root` is its only secret: 32 random bytes, stored before anything is sent.

    The same root and the same messages give the same bytes, so a client that was killed repeats itself. What may be
    answered once only, the roster and the survivors, its owner stores before the answer leaves.
    """

    def __init__(self, *, client_id: int, root: bytes, context: SumContext, signer: Signer) -> None:
        self._id = client_id
        self._root = root
        self._context = context
        self._signer = signer
        self._share_key = X25519PrivateKey.from_private_bytes(derive_key(root, "share key"))
        self._mask_key = derive_key(root, "mask key")
        self._seed = derive_key(root, "seed")

    def advertisement(self) -> Advertisement:
        unsigned = self._unsigned()
        return replace(unsigned, signature=self._signer.sign(unsigned.signed_part(self._context)))

    def _unsigned(self) -> Advertisement:
        return Advertisement(
            client_id=self._id,
            share_key=self._share_key.public_key().public_bytes_raw(),
            mask_key=public_key(self._mask_key),
            seed_digest=digest("seed", self._seed),
            certificate=self._signer.certificate,
            signature=b"",
        )

    def roster(
        self, advertisements: Iterable[Advertisement], verifier: Verifier, *, least: int = MIN_CLIENTS
    ) -> Roster:
        """Checks the clients of the sum, `least` of them at least, with this client's own keys among them unchanged."""
        roster = Roster.checked(self._context, advertisements, verifier, least=least)
        own = roster.advertisements.get(self._id)
        if own is None or own.signed_part(self._context) != self._unsigned().signed_part(self._context):
            raise ProtocolViolationError(f"the roster does not have the keys of client {self._id} as it sent them")
        return roster

    def shares(self, roster: Roster) -> dict[int, bytes]:
        """For each peer, its shares of this client's seed and mask key, encrypted to it."""
        seeds, mask_keys = self._split(roster)
        return {
            peer: self._cipher(roster, sender=self._id, receiver=peer).encrypt(
                _NONCE, _packed(seeds[peer], mask_keys[peer]), None
            )
            for peer in roster.advertisements
            if peer != self._id
        }

    def check_received(self, roster: Roster, received: Mapping[int, bytes]) -> None:
        """Raises unless enough peers have given shares, and all of them can be opened."""
        self._sharing(roster, received)
        self._opened(roster, received)

    def masked(self, vector: Words, roster: Roster, received: Mapping[int, bytes]) -> Words:
        """The vector under this client's masks, once enough peers have given their shares."""
        sharing = self._sharing(roster, received)
        self._opened(roster, received)  # a share that cannot be opened is noticed before anything depends on it
        bound_to = roster.masked_digest(sharing)
        total = vector + own_mask(self._seed, bound_to, len(vector))
        for peer in sharing - {self._id}:
            mask = pair_mask(self._mask_key, self._id, peer, roster, bound_to, len(vector))
            total = total + mask if self._id < peer else total - mask
        return total

    def sign_survivors(self, roster: Roster, received: Mapping[int, bytes], survivors: frozenset[int]) -> bytes:
        """Agrees to the set of those whose vector arrived. The owner signs one set, never a second."""
        self._check_survivors(roster, received, survivors)
        return self._signer.sign(roster.survivors_digest(survivors))

    def reveal(
        self,
        roster: Roster,
        received: Mapping[int, bytes],
        survivors: frozenset[int],
        signatures: Mapping[int, bytes],
    ) -> Reveal:
        """This client's shares, once enough clients have signed the same survivors."""
        self._check_survivors(roster, received, survivors)
        message = roster.survivors_digest(survivors)
        for peer in signatures:
            if peer not in survivors:
                raise ProtocolViolationError(f"client {peer} signed the survivors, but is none")
            check_signature(roster.signing_keys[peer], signatures[peer], message, of=f"client {peer}'s survivors")
        if len(signatures) < roster.threshold:
            raise ProtocolViolationError(f"{len(signatures)} clients signed the survivors; {roster.threshold} have to")
        opened = self._opened(roster, received)
        return Reveal(
            seeds={peer: opened[peer][0] for peer in opened if peer in survivors},
            mask_keys={peer: opened[peer][1] for peer in opened if peer not in survivors},
        )

    def _sharing(self, roster: Roster, received: Mapping[int, bytes]) -> frozenset[int]:
        """The clients whose shares arrived, this one among them."""
        sharing = frozenset(received) | {self._id}
        unknown = [peer for peer in sharing if peer not in roster]
        if unknown:
            raise ProtocolViolationError(f"client {min(unknown)} sent shares, but is not in the roster")
        if len(sharing) < roster.threshold:
            raise ProtocolViolationError(f"{len(sharing)} clients sent shares; {roster.threshold} have to")
        return sharing

    def _check_survivors(self, roster: Roster, received: Mapping[int, bytes], survivors: frozenset[int]) -> None:
        if not survivors <= self._sharing(roster, received):
            raise ProtocolViolationError("a survivor sent no shares")
        if self._id not in survivors:
            raise ProtocolViolationError(f"client {self._id} is asked about survivors without being one")
        if len(survivors) < roster.threshold:
            raise ProtocolViolationError(f"{len(survivors)} vectors arrived; {roster.threshold} have to")

    def _opened(self, roster: Roster, received: Mapping[int, bytes]) -> dict[int, tuple[int, int]]:
        """By peer, the shares of its seed and of its mask key; a client holds shares of its own secrets too."""
        opened = {}
        for peer, encrypted in received.items():
            try:
                packed = self._cipher(roster, sender=peer, receiver=self._id).decrypt(_NONCE, encrypted, None)
                opened[peer] = _unpacked(packed)
            except (InvalidTag, ValueError):
                raise ProtocolViolationError(f"the shares of client {peer} cannot be opened") from None
        seeds, mask_keys = self._split(roster)
        opened[self._id] = seeds[self._id], mask_keys[self._id]
        return opened

    def _split(self, roster: Roster) -> tuple[dict[int, int], dict[int, int]]:
        """The shares of this client's seed and mask key, by holder."""
        draws = KeyStream(derive_key(self._root, "shares", roster.digest))
        seeds, mask_keys = (
            shamir.split(
                int.from_bytes(secret, "big"), roster.advertisements, threshold=roster.threshold, draw=draws.below
            )
            for secret in (self._seed, self._mask_key)
        )
        return seeds, mask_keys

    def _cipher(self, roster: Roster, *, sender: int, receiver: int) -> ChaCha20Poly1305:
        peer = receiver if sender == self._id else sender
        agreed = _agreed(self._share_key, roster.advertisements[peer].share_key, peer)
        return ChaCha20Poly1305(derive_key(agreed, "encrypted shares", roster.digest, sender, receiver))


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def own_mask(seed: bytes, bound_to: bytes, length: int) -> Words:
    return KeyStream(derive_key(seed, "own mask", bound_to)).words(length)


def pair_mask(private: bytes, own_id: int, peer: int, roster: Roster, bound_to: bytes, length: int) -> Words:
    """The mask of a pair, the same from either side's private key; the lower id adds it, the higher subtracts it."""
    agreed = _agreed(X25519PrivateKey.from_private_bytes(private), roster.advertisements[peer].mask_key, peer)
    low, high = sorted((own_id, peer))
    return KeyStream(derive_key(agreed, "pair mask", bound_to, low, high)).words(length)


def _agreed(own: X25519PrivateKey, theirs: bytes, peer: int) -> bytes:
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:  # of another length, or a point on which every agreement gives the same
        raise ProtocolViolationError(f"the public key of client {peer} cannot be used") from None


def _packed(*shares: int) -> bytes:
    return b"".join(share.to_bytes(shamir.SHARE_BYTES, "big") for share in shares)


def _unpacked(data: bytes) -> tuple[int, int]:
    if len(data) != 2 * shamir.SHARE_BYTES:
        raise ValueError("not two shares")
    seed, mask_key = (int.from_bytes(data[i : i + shamir.SHARE_BYTES], "big") for i in (0, shamir.SHARE_BYTES))
    if max(seed, mask_key) >= shamir.PRIME:
        raise ValueError("not an element of the field")
    return seed, mask_key
