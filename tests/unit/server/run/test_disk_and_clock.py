"""Runs on a disk that fails, and with a clock that is set: no loss, no hang, and recovery without a restart."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from coordinator_runs import (
    CLIENTS,
    PATIENCE,
    ROUNDS,
    Daemon,
    Server,
    join_all,
    metrics_of,
    parts,
    summary_of,
    trained_upload,
    whole_run,
)
from run_machine import ids

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.wire import Payload
from feddbp_server.reporting.audit import Audit
from feddbp_server.reporting.metrics_log import MetricsLog
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.run.admission.refusals import RefusedError, as_refusal
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.store import MemoryStore, MonitoredStore, SqliteStore, StoreError, StoreWriter


class FullDisk(MemoryStore):
    """Fails to store the kinds of records in `full`."""

    def __init__(self) -> None:
        super().__init__()
        self.full: set[str] = set()

    def _check(self, what: str) -> None:
        if what in self.full or "everything" in self.full:
            raise sqlite3.OperationalError("database or disk is full")

    def touch(self) -> None:
        self._check("touch")

    def save_snapshot(self, progress: str) -> None:
        self._check("progress")
        super().save_snapshot(progress)

    def save_client(self, record: Any) -> None:
        self._check("client")
        super().save_client(record)

    def save_upload(self, record: Any, body: bytes) -> None:
        self._check("upload")
        super().save_upload(record, body)

    def save_report(self, record: Any) -> bool:
        self._check("report")
        return super().save_report(record)

    def save_aggregate(self, record: Any) -> None:
        self._check("aggregate")
        super().save_aggregate(record)

    def uploads(self, round_number: int) -> Any:
        self._check("read")
        return super().uploads(round_number)


@pytest.fixture
def disk() -> FullDisk:
    return FullDisk()


@pytest.fixture
async def server(disk: FullDisk, tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(disk, tmp_path) as started:
        started.engine.store._pause = timedelta(milliseconds=10)
        yield started


async def until_writable(server: Server) -> None:
    async with asyncio.timeout(PATIENCE):
        await server.engine.store.wait_until_writable()


@pytest.fixture
def expected_sha256(uninterrupted: tuple[dict[str, Any], list[dict[str, Any]]]) -> str:
    sha256: str = uninterrupted[0]["prototypes_sha256"]
    return sha256


# --- a full disk ---


async def test_an_upload_that_cannot_be_stored_is_refused_and_may_be_repeated(server: Server, disk: FullDisk) -> None:
    daemons = await join_all(server)
    disk.full = {"upload", "touch"}
    with pytest.raises(Exception, match="disk is full; try again later") as refusal:
        await daemons[0].upload(0)
    assert refusal.value.details.reason == pb.REFUSAL_REASON_STORAGE  # type: ignore[attr-defined]
    assert server.engine.state.uploaded == ids()
    disk.full = set()
    await until_writable(server)
    assert not (await daemons[0].upload(0)).duplicate


async def test_while_the_store_is_not_writable_uploads_are_refused_on_their_header(
    server: Server, disk: FullDisk
) -> None:
    daemons = await join_all(server)
    disk.full = {"upload", "touch"}
    with pytest.raises(Exception, match="disk is full"):
        await daemons[0].upload(0)
    parts_read = 0

    async def counted() -> AsyncIterator[pb.UploadPart]:
        nonlocal parts_read
        async for part in parts(daemons[1].secret, 0, trained_upload(1, 0, Payload())):
            parts_read += 1
            part.header.awaits_admission = True
            yield part

    with pytest.raises(RefusedError, match="disk is full"):
        await server.upload(counted())
    assert parts_read == 1


async def test_the_status_shows_storage_trouble_until_it_is_over(server: Server, disk: FullDisk) -> None:
    daemons = await join_all(server)
    disk.full = {"report", "touch"}
    with pytest.raises(StoreError):
        await daemons[0].report(0)
    status = status_of(server.view)
    assert status.reason == "the state directory cannot be used: database or disk is full"
    assert [incident.message for incident in status.incidents] == [status.reason]
    disk.full = set()
    await until_writable(server)
    assert status_of(server.view).reason == ""


async def test_storage_trouble_is_reported_once_for_any_number_of_calls(server: Server, disk: FullDisk) -> None:
    daemons = await join_all(server)
    disk.full = {"report", "touch"}
    for _ in range(5):
        with pytest.raises(StoreError):
            await daemons[0].report(0)
    assert len(server.engine.event_log.incidents) == 1


async def test_a_join_that_cannot_be_stored_leaves_the_id_free(server: Server, disk: FullDisk) -> None:
    disk.full = {"client"}
    with pytest.raises(StoreError):
        await Daemon.join(server, 0)
    disk.full = set()
    await until_writable(server)
    assert (await Daemon.join(server, 0)).client_id == 0
    assert server.engine.state.members == ids(0)


@pytest.mark.parametrize("what", ["aggregate", "progress", "read"])
async def test_a_round_that_cannot_be_closed_closes_once_the_disk_has_room(
    what: str, server: Server, disk: FullDisk, tmp_path: Path, expected_sha256: str
) -> None:
    daemons = await join_all(server)
    for daemon in daemons[:-1]:
        await daemon.work(0)
    disk.full = {what, "touch"}
    await daemons[-1].work(0)
    await server.until(lambda run: bool(run.storage_trouble))
    assert (server.phase, server.engine.state.round) == (Phase.AGGREGATING, 0)
    disk.full = set()
    await server.until_round(1)
    for daemon in daemons:
        await daemon.work(1)
    await server.until_round(2)
    for daemon in daemons:
        await daemon.report(2)
    await server.until_over()
    assert summary_of(tmp_path)["prototypes_sha256"] == expected_sha256


async def test_uploads_that_cannot_be_read_fail_the_run(server: Server, disk: FullDisk, tmp_path: Path) -> None:
    daemons = await join_all(server)
    disk.full = {"read"}  # writing works: the disk is not full, the file is damaged
    for daemon in daemons:
        await daemon.work(0)
    await server.until_over()
    assert server.phase is Phase.FAILED
    assert "round 1/2 could not be closed" in summary_of(tmp_path)["reason"]


async def test_a_deadline_that_passes_while_the_disk_is_full_is_applied_later(disk: FullDisk, tmp_path: Path) -> None:
    async with Server(disk, tmp_path, min_clients=1, deadline=0.2) as server:
        server.engine.store._pause = timedelta(milliseconds=10)
        await Daemon.join(server, 0)
        disk.full = {"progress", "touch"}
        await server.until(lambda run: bool(run.storage_trouble))
        assert server.engine.state.extensions == 0
        disk.full = set()
        await server.until(lambda run: run.state.extensions >= 1)


async def test_a_draining_server_does_not_wait_for_a_full_disk(
    disk: FullDisk, tmp_path: Path, expected_sha256: str
) -> None:
    async with asyncio.timeout(PATIENCE):
        async with Server(disk, tmp_path) as server:
            daemons = await join_all(server)
            disk.full = {"aggregate", "touch"}
            for daemon in daemons:
                await daemon.work(0)
            await server.until(lambda run: bool(run.storage_trouble))
        disk.full = set()
        async with Server(disk, tmp_path) as another:
            daemons = [daemon.moved_to(another) for daemon in daemons]
            await another.until_round(1)
            for daemon in daemons:
                await daemon.work(1)
            await another.until_round(2)
            for daemon in daemons:
                await daemon.report(2)
            await another.until_over()
    assert summary_of(tmp_path)["prototypes_sha256"] == expected_sha256


async def test_an_upload_that_was_stored_but_not_applied_counts_when_it_is_repeated(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons = await join_all(server)
    note = server.engine.event_log.audit.record

    def broken(what: str, **facts: Any) -> None:
        if what == "accepted":
            raise RuntimeError("between the commit and its consequences")
        note(what, **facts)

    monkeypatch.setattr(server.engine.event_log.audit, "record", broken)
    with pytest.raises(RuntimeError):
        await daemons[0].upload(0)
    monkeypatch.undo()
    assert (await daemons[0].upload(0)).duplicate
    assert server.engine.state.uploaded == ids(0)


async def test_an_operators_call_is_refused_while_the_disk_is_full(server: Server, disk: FullDisk) -> None:
    disk.full = {"progress", "touch"}
    with pytest.raises(StoreError) as error:
        await server.coordinator.pause()
    assert as_refusal(error.value).details.reason == pb.REFUSAL_REASON_STORAGE
    assert server.phase is not Phase.PAUSED


async def test_only_storage_failures_count_as_storage_trouble(tmp_path: Path) -> None:
    """A wrong statement is a programming error and no evidence against the disk."""
    thread = StoreWriter(SqliteStore(tmp_path))
    watched = MonitoredStore(thread, changed=lambda: None)
    for broken, kind in ((ZeroDivisionError(), ZeroDivisionError), (sqlite3.IntegrityError(), sqlite3.IntegrityError)):

        def fail(_: object, error: Exception = broken) -> None:
            raise error

        with pytest.raises(kind):
            await watched.run(fail)
        assert watched.trouble == ""
    await watched.stop_watching()
    await thread.close()


async def test_a_database_that_was_removed_accepts_no_more_writes(tmp_path: Path) -> None:
    """The removed file would still accept writes, and be lost with the process."""
    async with Server(SqliteStore(tmp_path), tmp_path) as server:
        daemons = await join_all(server)
        (tmp_path / "run.sqlite3").rename(tmp_path / "elsewhere")
        with pytest.raises(Exception, match=r"run\.sqlite3: No such file or directory"):
            await daemons[0].upload(0)
        (tmp_path / "elsewhere").rename(tmp_path / "run.sqlite3")
        await until_writable(server)
        assert not (await daemons[0].upload(0)).duplicate


# --- files beside the database ---


async def test_a_metrics_or_audit_file_that_cannot_be_written_fails_no_call(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemons = await join_all(server)
    metrics = tmp_path / "metrics.jsonl"
    metrics.unlink()
    metrics.mkdir()
    for number in range(ROUNDS):
        for daemon in daemons:
            await daemon.work(number)
        await server.until_round(number + 1)
    metrics.rmdir()
    for daemon in daemons:
        await daemon.report(ROUNDS)
    await server.until_over()
    assert len(metrics_of(tmp_path)) == CLIENTS * (ROUNDS + 1)  # missing lines were added at the end
    assert caplog.text.count("metrics.jsonl cannot be written") == 1


def test_entries_that_the_audit_log_lacks_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "audit.jsonl"
    path.symlink_to("/dev/full")
    audit = Audit(tmp_path)
    audit.record("left", client=1)
    audit.record("left", client=2)
    path.unlink()
    audit.record("joined", client=3)
    audit.close()
    assert [json.loads(line)["client"] for line in path.read_text().splitlines()] == [3]
    assert caplog.text.count("the audit log cannot be written: No space left on device") == 1
    assert "the audit log can be written again; missing lines: 2" in caplog.text


async def test_a_summary_that_cannot_be_written_is_written_by_the_next_start(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "summary.json").mkdir()
    async with Server(store, tmp_path) as server:
        await whole_run(server)
        assert server.phase is Phase.FINISHED
    (tmp_path / "summary.json").rmdir()
    async with Server(store, tmp_path):
        pass
    assert summary_of(tmp_path)["outcome"] == "finished"


# --- a clock that is set ---


class WallClock:
    """Replaces `time.time` in the whole process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offset = 0.0
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + self.offset)

    def jump(self, jump: timedelta) -> None:
        self.offset += jump.total_seconds()


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(monkeypatch)


