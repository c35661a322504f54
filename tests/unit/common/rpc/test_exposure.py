"""What is said about connections without TLS beyond this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddbp_common.rpc.credentials import ClientCredentials, connection_warning, listening_warning

CERTS, TOKENS = Path("certs"), Path("tokens.txt")


def test_a_public_server_without_certificates_and_tokens_is_open_to_anyone() -> None:
    assert listening_warning("0.0.0.0", certs=None, token_file=None) == (
        "connections to 0.0.0.0 are unencrypted and without authentication: anyone who reaches the port can join and "
        "stop the run; use --certs"
    )


def test_a_public_server_with_tokens_alone_is_unencrypted() -> None:
    said = listening_warning("fl.example.org", certs=None, token_file=TOKENS)
    assert "unencrypted: anyone who reads the traffic learns the tokens" in said
    assert "authentication" not in said


@pytest.mark.parametrize(("host", "certs"), [("127.0.0.1", None), ("::1", None), ("0.0.0.0", CERTS)])
def test_loopback_and_certificates_need_no_warning(host: str, certs: Path | None) -> None:
    assert listening_warning(host, certs=certs, token_file=None) == ""
    address = f"[{host}]:50051" if ":" in host else f"{host}:50051"
    assert connection_warning(address, ClientCredentials(certs=certs, token_file=TOKENS)) == ""


def test_a_client_is_told_that_its_token_can_be_read_on_the_way() -> None:
    said = connection_warning("fl.example.org:50051", ClientCredentials(token_file=TOKENS))
    assert "fl.example.org:50051 is unencrypted" in said
    assert "learns this client's token" in said
    assert "token" not in connection_warning("fl.example.org:50051", ClientCredentials())
