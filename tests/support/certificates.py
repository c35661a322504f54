"""Certificates of a federation on loopback."""

from __future__ import annotations

from pathlib import Path

from feddbp_common.rpc.credentials import client_subject
from feddbp_lab.pki.certificates import Authority


def issue_certificates(directory: Path, *, clients: int) -> Path:
    """Makes an authority with certificates for a server and these clients; returns its directory."""
    authority = Authority.create(directory)
    authority.issue_server(["127.0.0.1"])
    for client_id in range(clients):
        authority.issue_party(client_subject(client_id))
    return directory
