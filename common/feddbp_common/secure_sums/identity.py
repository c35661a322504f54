"""Signatures by the key of a client's certificate, and what peers check of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from feddbp_common.errors import ConfigurationError, ProtocolViolationError
from feddbp_common.rpc.credentials import client_subject

_SIGNATURE: Final = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
"""A client that was killed signs with the same bytes again."""


@dataclass(frozen=True)
class Signer:
    """Signs as a client."""

    certificate: bytes
    """PEM."""
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Signer:
        loaded = serialization.load_pem_private_key(key, password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ConfigurationError("secure sums need an elliptic-curve key; `feddbp certs client` makes one")
        return cls(certificate, loaded)

    def sign(self, message: bytes) -> bytes:
        return self.key.sign(message, _SIGNATURE)


class Verifier:
    """Checks certificates against the federation's authority, and signatures against certificates."""

    def __init__(self, authority: bytes) -> None:
        self._authority = x509.load_pem_x509_certificate(authority)

    def public_key(self, client_id: int, certificate: bytes) -> ec.EllipticCurvePublicKey:
        """The key of a certificate that the authority issued to this client and that is valid now."""
        subject = client_subject(client_id)
        try:
            found = x509.load_pem_x509_certificate(certificate)
            found.verify_directly_issued_by(self._authority)
            names = [name.value for name in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
            key = found.public_key()
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion):
            raise ProtocolViolationError(f"the certificate given for {subject} is not from our authority") from None
        if names != [subject]:
            raise ProtocolViolationError(f"the certificate given for {subject} is that of {_listed(names)}")
        if not found.not_valid_before_utc <= datetime.now(UTC) <= found.not_valid_after_utc:
            raise ProtocolViolationError(f"the certificate of {subject} is not valid today")
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ProtocolViolationError(f"the certificate of {subject} has no elliptic-curve key")
        return key


def check_signature(key: ec.EllipticCurvePublicKey, signature: bytes, message: bytes, *, of: str) -> None:
    try:
        key.verify(signature, message, _SIGNATURE)
    except InvalidSignature:
        raise ProtocolViolationError(f"the signature of {of} does not fit") from None


def _listed(names: Sequence[str | bytes]) -> str:
    return ", ".join(map(str, names)) or "no subject"
