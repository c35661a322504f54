"""A small certificate authority for one federation; keys are readable by their owner alone."""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shlex import quote
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from feddbp_common.errors import ConfigurationError
from feddbp_common.rpc.credentials import CA, SERVER

AUTHORITY_LIFETIME: Final = timedelta(days=3650)
PARTY_LIFETIME: Final = timedelta(days=365)
_CLOCK_SKEW: Final = timedelta(minutes=5)
"""Certificates are valid from this long before they are made, as the clocks of machines differ."""


@dataclass(frozen=True)
class Authority:
    """The key and certificate that sign those of all parties of a federation."""

    directory: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, directory: Path, *, lifetime: timedelta = AUTHORITY_LIFETIME) -> Authority:
        if (directory / f"{CA}.key").exists():
            raise ConfigurationError(f"{directory} has an authority already; remove it first to create another")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name("feddbp authority")
        certificate = (
            _builder(subject, subject, key.public_key(), lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        authority = cls(directory, key, certificate)
        authority._write(CA, key, certificate)
        return authority

    @classmethod
    def load(cls, directory: Path) -> Authority:
        try:
            key = serialization.load_pem_private_key((directory / f"{CA}.key").read_bytes(), password=None)
            certificate = x509.load_pem_x509_certificate((directory / f"{CA}.pem").read_bytes())
        except FileNotFoundError:
            raise ConfigurationError(
                f"{directory} has no authority; `feddbp certs init {quote(str(directory))}` creates one"
            ) from None
        except OSError as error:
            raise ConfigurationError(f"{error.filename}: {error.strerror}") from None
        except ValueError as error:
            raise ConfigurationError(f"the authority in {directory} cannot be read: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigurationError(
                f"the authority's key in {directory} is no elliptic-curve key; `feddbp certs init NEW_DIR` creates one"
            )
        return cls(directory, key, certificate)

    def issue_server(self, hosts: Sequence[str], *, lifetime: timedelta = PARTY_LIFETIME) -> Path:
        """Issues the server's certificate, for the names and addresses under which clients reach it."""
        return self._issue(SERVER, ExtendedKeyUsageOID.SERVER_AUTH, lifetime, hosts)

    def issue_party(self, subject: str, *, lifetime: timedelta = PARTY_LIFETIME) -> Path:
        """Issues a certificate for a client, the operator or the probe; its subject is their identity."""
        return self._issue(subject, ExtendedKeyUsageOID.CLIENT_AUTH, lifetime, [subject])

    def _issue(self, subject: str, purpose: ObjectIdentifier, lifetime: timedelta, names: Sequence[str]) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_name(subject), self.certificate.subject, key.public_key(), lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternative_names(names)), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return self._write(subject, key, certificate)

    def _write(self, subject: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> Path:
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_secret(self.directory / f"{subject}.key", private)
        path = self.directory / f"{subject}.pem"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


def alternative_names(names: Sequence[str]) -> list[x509.GeneralName]:
    """Host names and IP addresses as entries of a certificate."""
    return [_alternative_name(name) for name in names]


def new_token() -> str:
    return secrets.token_urlsafe(32)


def write_secret(path: Path, content: bytes) -> None:
    """Writes a new file that only its owner can read, from its creation on."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + lifetime) - _CLOCK_SKEW)
        .not_valid_after(now + lifetime)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
