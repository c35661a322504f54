"""What a server shows of itself: log lines about the address it listens on, and modes of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddbp_common.artifacts import AUDIT_NAME, DATABASE_NAME
from feddbp_server.app import Server
from feddbp_server.config import ListenConfig, ServerConfig
from feddbp_server.store import SqliteStore, StoreError


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_an_address_that_other_machines_reach_unencrypted_is_warned_about(
    host: str, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(ServerConfig(listen=ListenConfig(host=host, insecure=True, state_dir=tmp_path)))
    server._log_address()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("unencrypted and without authentication" in line for line in warnings) is warned
    await server._shut_down()


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def made(path: Path, mode: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    path.chmod(mode)
    return path


async def test_files_of_others_in_a_state_directory_keep_their_modes(tmp_path: Path) -> None:
    page, script = made(tmp_path / "index.html", 0o644), made(tmp_path / "bin" / "deploy", 0o755)
    audit = made(tmp_path / AUDIT_NAME, 0o644)
    server = Server(ServerConfig(listen=ListenConfig(state_dir=tmp_path)))
    await server._shut_down()
    assert (mode_of(page), mode_of(script)) == (0o644, 0o755)
    assert (mode_of(audit), mode_of(tmp_path / DATABASE_NAME) & 0o077) == (0o600, 0)


async def test_a_directory_that_another_server_uses_is_left_as_it_is(tmp_path: Path) -> None:
    audit, store = made(tmp_path / AUDIT_NAME, 0o644), SqliteStore(tmp_path)
    with pytest.raises(StoreError, match="another server is using"):
        Server(ServerConfig(listen=ListenConfig(state_dir=tmp_path)))
    store.close()
    assert mode_of(audit) == 0o644
