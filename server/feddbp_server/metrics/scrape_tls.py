"""TLS for scrapes: the server's certificate, and callers with the operator's or the probe's."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any, Final

from feddbp_common.rpc.credentials import CA, OPERATOR, PROBE, SERVER, CertificateDirectory

_READERS: Final = (OPERATOR, PROBE)


class ScrapeCredentials:
    """Accepts connections from those who may read metrics; clients' certificates do not suffice."""

    def __init__(self, certs: Path) -> None:
        directory = CertificateDirectory(certs)
        for subject in (CA, SERVER):
            directory.certificate(subject)  # refuses a missing or expired one with what to do
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.load_cert_chain(certs / f"{SERVER}.pem", certs / f"{SERVER}.key")
        self._context.load_verify_locations(certs / f"{CA}.pem")

    def encrypted(self, connection: socket.socket) -> ssl.SSLSocket:
        """Takes the place of a connection, before any handshake."""
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def authenticate(self, connection: ssl.SSLSocket) -> None:
        """Waits for the handshake; raises OSError for a caller without the right certificate."""
        connection.do_handshake()
        subjects = _common_names(connection)
        if not any(name in _READERS for name in subjects):
            raise ConnectionRefusedError(f"{', '.join(subjects)} may not read metrics")


def _common_names(connection: ssl.SSLSocket) -> list[str]:
    certificate: dict[str, Any] = dict(connection.getpeercert() or {})
    pairs = [pair for group in certificate.get("subject", ()) for pair in group]
    return [value for name, value in pairs if name == "commonName"]
