"""Messages of a secure sum as protobuf, checked for their form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import ProtocolViolationError
from feddbp_common.secure_sums import shamir
from feddbp_common.secure_sums.messages import Advertisement, Reveal

_KEY_BYTES: Final = 32
_ENCRYPTED_BYTES: Final = 2 * shamir.SHARE_BYTES + 16
"""Two shares and the tag of their encryption."""
_MOST_SIGNATURE_BYTES: Final = 256
_MOST_CERTIFICATE_BYTES: Final = 8 << 10


def keys_to_proto(advertisement: Advertisement) -> pb.SumKeys:
    return pb.SumKeys(**vars(advertisement))


def keys_from_proto(message: pb.SumKeys) -> Advertisement:
    for field in ("share_key", "mask_key", "seed_digest"):
        _check_length(field, getattr(message, field), exactly=_KEY_BYTES)
    _check_length("certificate", message.certificate, at_most=_MOST_CERTIFICATE_BYTES)
    _check_length("signature", message.signature, at_most=_MOST_SIGNATURE_BYTES)
    return Advertisement(
        client_id=message.client_id,
        share_key=message.share_key,
        mask_key=message.mask_key,
        seed_digest=message.seed_digest,
        certificate=message.certificate,
        signature=message.signature,
    )


def reveal_to_proto(reveal: Reveal) -> pb.SumReveal:
    return pb.SumReveal(seeds=_packed(reveal.seeds), mask_keys=_packed(reveal.mask_keys))


def reveal_from_proto(message: pb.SumReveal) -> Reveal:
    return Reveal(seeds=_unpacked(message.seeds), mask_keys=_unpacked(message.mask_keys))


def check_shares(message: pb.SumShares, peers: Iterable[int]) -> None:
    """Raises unless there is one encrypted share for each of these peers."""
    if message.by_client.keys() != set(peers):
        raise ProtocolViolationError("shares are not for every peer of the roster")
    for share in message.by_client.values():
        _check_length("a share", share, exactly=_ENCRYPTED_BYTES)


def check_signature_length(signature: bytes) -> None:
    _check_length("signature", signature, at_most=_MOST_SIGNATURE_BYTES)


def _packed(shares: Mapping[int, int]) -> dict[int, bytes]:
    return {client: share.to_bytes(shamir.SHARE_BYTES, "big") for client, share in shares.items()}


def _unpacked(shares: Mapping[int, bytes]) -> dict[int, int]:
    for share in shares.values():
        _check_length("a share", share, exactly=shamir.SHARE_BYTES)
    values = {client: int.from_bytes(share, "big") for client, share in shares.items()}
    if any(value >= shamir.PRIME for value in values.values()):
        raise ProtocolViolationError("a share is no element of the field")
    return values


def _check_length(field: str, value: bytes, *, exactly: int | None = None, at_most: int | None = None) -> None:
    if (exactly is not None and len(value) != exactly) or (at_most is not None and not 0 < len(value) <= at_most):
        wanted = exactly if exactly is not None else f"1 to {at_most}"
        raise ProtocolViolationError(f"{field} has {len(value)} bytes, not {wanted}")
