"""Why calls to a server fail, where a retry would not help: the wrong authority, name, port or kind of connection.

gRPC retries after any failure, and its texts differ by version. So once a first call has failed, the address is probed
with a plain socket: as a gRPC client would, with the preface of HTTP/2, and with TLS if there are certificates.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

from feddbp_common.errors import ConfigurationError, ExitCode, FedDBPError
from feddbp_common.rpc.credentials import CA, is_loopback, split_address

_PROBE_SECONDS: Final = 3.0
_HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The client's first bytes: the preface and an empty SETTINGS frame."""
_SETTINGS_FRAME: Final = 4
_NAME_MISMATCH: Final = (62, 64)
"""OpenSSL's codes for a host name and an IP address that a certificate is not for."""
_OUT_OF_DATE: Final = (9, 10)
"""Not valid yet, or no longer: another certificate may be on its way, and a clock may be set."""


class ServerMistakeError(ConfigurationError):
    """The address or the authority does not fit the server."""


class CertificateRejectedError(FedDBPError):
    """The server closes connections with this certificate, or without one."""

    exit_code = ExitCode.REFUSED


async def find_mistake(address: str, *, certs: Path | None, subject: str | None) -> FedDBPError | None:
    """What the caller has to change before it can talk to the server; None if a retry may help.

    `subject` is that of the caller's certificate; None if it has none.
    """
    probe = _Probe(address, subject)
    try:
        return await probe.without_tls() if certs is None else await probe.with_tls(certs)
    except (OSError, TimeoutError, EOFError, UnicodeError):  # the last: no host can have the name
        return None


@dataclass(frozen=True)
class _Probe:
    """Connects to an address as a gRPC client does, and reads the first bytes of the answer."""

    address: str
    subject: str | None

    async def without_tls(self) -> FedDBPError | None:
        answer = await self._answer(None)
        if _is_http2(answer):
            return None
        if answer:
            return self._not_a_server()
        if await _succeeds(lambda: self._answer(_unverified())):
            return self._mistake("the server uses TLS; give --certs")
        return None

    async def with_tls(self, certs: Path) -> FedDBPError | None:
        try:
            answer = await self._answer(self._verified(certs))
        except ssl.SSLCertVerificationError as error:
            return await self._distrust(error, certs)
        except ssl.SSLError:
            return await self._no_tls()
        # a server checks the client's certificate after the client's part of the handshake; once may be a shutdown
        if not answer and await self._answer(self._verified(certs)) == b"":
            given = "callers without a certificate" if self.subject is None else f"{certs / self.subject}.pem"
            return CertificateRejectedError(
                f"the server at {self.address} does not accept {given}: it closes the connection"
            )
        return None

    async def _distrust(self, error: ssl.SSLCertVerificationError, certs: Path) -> FedDBPError | None:
        if error.verify_code in _OUT_OF_DATE:
            return None
        if error.verify_code not in _NAME_MISMATCH:
            return ServerMistakeError(
                f"--certs {certs}: the server at {self.address} has a certificate of another authority than {CA}.pem "
                f"({error.verify_message})"
            )
        host, _ = split_address(self.address)
        try:
            names = await self._certified_names(certs)
        except ssl.SSLCertVerificationError as also:  # OpenSSL reports a wrong name before a wrong authority
            return await self._distrust(also, certs)
        hosts = " ".join(f"--host {quote(name)}" for name in (*names, host))  # of all: a new one replaces the old
        return self._mistake(
            f"the server's certificate is not for {host}, but for {', '.join(names) or 'no name'}; give that name, or "
            f"make a certificate with `feddbp certs server DIR {hosts} --replace`"
        )

    async def _no_tls(self) -> FedDBPError | None:
        answer = await self._answer(None)
        if not _is_http2(answer):
            return self._not_a_server() if answer else None
        host, _ = split_address(self.address)
        instead = "leave out --certs" if is_loopback(host) else "start it with --certs, or give --insecure here instead"
        return self._mistake(f"the server does not use TLS; {instead}")

    def _not_a_server(self) -> FedDBPError:
        return self._mistake("what answers there is no feddbp server: it does not speak HTTP/2; check the port")

    def _mistake(self, what: str) -> FedDBPError:
        return ServerMistakeError(f"--server {self.address}: {what}")

    async def _answer(self, context: ssl.SSLContext | None) -> bytes:
        """The first bytes of the server; none if it closes the connection."""
        async with asyncio.timeout(_PROBE_SECONDS):
            reader, writer = await self._connect(context)
            try:
                writer.write(_HTTP2_PREFACE)
                return await reader.read(64)
            except ConnectionError:
                return b""
            finally:
                writer.transport.abort()

    async def _certified_names(self, certs: Path) -> list[str]:
        context = self._verified(certs)
        context.check_hostname = False
        async with asyncio.timeout(_PROBE_SECONDS):
            _, writer = await self._connect(context)
            certificate = writer.get_extra_info("peercert") or {}
            writer.transport.abort()
        return [str(name) for _, name in certificate.get("subjectAltName", ())]

    async def _connect(self, context: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = split_address(self.address)
        return await asyncio.open_connection(host, port, ssl=context, server_hostname=None if context is None else host)

    def _verified(self, certs: Path) -> ssl.SSLContext:
        context = _context()
        context.load_verify_locations(certs / f"{CA}.pem")
        if self.subject is not None:
            context.load_cert_chain(certs / f"{self.subject}.pem", certs / f"{self.subject}.key")
        return context


def _unverified() -> ssl.SSLContext:
    """To learn whether a server speaks TLS at all; nothing is sent that has to stay secret."""
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _context() -> ssl.SSLContext:
    # not `create_default_context`, which newer versions of Python make stricter than gRPC is
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    return context


def _is_http2(answer: bytes) -> bool:
    """Whether the answer begins with a SETTINGS frame, as that of every HTTP/2 server."""
    return len(answer) > 3 and answer[3] == _SETTINGS_FRAME


async def _succeeds(probe: Callable[[], Awaitable[bytes]]) -> bool:
    try:
        await probe()
    except ssl.SSLError:
        return False
    return True
