"""The server's log lines about the address it listens on."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddbp_server.app import Server
from feddbp_server.config import ListenConfig, ServerConfig


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_an_address_that_other_machines_reach_unencrypted_is_warned_about(
    host: str, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(ServerConfig(listen=ListenConfig(host=host, insecure=True, state_dir=tmp_path)))
    server._log_address()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("unencrypted and without authentication" in line for line in warnings) is warned
    await server._shut_down()
