"""Certificates for a whole federation, in a directory per party that holds what that party needs and nothing more.

DIR/authority/   ca.pem, ca.key: only needed for signing certificates
DIR/server/      ca.pem, server.pem, server.key, and probe.pem, probe.key, valid for the health service alone
DIR/operator/    ca.pem, operator.pem, operator.key
DIR/client-3/    ca.pem, client-3.pem, client-3.key

Valid certificates are kept, so the same command creates them at the first start and checks them at later ones.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from feddbp_common.errors import ConfigurationError
from feddbp_common.rpc.credentials import CA, OPERATOR, PROBE, SERVER, CertificateDirectory, client_subject
from feddbp_lab.pki.certificates import AUTHORITY_LIFETIME, Authority, alternative_names

AUTHORITY: Final = "authority"
_LOOPBACK: Final = "127.0.0.1"


def make_parties(
    directory: Path, *, hosts: Sequence[str], ids: Sequence[int], lifetime: timedelta, owner: int | None = None
) -> list[Path]:
    """Creates what is missing, expired or signed by another authority; returns the new certificates.

    `owner` becomes the owner of the keys: containers fill volumes as root, and read them as another user.
    """
    authority = _load_or_create(directory / AUTHORITY)
    issued = []
    for party, subjects in _subjects(ids).items():
        party_authority = replace(authority, directory=directory / party)
        _write_authority_certificate(party_authority)
        for subject in subjects:
            names = hosts if subject == SERVER else (subject,)
            if not _is_valid(party_authority, subject, names):
                issued.append(_issue(party_authority, subject, hosts, lifetime))
            if owner is not None:
                _change_owner(party_authority.directory / f"{subject}.key", owner)
    return issued


def make_local_parties(directory: Path, parties: Mapping[str, Sequence[str]]) -> None:
    """Creates a directory for each party on this machine, with the certificates of its subjects, unless DIR exists.

    The authority's key is not kept: with it, certificates of further clients could be made.
    """
    if directory.exists():
        return
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-") as staging:
            authority = Authority.create(Path(staging) / AUTHORITY)
            made = Path(staging) / directory.name
            for party, subjects in parties.items():
                party_authority = replace(authority, directory=made / party)
                _write_authority_certificate(party_authority)
                for subject in subjects:
                    _issue(party_authority, subject, (_LOOPBACK,), AUTHORITY_LIFETIME)
            made.rename(directory)  # all of them or none
    except OSError as error:
        raise ConfigurationError(f"cannot write {directory}: {error.strerror}") from None


def _load_or_create(directory: Path) -> Authority:
    if (directory / f"{CA}.key").exists():
        return Authority.load(directory)
    return Authority.create(directory)


def _subjects(ids: Sequence[int]) -> Mapping[str, tuple[str, ...]]:
    clients = {client_subject(number): (client_subject(number),) for number in ids}
    return {SERVER: (SERVER, PROBE), OPERATOR: (OPERATOR,), **clients}


def _write_authority_certificate(authority: Authority) -> None:
    path = authority.directory / f"{CA}.pem"
    pem = authority.certificate.public_bytes(Encoding.PEM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != pem:
            path.write_bytes(pem)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from None


def _is_valid(authority: Authority, subject: str, names: Sequence[str]) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(CertificateDirectory(authority.directory).certificate(subject))
        certificate.verify_directly_issued_by(authority.certificate)
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ConfigurationError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return (authority.directory / f"{subject}.key").exists() and set(named) == set(alternative_names(names))


def _issue(authority: Authority, subject: str, hosts: Sequence[str], lifetime: timedelta) -> Path:
    if subject == SERVER:
        return authority.issue_server(hosts, lifetime=lifetime)
    return authority.issue_party(subject, lifetime=lifetime)


def _change_owner(key: Path, owner: int) -> None:
    try:
        if key.stat().st_uid != owner:
            os.chown(key, owner, -1)
    except OSError as error:
        raise ConfigurationError(
            f"--owner {owner}: {error.strerror}; only root may change the owner of a file"
        ) from None
