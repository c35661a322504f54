"""A run whose server is restarted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coordinator_runs import (
    CLIENTS,
    CONFIG,
    ROUNDS,
    Daemon,
    Server,
    as_sent,
    join_all,
    metrics_of,
    summary_of,
    trained_upload,
    whole_run,
)
from run_machine import ids

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.wire import Encoded, Payload, decode, encode
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.store import MemoryStore, RunMismatchError, SqliteStore

Result = tuple[dict[str, Any], list[dict[str, Any]]]


async def run_with_restart(store: MemoryStore | SqliteStore, directory: Path, *, after: int, rejoin: bool) -> None:
    """The whole run, but the server is another one after so many reports and uploads."""
    server = Server(store, directory)
    await server.engine.start()
    daemons = await join_all(server)
    steps = 0

    async def another_server() -> None:
        nonlocal server, daemons, store
        await server.crash()
        if isinstance(store, SqliteStore):
            store = SqliteStore(directory)
        server = Server(store, directory)
        await server.engine.start()
        if rejoin:
            daemons = [await Daemon.join(server, daemon.client_id, previous=daemon.secret) for daemon in daemons]
        else:
            daemons = [daemon.moved_to(server) for daemon in daemons]

    async def stepped() -> None:
        nonlocal steps
        steps += 1
        if steps == after:
            await another_server()

    for number in range(ROUNDS):
        for client_id in range(CLIENTS):
            await daemons[client_id].report(number)
            await stepped()
            await daemons[client_id].upload(number)
            await stepped()
        await server.until_round(number + 1)
    for client_id in range(CLIENTS):
        await daemons[client_id].report(ROUNDS)
        await stepped()
    await server.until_over()
    await server.crash()


@pytest.mark.parametrize("after", range(1, 2 * CLIENTS * ROUNDS + CLIENTS))
async def test_a_restart_at_any_moment_does_not_change_the_outcome(
    tmp_path: Path, uninterrupted: Result, after: int
) -> None:
    await run_with_restart(MemoryStore(), tmp_path, after=after, rejoin=bool(after % 2))
    summary = summary_of(tmp_path)
    assert summary["prototypes_sha256"] == uninterrupted[0]["prototypes_sha256"]
    assert (summary["outcome"], summary["curve"]) == ("finished", uninterrupted[0]["curve"])
    assert metrics_of(tmp_path) == uninterrupted[1]


async def test_a_restart_from_disk_does_not_change_the_outcome(tmp_path: Path, uninterrupted: Result) -> None:
    await run_with_restart(SqliteStore(tmp_path), tmp_path, after=8, rejoin=True)
    assert summary_of(tmp_path)["prototypes_sha256"] == uninterrupted[0]["prototypes_sha256"]
    assert metrics_of(tmp_path) == uninterrupted[1]


@pytest.mark.parametrize("kept", ["own", "last"])
async def test_what_a_client_receives_in_fine_tuning_once_it_was_left_out_survives_a_restart(
    kept: str, tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"rounds": 4, "finetune_rounds": 2, "finetune_state": kept})
    async with Server(SqliteStore(tmp_path), tmp_path, config=config) as first:
        daemons = await join_all(first)
        for number in range(3):
            for daemon in daemons:
                is_far = (daemon.client_id, number) == (2, 1)  # in the last exchange
                sent = far_upload(number) if is_far else trained_upload(daemon.client_id, number, Payload())
                await daemon.send(number, sent)
            await first.until_round(number + 1)
            assert first.engine.state.left_out == (ids(2) if number == 1 else ids())
        before = [encode(await daemon.download(3)).manifest for daemon in daemons]
    async with Server(SqliteStore(tmp_path), tmp_path, config=config) as second:
        daemons = [daemon.moved_to(second) for daemon in daemons]
        assert [encode(await daemon.download(3)).manifest for daemon in daemons] == before


def far_upload(number: int) -> Encoded:
    """Of client 2, and too far from those of the others to be averaged."""
    sent = trained_upload(2, number, Payload())
    payload = decode(sent.manifest, sent.body())
    assert payload.prototypes is not None
    far = replace(payload.prototypes, vectors=payload.prototypes.vectors * np.float32(1000))
    return encode(replace(payload, prototypes=far))


async def test_a_restarted_server_resumes_the_open_round_of_its_run(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path) as first:
        daemons = await join_all(first)
        await daemons[1].work(0)
        run_id = first.engine.run_id
    async with Server(store, tmp_path) as second:
        assert second.engine.run_id == run_id
        state = second.engine.state
        assert (state.phase, state.round, state.uploaded, state.reported) == (Phase.COLLECTING, 0, ids(1), ids(1))
        assert state.members == ids(0, 1, 2)
        assert state.connected == ids()


async def test_a_paused_run_is_paused_after_a_restart(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path, deadline=100) as first:
        await join_all(first)
        await first.coordinator.pause()
    async with Server(store, tmp_path, deadline=100) as second:
        assert (second.phase, second.engine.state.held_phase) == (Phase.PAUSED, Phase.COLLECTING)
        assert second.engine.state.deadline is None
        await second.coordinator.resume()
        assert second.phase is Phase.COLLECTING
        assert second.engine.state.deadline is not None


async def test_a_restart_restarts_the_deadline(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path, min_clients=1, deadline=100) as first:
        await Daemon.join(first, 0)
    async with Server(store, tmp_path, min_clients=1, deadline=0.05) as second:
        await second.until(lambda run: run.state.extensions == 1)


async def test_a_finished_run_stays_finished_and_its_summary_is_written_again(
    tmp_path: Path, uninterrupted: Result
) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path) as first:
        await whole_run(first)
    (tmp_path / "summary.json").unlink()
    async with Server(store, tmp_path) as second:
        assert second.phase is Phase.FINISHED
        daemon = second.engine.sessions.get(0)
        assert daemon is not None
        events = [as_sent(event) async for event in second.coordinator.follow(daemon)]
    assert [event.run_ended.outcome for event in events] == [pb.RUN_OUTCOME_FINISHED]
    assert summary_of(tmp_path)["prototypes_sha256"] == uninterrupted[0]["prototypes_sha256"]


async def test_another_configuration_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path) as server:
        await Daemon.join(server, 0)
    other = CONFIG.model_copy(update={"seed": 7})
    with pytest.raises(RunMismatchError, match="seed is 0 there and 7 here"):
        async with Server(store, tmp_path, config=other):
            pass


async def test_participation_is_part_of_the_configuration(tmp_path: Path) -> None:
    store = MemoryStore()
    async with Server(store, tmp_path, config=CONFIG.model_copy(update={"participation": 0.5})) as server:
        await Daemon.join(server, 0)
    with pytest.raises(RunMismatchError, match=r"participation is 0\.5 there and 1\.0 here"):
        async with Server(store, tmp_path):
            pass


async def test_metrics_of_an_earlier_run_in_the_directory_are_not_mixed_with_this_one(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"client": 0, "round": 0, "accuracy": 1.0}\n')
    async with Server(MemoryStore(), tmp_path) as server:
        daemons = await join_all(server)
        await daemons[2].report(0)
    (line,) = metrics_of(tmp_path)
    assert line["client"] == 2


async def test_superseded_uploads_are_deleted(server: Server) -> None:
    await whole_run(server)
    await server.settled()
    kept = await server.thread.run(lambda store: [len(store.uploads(number)) for number in range(ROUNDS)])
    assert kept == [0, CLIENTS]


async def test_clients_that_joined_before_the_first_round_are_members_after_a_restart(tmp_path: Path) -> None:
    """No snapshot was written for them: each has a row, and a snapshot of all members would be one for every join."""
    store = MemoryStore()
    server = await Server(store, tmp_path).__aenter__()
    for client_id in (0, 1):
        await Daemon.join(server, client_id)
    assert store.snapshot() is None
    await server.crash()
    async with Server(store, tmp_path) as again:
        assert again.engine.state.members == ids(0, 1)
        await Daemon.join(again, 2)
        await again.until_round(0)
        assert store.new_members() == frozenset()
        assert again.engine.state.selected == ids(0, 1, 2)


async def test_a_client_that_left_before_the_first_round_is_no_member_after_a_restart(tmp_path: Path) -> None:
    store = MemoryStore()
    server = await Server(store, tmp_path).__aenter__()
    daemons = [await Daemon.join(server, client_id) for client_id in (0, 1)]
    await server.coordinator.leave(daemons[0].session, "away")
    await server.crash()
    async with Server(store, tmp_path) as again:
        assert again.engine.state.members == ids(1)
