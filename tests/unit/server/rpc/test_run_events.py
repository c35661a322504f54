"""The events and prototypes of a run, as operators watch them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from coordinator_runs import (
    CLASSES,
    CLIENTS,
    PATIENCE,
    ROUNDS,
    WIDTH,
    Daemon,
    Server,
    held_classes,
    join_all,
    whole_run,
)

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import CLIENTS_NAME, ROUNDS_NAME
from feddbp_common.wire import PrototypeSet, decode
from feddbp_server.reporting.history import RunHistory, read_rounds
from feddbp_server.reporting.prototype_snapshots import PrototypeSnapshots, snapshot_files
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.store import MemoryStore


async def events_in(stream: AsyncIterator[pb.RunEvents]) -> list[pb.RunEvent]:
    async with asyncio.timeout(PATIENCE):
        return [event async for page in stream for event in page.events]


def kinds(events: list[pb.RunEvent]) -> list[str]:
    return [str(event.WhichOneof("event")) for event in events]


def reports_in(events: list[pb.RunEvent]) -> list[tuple[int, int]]:
    reports = [event.client_reported for event in events if event.HasField("client_reported")]
    return [(report.round, report.client_id) for report in reports]


def rounds_in(events: list[pb.RunEvent]) -> list[int]:
    return [event.round_closed.round for event in events if event.HasField("round_closed")]


async def test_a_watcher_from_the_start_and_one_after_the_end_receive_the_same_run(server: Server) -> None:
    watching = asyncio.create_task(events_in(server.events.watch(pb.WatchRunRequest())))
    await asyncio.sleep(0)
    await whole_run(server)
    live, later = await watching, await events_in(server.events.watch(pb.WatchRunRequest()))

    for events in (live, later):
        assert kinds(events)[0] == "run_started"
        assert kinds(events)[-1] == "run_ended"
        assert kinds(events).count("history_complete") == 1
        assert sorted(reports_in(events)) == [(n, c) for n in range(ROUNDS + 1) for c in range(CLIENTS)]
        assert rounds_in(events) == list(range(ROUNDS))
        assert {event.client_joined.client_id for event in events if event.HasField("client_joined")} == {0, 1, 2}
    assert live[0].run_started.config.clients == CLIENTS
    assert live[-1].run_ended.outcome == pb.RUN_OUTCOME_FINISHED
    assert list(later[1].client_joined.data.label_counts) == [5, 5, 0, 0]


async def test_a_closed_round_has_the_times_of_its_clients(server: Server, tmp_path: Path) -> None:
    await whole_run(server)
    events = await events_in(server.events.watch(pb.WatchRunRequest()))
    closed = next(event.round_closed for event in events if event.HasField("round_closed"))
    assert [times.client_id for times in closed.clients] == list(range(CLIENTS))
    for times in closed.clients:
        steps = [times.download_begun, times.download_ended, times.upload_begun, times.upload_ended]
        assert steps == sorted(steps)
        assert steps[-1] <= closed.seconds + 1e-3
    assert [record.round for record in read_rounds(tmp_path / ROUNDS_NAME).entries] == list(range(ROUNDS))
    clients = [json.loads(line) for line in (tmp_path / CLIENTS_NAME).read_text().splitlines()]
    assert [line["client"] for line in clients] == list(range(CLIENTS))
    assert clients[2]["label_counts"] == [5 if number in held_classes(2) else 0 for number in range(CLASSES)]


async def test_a_caller_may_leave_out_rounds_it_has(server: Server) -> None:
    await whole_run(server)
    events = await events_in(server.events.watch(pb.WatchRunRequest(from_round=1)))
    assert {number for number, _ in reports_in(events)} == {1, 2}
    assert rounds_in(events) == [1]


async def test_the_history_alone_ends_before_the_run_does(server: Server) -> None:
    daemon = await Daemon.join(server, 0)
    events = await events_in(server.events.watch(pb.WatchRunRequest(history_only=True)))
    assert kinds(events) == ["run_started", "client_joined", "history_complete"]
    assert events[1].client_joined.capabilities.architecture == daemon.session.capabilities.architecture


async def test_a_round_that_is_written_twice_counts_once_and_damaged_lines_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Server(MemoryStore(), tmp_path) as server:
        await whole_run(server)
    path = tmp_path / ROUNDS_NAME
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{second}\n{second}\n{first[:40]}\n[]\n{second[:40]}")
    read = read_rounds(path)
    assert [record.round for record in read.entries] == [0, 1]
    assert read.damaged == 2
    assert [record.round for record in RunHistory(tmp_path).rounds()] == [0, 1]
    assert f"{ROUNDS_NAME}: 2 damaged lines were left out" in caplog.text


async def test_a_watcher_that_does_not_read_is_told_to_watch_again(tmp_path: Path) -> None:
    limits = replace(DEFAULT_LIMITS, watched_events=2)
    async with Server(MemoryStore(), tmp_path, limits=limits) as server:
        stream = server.events.watch(pb.WatchRunRequest())
        await anext(stream)  # the first page; from here on nothing is read
        await whole_run(server)
        with pytest.raises(RefusedError, match="watch again"):
            await events_in(stream)


async def test_streams_of_events_are_limited(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, limits=replace(DEFAULT_LIMITS, status_watchers=1)) as server:
        first = server.events.watch(pb.WatchRunRequest())
        await anext(first)
        with pytest.raises(RefusedError, match="watched 1 times"):
            await anext(server.events.watch(pb.WatchRunRequest()))


# --- prototypes ---


async def prototypes_in(server: Server, from_round: int = 0) -> dict[int, PrototypeSet]:
    found: dict[int, PrototypeSet] = {}
    headers: list[pb.PrototypesHeader] = []
    bodies: list[bytes] = []
    async for part in server.events.prototypes(pb.GetPrototypesRequest(from_round=from_round)):
        if part.HasField("header"):
            headers.append(part.header)
            bodies.append(b"")
        else:
            bodies[-1] += part.chunk.data
    for header, body in zip(headers, bodies, strict=True):
        prototypes = decode(header.manifest, body).prototypes
        assert prototypes is not None
        found[header.round] = prototypes
    return found


async def test_a_run_shares_its_prototypes_only_if_told_to(server: Server) -> None:
    await join_all(server)
    with pytest.raises(RefusedError, match="--share-prototypes-with-operators"):
        await prototypes_in(server)
    with pytest.raises(RefusedError, match="--share-prototypes-with-operators"):
        await anext(server.events.client_prototypes(pb.GetClientPrototypesRequest(client_id=0)))


async def test_operators_read_the_prototypes_of_every_round(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, shares_prototypes=True) as server:
        await whole_run(server)
        found = await prototypes_in(server)
        assert sorted(found) == [1, 2]
        assert found[2].vectors.shape == (CLASSES, WIDTH)
        assert sorted(await prototypes_in(server, from_round=2)) == [2]
    with np.load(tmp_path / "prototypes" / "clients.npz") as clients:
        assert sorted(set(clients["client_ids"].tolist())) == list(range(CLIENTS))
        assert int(clients["channels"]) == WIDTH


async def test_a_clients_prototypes_are_compared_with_the_global_ones(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, shares_prototypes=True) as server:
        await whole_run(server)
        request = pb.GetClientPrototypesRequest(client_id=2)
        rows = [row async for row in server.events.client_prototypes(request)]
        assert [row.class_id for row in rows] == held_classes(2)
        assert all(len(row.kept_channels) == 2 and row.channels == WIDTH and row.samples == 5 for row in rows)
        # classes 3 and 2: client 2 shares class 2 with client 1, and alone has class 3
        assert rows[1].distance == pytest.approx(0, abs=1e-6)
        assert rows[1].cosine == pytest.approx(1)
        assert rows[0].distance > 0
        with pytest.raises(RefusedError, match="never joined"):
            await anext(server.events.client_prototypes(pb.GetClientPrototypesRequest(client_id=9)))


def test_snapshots_of_a_long_run_are_thinned_and_keep_the_first_and_the_newest(tmp_path: Path) -> None:
    snapshots = PrototypeSnapshots(tmp_path)
    prototypes = PrototypeSet(class_ids=np.arange(2, dtype=np.int32), vectors=np.ones((2, 3), np.float32))
    for number in range(1, 201):
        snapshots.save(number, prototypes)
    rounds = snapshots.rounds()
    assert rounds[0] == 1
    assert rounds[-1] == 200
    assert 20 <= len(rounds) <= 40
    assert set(np.diff(rounds[1:-1])) == {8}
    assert snapshots.read(200) is not None
    assert snapshots.read(3) is None


def test_a_damaged_snapshot_is_passed_over(tmp_path: Path) -> None:
    snapshots = PrototypeSnapshots(tmp_path)
    snapshots.save(1, PrototypeSet(class_ids=np.arange(2, dtype=np.int32), vectors=np.ones((2, 3), np.float32)))
    snapshot_files(tmp_path)[1].write_bytes(b"PK\x03\x04 nothing")
    assert snapshots.read(1) is None
