"""Certificates and tokens in files, and the gRPC credentials made from them.

A directory made by `feddbp certs` has `ca.pem` and, for each party, `NAME.pem` and `NAME.key`. NAME is also the subject
of the certificate: the server compares it with the client id that a caller claims.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Final

import grpc

from feddbp_common.errors import ConfigurationError
from feddbp_common.given_paths import is_there

CA: Final = "ca"
SERVER: Final = "server"
OPERATOR: Final = "operator"
PROBE: Final = "probe"
"""Subject of health probes: passes the TLS handshake, but is authorised for the health service only."""
AUTHORIZATION_KEY: Final = "authorization"
BEARER: Final = "Bearer "
_CLIENT: Final = re.compile("client-[0-9]+")


def client_subject(client_id: int) -> str:
    """Returns the subject of a client's certificate."""
    return f"client-{client_id}"


def is_party(subject: str) -> bool:
    """Whether the subject is a client's or the operator's."""
    return subject == OPERATOR or _CLIENT.fullmatch(subject) is not None


@dataclass(frozen=True)
class CertificateDirectory:
    """Reads a party's certificate and key and the CA certificate."""

    path: Path

    def authority(self) -> bytes:
        return self._certificate(CA)

    def certificate(self, subject: str) -> bytes:
        return self._certificate(subject)

    def key(self, subject: str) -> bytes:
        return self._read(f"{subject}.key", subject)

    def server_credentials(self, *, clients_have_certificates: bool) -> grpc.ServerCredentials:
        """Returns TLS credentials; mutual TLS, which requires a client certificate, if clients have certificates."""
        pair = (self.key(SERVER), self.certificate(SERVER))
        if not clients_have_certificates:
            return grpc.ssl_server_credentials([pair])
        return grpc.ssl_server_credentials([pair], root_certificates=self.authority(), require_client_auth=True)

    def channel_credentials(self, subject: str | None) -> grpc.ChannelCredentials:
        """Returns TLS credentials with the subject's certificate, or without one if the caller uses a token."""
        if subject is None:
            return grpc.ssl_channel_credentials(self.authority())
        return grpc.ssl_channel_credentials(self.authority(), self.key(subject), self.certificate(subject))

    def _certificate(self, subject: str) -> bytes:
        """Reads and checks a certificate here, because after a failed handshake the peer only sees a closed socket."""
        from cryptography import x509  # slow to import, and only TLS needs it

        name = f"{subject}.pem"
        pem = self._read(name, subject)
        try:
            last_day = x509.load_pem_x509_certificate(pem).not_valid_after_utc
        except ValueError:
            how = self._how_to_make(subject, replace=True)
            raise ConfigurationError(f"--certs {self.path}: {name} is not a certificate; {how}") from None
        if last_day <= datetime.now(UTC):
            how = self._how_to_make(subject, replace=True)
            raise ConfigurationError(f"--certs {self.path}: {name} expired on {last_day:%Y-%m-%d}; {how}")
        return pem

    def _read(self, name: str, subject: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError as error:
            how = self._how_to_make(subject)
            raise ConfigurationError(f"--certs {self.path}: cannot read {name}: {error.strerror}; {how}") from None
        except OSError as error:  # it is there: a new one would not help
            raise ConfigurationError(f"--certs {self.path}: cannot read {name}: {error.strerror}") from None

    def _how_to_make(self, subject: str, *, replace: bool = False) -> str:
        kind, _, client_id = subject.partition("-")
        if kind == CA:
            return f"`feddbp certs init {'NEW_DIR' if replace else quote(str(self.path))}` makes an authority"
        words = ["feddbp", "certs", kind, quote(str(self.path))]
        words += ["--id", client_id] if client_id else ["--host", "NAME"] if kind == SERVER else []
        words += ["--replace"] if replace else []
        where = "" if is_there(self.path / f"{CA}.key") else f" where {CA}.key is"
        return f"`{' '.join(words)}` makes {'a new one' if replace else 'it'}{where}"


@dataclass(frozen=True, kw_only=True)
class ClientCredentials:
    """How a caller connects and authenticates: by certificate, by token, or not at all."""

    certs: Path | None = None
    token_file: Path | None = None

    def channel(self, address: str, subject: str, options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Channel:
        if self.certs is None:
            return grpc.aio.insecure_channel(address, options=list(options))
        credentials = CertificateDirectory(self.certs).channel_credentials(self.certified(subject))
        return grpc.aio.secure_channel(address, credentials, options=list(options))

    def certified(self, subject: str) -> str | None:
        """Returns the subject of the certificate that the caller shows: none if it has a token."""
        return subject if self.token_file is None else None

    def server_identity(self, address: str) -> str:
        """Identifies a server: by its authority, of which it has a certificate, or else by its address."""
        if self.certs is None:
            host, port = split_address(address)
            return f"{'127.0.0.1' if host == 'localhost' else host.lower()}:{port}"
        from cryptography import x509  # slow to import, and only TLS needs it
        from cryptography.hazmat.primitives.hashes import SHA256

        authority = x509.load_pem_x509_certificate(CertificateDirectory(self.certs).authority())
        return f"of authority sha256:{authority.fingerprint(SHA256()).hex()}"

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata that authenticates a call."""
        if self.token_file is None:
            return ()
        return ((AUTHORIZATION_KEY, f"{BEARER}{read_token(self.token_file)}"),)


DEFAULT_PORT: Final = 50051
"""On which a server listens if it is given none."""
DEFAULT_ADDRESS: Final = f"127.0.0.1:{DEFAULT_PORT}"
"""Where clients and operators look for a server if they are given none."""


def check_address(address: str) -> None:
    """Raises ConfigurationError if the address is not HOST:PORT."""
    scheme, separator, rest = address.partition("://")
    if separator:
        given = f"; give {rest.rstrip('/')}" if _is_address(rest.rstrip("/")) else ""
        raise ConfigurationError(f"{address!r}: an address is HOST:PORT, without {scheme}://{given}")
    if not _is_address(address):
        with_port = f"{address}:{DEFAULT_PORT}"
        is_port_missing = _is_address(with_port) and ":" not in address.strip("[]") and not address.isdecimal()
        example = f"give {with_port}" if is_port_missing else f"such as {DEFAULT_ADDRESS}"
        raise ConfigurationError(f"{address!r} is not an address of the form HOST:PORT, {example}")


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    has_port = port.isdecimal() and 0 < int(port) < 1 << 16
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return has_port and re.fullmatch(r"[^\s/\[\]@?#]+", bare) is not None


def split_address(address: str) -> tuple[str, int]:
    """Host, without the brackets of an IPv6 address, and port of a checked address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def check_exposure(address: str, *, certs: Path | None, insecure: bool) -> None:
    """Raises ConfigurationError for an unencrypted connection to a server beyond loopback without --insecure."""
    host, port = split_address(address)
    if certs is not None or insecure or is_loopback(host):
        return
    if _is_unspecified(host):
        raise ConfigurationError(
            f"{host} is an address to listen on, not to connect to; give 127.0.0.1:{port} or the server's name"
        )
    raise ConfigurationError(
        f"{host} is not this machine and the connection would not be encrypted; use --certs or --insecure"
    )


def check_listening(host: str, *, certs: Path | None, insecure: bool) -> None:
    """Raises ConfigurationError for a server that others could reach unencrypted, without --insecure."""
    if certs is None and not insecure and not is_loopback(host):
        where = (
            "all interfaces of this machine" if _is_unspecified(host) else "an address that other machines may reach"
        )
        raise ConfigurationError(
            f"{host} is {where}, and connections would not be encrypted; use --certs or --insecure"
        )


def listening_warning(host: str, *, certs: Path | None, token_file: Path | None) -> str:
    """What a server risks that listens without TLS beyond loopback; empty if it does not."""
    if certs is not None or is_loopback(host):
        return ""
    if token_file is None:
        risk = " and without authentication: anyone who reaches the port can join and stop the run"
    else:
        risk = ": anyone who reads the traffic learns the tokens and what clients send"
    return f"connections to {host} are unencrypted{risk}; use --certs"


def connection_warning(address: str, credentials: ClientCredentials) -> str:
    """What a client risks that connects without TLS beyond loopback; empty if it does not."""
    if credentials.certs is not None or is_loopback(split_address(address)[0]):
        return ""
    learns = "what is sent" if credentials.token_file is None else "this client's token and what is sent"
    return f"the connection to {address} is unencrypted: anyone who reads the traffic learns {learns}; use --certs"


def _is_unspecified(host: str) -> bool:
    """Whether it stands for all interfaces: 0.0.0.0 or ::."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """Reads a party's token from a file with nothing else in it."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--token-file {path}: {getattr(error, 'strerror', None) or error}") from None
    if not token or len(token.split()) != 1:
        raise ConfigurationError(f"--token-file {path}: must contain one token and nothing else")
    return token