@pytest.mark.parametrize("jump", [timedelta(days=400), timedelta(days=-400)], ids=["forward", "back"])
async def test_setting_the_clock_does_not_move_a_deadline(
    jump: timedelta, wall_clock: WallClock, tmp_path: Path
) -> None:
    async with Server(MemoryStore(), tmp_path, min_clients=1, deadline=60) as server:
        await Daemon.join(server, 0)
        wall_clock.jump(jump)
        left = status_of(server.view).time_left.ToTimedelta()
        assert timedelta(seconds=30) < left <= timedelta(seconds=60)
        await asyncio.sleep(0.05)
        assert server.engine.state.extensions == 0
    async with Server(MemoryStore(), tmp_path, min_clients=1, deadline=0.05) as hasty:
        await Daemon.join(hasty, 0)
        wall_clock.jump(-jump)
        await hasty.until(lambda run: run.state.extensions >= 1)


@pytest.mark.parametrize("jump", [timedelta(days=400), timedelta(days=-400)], ids=["forward", "back"])
async def test_setting_the_clock_ends_no_lease_and_drops_no_client(
    jump: timedelta, wall_clock: WallClock, tmp_path: Path
) -> None:
    async with Server(MemoryStore(), tmp_path) as server:
        daemons = await join_all(server)
        wall_clock.jump(jump)
        with pytest.raises(Exception, match="client 0 is in use by another daemon"):
            await Daemon.join(server, 0)
        for daemon in daemons:
            await daemon.work(0)
        await server.until_round(1)
        assert server.engine.state.members == ids(0, 1, 2)


async def test_a_run_over_a_clock_that_is_set_back_has_a_summary_that_makes_sense(
    wall_clock: WallClock, tmp_path: Path, expected_sha256: str
) -> None:
    async with Server(MemoryStore(), tmp_path) as server:
        wall_clock.jump(timedelta(days=-400))
        await whole_run(server)
    summary = summary_of(tmp_path)
    assert summary["prototypes_sha256"] == expected_sha256
    assert summary["seconds"] >= 0


def test_metrics_are_completed_only_if_lines_are_missing(tmp_path: Path) -> None:
    results = MetricsLog(tmp_path)
    results.restore([])
    results.complete([])  # nothing was missing: the file is left alone
    assert (tmp_path / "metrics.jsonl").read_text() == ""
