"""A server that is started on a run which is over: whom it waits for, and what it says when it exits."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ExitCode
from feddbp_server.app import Server
from feddbp_server.config import ListenConfig, ServerConfig
from feddbp_server.run.snapshot import RunSnapshot
from feddbp_server.run.state_machine.state import Phase, RunState
from feddbp_server.store import ClientRecord, SqliteStore

BOTH = frozenset({0, 1})


def finish_a_run(state_dir: Path, *, informed: frozenset[int]) -> None:
    state = RunState(phase=Phase.FINISHED, round=2, members=BOTH, reason="all done", informed=informed)
    store = SqliteStore(state_dir)
    store.open_run("run", RunConfig(clients=2, rounds=2).canonical_json())
    for client_id in BOTH:
        store.save_client(ClientRecord(client_id, 1, b"", b"", b""))
    store.save_snapshot(RunSnapshot(state=state, seconds=1.0).to_json())
    store.close()


async def serve(state_dir: Path, linger: timedelta) -> int:
    listen = ListenConfig(state_dir=state_dir, port=0, linger=linger)
    return await Server(ServerConfig(listen=listen, run=RunConfig(clients=2, rounds=2))).serve()


async def test_it_exits_at_once_where_all_clients_have_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "feddbp.server")
    finish_a_run(tmp_path, informed=BOTH)
    assert await serve(tmp_path, timedelta(days=1)) == ExitCode.OK
    assert "more --rounds extend it, another run needs another --state-dir" in caplog.text
    assert "waiting up to" not in caplog.text
    assert caplog.messages[-1] == "the server exits: the run is over, and no client waits for its end"


async def test_it_names_those_that_have_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "feddbp.server")
    finish_a_run(tmp_path, informed=frozenset())
    assert await serve(tmp_path, timedelta(0)) == ExitCode.OK
    assert caplog.messages[-1].startswith("the server exits; clients 0-1 have not received the end of the run: ")
