"""Certificates and tokens as files: what a directory of them must hold, and credentials for gRPC made of it.

A directory made by `feddbp certs` holds `ca.pem` and, for each party, `NAME.pem` and `NAME.key`; the name is also the
subject of the certificate, so that a certificate says whose it is and a server can hold a client to it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import grpc

from feddbp_common.errors import ConfigurationError

CA: Final = "ca"
SERVER: Final = "server"
OPERATOR: Final = "operator"
PROBE: Final = "probe"
"""Whoever asks after the server's health: passes the handshake, and is nobody to every other service."""
AUTHORIZATION_KEY: Final = "authorization"
BEARER: Final = "Bearer "
_CLIENT: Final = re.compile("client-[0-9]+")


def client_subject(client_id: int) -> str:
    """The name under which a client's certificate is made and checked."""
    return f"client-{client_id}"


def is_party(subject: str) -> bool:
    """Whether it is the name of somebody who has to do with a run: a client or the operator."""
    return subject == OPERATOR or _CLIENT.fullmatch(subject) is not None


@dataclass(frozen=True)
class CertificateDirectory:
    """Where a party finds its certificate, its key and the authority it trusts."""

    path: Path

    def authority(self) -> bytes:
        return self._certificate(f"{CA}.pem", "feddbp certs init")

    def certificate(self, subject: str) -> bytes:
        return self._certificate(f"{subject}.pem", _how_to_make(subject))

    def key(self, subject: str) -> bytes:
        return self._read(f"{subject}.key", _how_to_make(subject))

    def server_credentials(self, *, clients_have_certificates: bool) -> grpc.ServerCredentials:
        """TLS; in both directions where clients have certificates, and then nobody else passes the handshake."""
        pair = (self.key(SERVER), self.certificate(SERVER))
        if not clients_have_certificates:
            return grpc.ssl_server_credentials([pair])
        return grpc.ssl_server_credentials([pair], root_certificates=self.authority(), require_client_auth=True)

    def channel_credentials(self, subject: str | None) -> grpc.ChannelCredentials:
        """TLS to the server, under a certificate of one's own unless a token takes its place."""
        if subject is None:
            return grpc.ssl_channel_credentials(self.authority())
        return grpc.ssl_channel_credentials(self.authority(), self.key(subject), self.certificate(subject))

    def _certificate(self, name: str, command: str) -> bytes:
        """Read and looked at: the other side of a failed handshake only ever sees a socket that closes."""
        from cryptography import x509  # takes a while to load, and only TLS needs it

        pem = self._read(name, command)
        try:
            last_day = x509.load_pem_x509_certificate(pem).not_valid_after_utc
        except ValueError:
            raise ConfigurationError(
                f"--certs {self.path}: {name} is not a certificate; `{command}` makes one"
            ) from None
        if last_day <= datetime.now(UTC):
            raise ConfigurationError(
                f"--certs {self.path}: {name} has expired on {last_day:%Y-%m-%d}; `{command}` makes a new one"
            )
        return pem

    def _read(self, name: str, command: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"--certs {self.path}: cannot read {name}: {error.strerror}; `{command}` makes it"
            ) from None


@dataclass(frozen=True, kw_only=True)
class ClientCredentials:
    """How a party reaches a server and shows who it is: by certificate, by token, or not at all."""

    certs: Path | None = None
    token_file: Path | None = None

    def channel(self, address: str, subject: str, options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Channel:
        if self.certs is None:
            return grpc.aio.insecure_channel(address, options=list(options))
        credentials = CertificateDirectory(self.certs).channel_credentials(None if self.token_file else subject)
        return grpc.aio.secure_channel(address, credentials, options=list(options))

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a call carries besides its message."""
        if self.token_file is None:
            return ()
        return ((AUTHORIZATION_KEY, f"{BEARER}{read_token(self.token_file)}"),)


def check_address(address: str) -> None:
    """Refuses what is not HOST:PORT, before anybody tries to reach it."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ConfigurationError(f"{address!r} is not an address of the form HOST:PORT, such as 127.0.0.1:50051")


def check_exposure(address: str, *, certs: Path | None, insecure: bool) -> None:
    """Refuses to send anything unencrypted to where others can listen, unless that was asked for."""
    host = address if is_loopback(address) else address.rpartition(":")[0] or address
    if certs is None and not insecure and not is_loopback(host):
        raise ConfigurationError(
            f"{host} is not this machine and the connection would not be encrypted; give --certs, or say --insecure"
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """A party's own token: one line in a file of its own."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--token-file {path}: {getattr(error, 'strerror', None) or error}") from None
    if not token or len(token.split()) != 1:
        raise ConfigurationError(f"--token-file {path}: must hold one token and nothing else")
    return token


def _how_to_make(subject: str) -> str:
    kind, _, client_id = subject.partition("-")
    return f"feddbp certs {kind}" + (f" --id {client_id}" if client_id else "")
