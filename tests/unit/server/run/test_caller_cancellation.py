"""Calls that are cancelled while the store is writing: what becomes durable is also applied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coordinator_runs import PATIENCE, Daemon, Server, join_all, metrics_of, next_event
from run_machine import ids
from slow_disk import SlowDisk

from feddbp_server.run.state_machine.state import Phase


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
async def server(disk: SlowDisk, tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(disk, tmp_path) as started:
        yield started


async def cancelled(server: Server, disk: SlowDisk, what: str, call: Coroutine[Any, Any, Any]) -> None:
    """Makes a call, cancels it while the store writes `what`, and waits for the shielded rest."""
    disk.slow_at = what
    calling = asyncio.create_task(call)
    assert await asyncio.to_thread(disk.reached.wait, PATIENCE)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    disk.slow_at = ""
    disk.released.set()
    await server.settled()


async def test_a_report_counts_although_its_caller_was_cancelled(
    server: Server, disk: SlowDisk, tmp_path: Path
) -> None:
    daemon, *_ = await join_all(server)
    await cancelled(server, disk, "report", daemon.report(0))
    assert server.engine.state.reported == ids(0)
    assert [line["client"] for line in metrics_of(tmp_path)] == [0]
    assert server.engine.metrics_log.traffic.up == 100
    await daemon.report(0)  # the client has no answer and repeats the call
    assert len(metrics_of(tmp_path)) == 1


async def test_an_upload_counts_although_its_caller_was_cancelled(
    server: Server, disk: SlowDisk, tmp_path: Path
) -> None:
    daemon, *_ = await join_all(server)
    await cancelled(server, disk, "upload", daemon.upload(0))
    assert server.engine.state.uploaded == ids(0)
    assert '"accepted"' in (tmp_path / "audit.jsonl").read_text()
    assert (await daemon.upload(0)).duplicate


@pytest.mark.parametrize("what", ["client", "member"])
async def test_a_session_whose_caller_was_cancelled_does_not_block_its_id(
    server: Server, disk: SlowDisk, what: str
) -> None:
    await cancelled(server, disk, what, Daemon.join(server, 0))
    daemon = await Daemon.join(server, 0)
    assert server.engine.sessions.is_current(daemon.session)


async def test_a_client_has_left_although_its_call_was_cancelled(server: Server, disk: SlowDisk) -> None:
    daemon, *_ = await join_all(server)
    await cancelled(server, disk, "client", server.coordinator.leave(daemon.session, "enough"))
    assert 0 not in server.engine.state.members
    assert not server.engine.sessions.is_current(daemon.session)


async def test_a_cancelled_pause_is_applied_in_memory_and_on_disk(server: Server, disk: SlowDisk) -> None:
    await join_all(server)
    await cancelled(server, disk, "snapshot", server.coordinator.pause())
    assert server.phase is Phase.PAUSED


async def test_a_round_opened_by_a_cancelled_follower_is_open_in_memory_and_on_disk(
    server: Server, disk: SlowDisk
) -> None:
    daemon = await Daemon.join(server, 0)
    staying = server.coordinator.follow(daemon.session)  # so that no disconnection repeats the step
    await next_event(staying)
    server.engine.policy = replace(server.engine.policy, min_clients=1)
    await cancelled(server, disk, "snapshot", next_event(server.coordinator.follow(daemon.session)))
    assert '"collecting"' in (disk.snapshot() or "")
    assert server.phase is Phase.COLLECTING
    await staying.aclose()
