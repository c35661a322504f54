"""A server that never listens: what it leaves of its state directory."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from feddbp_common.artifacts import DATABASE_NAME
from feddbp_common.errors import ConfigurationError
from feddbp_server.app import Server
from feddbp_server.config import ListenConfig, ServerConfig


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


async def fail_to_start(state_dir: Path, port: int, **options: object) -> None:
    listen = ListenConfig.model_validate({"state_dir": state_dir, "port": port, **options})
    with pytest.raises(ConfigurationError):
        await Server(ServerConfig(listen=listen)).serve()


async def test_no_directory_is_left_that_was_not_there(tmp_path: Path, taken_port: int) -> None:
    await fail_to_start(tmp_path / "state" / "server", taken_port)
    assert not names_in(tmp_path)


async def test_nothing_is_left_without_the_files_for_tls_and_tokens(tmp_path: Path) -> None:
    await fail_to_start(tmp_path / "server", 0, certs=tmp_path / "certs")
    await fail_to_start(tmp_path / "server", 0, token_file=tmp_path / "tokens")
    assert not names_in(tmp_path)


async def test_files_of_others_are_left(tmp_path: Path, taken_port: int) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    await fail_to_start(tmp_path, taken_port)
    assert names_in(tmp_path) == {"notes.txt"}


async def test_a_run_that_was_there_is_left(tmp_path: Path, taken_port: int) -> None:
    server = Server(ServerConfig(listen=ListenConfig(state_dir=tmp_path, port=0)))
    await server._shut_down()
    before = names_in(tmp_path)
    assert DATABASE_NAME in before
    await fail_to_start(tmp_path, taken_port)
    assert names_in(tmp_path) >= before
