"""A whole run through engine and coordinator, over a store and without a network."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from coordinator_runs import (
    CLIENTS,
    CONFIG,
    PATIENCE,
    ROUNDS,
    Daemon,
    Server,
    as_sent,
    join_all,
    metrics_of,
    next_event,
    summary_of,
    whole_run,
)
from run_machine import ids
from wire_samples import prototypes_of

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.wire import Payload
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.store import MemoryStore, SqliteStore

# --- from the first join to the end ---


async def test_a_run_goes_from_first_join_to_end_on_pushed_events_alone(server: Server, tmp_path: Path) -> None:
    received: dict[int, list[str]] = {client_id: [] for client_id in range(CLIENTS)}

    async def live(client_id: int) -> None:
        daemon = await Daemon.join(server, client_id)
        async for sent in server.coordinator.follow(daemon.session):
            event = as_sent(sent)
            kind = event.WhichOneof("event")
            assert kind is not None
            received[client_id].append(kind)
            if kind == "round_opened":
                assert event.round_opened.selected
                await daemon.work(event.round_opened.round)
            elif kind == "final_evaluation":
                assert event.final_evaluation.round == ROUNDS
                await daemon.download(ROUNDS)
                await daemon.report(ROUNDS)
            elif kind == "run_ended":
                assert event.run_ended.outcome == pb.RUN_OUTCOME_FINISHED

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*map(live, range(CLIENTS)))
        await server.coordinator.ended(linger=timedelta(seconds=PATIENCE))
    await server.settled()
    assert server.phase is Phase.FINISHED
    for kinds in received.values():
        assert [kind for kind in kinds if kind != "waiting"] == [
            *["round_opened"] * ROUNDS,
            "final_evaluation",
            "run_ended",
        ]
    summary = summary_of(tmp_path)
    assert (summary["outcome"], summary["completed_rounds"]) == ("finished", ROUNDS)
    assert len(metrics_of(tmp_path)) == CLIENTS * (ROUNDS + 1)


async def test_clients_in_any_order_and_at_once_give_the_same_prototypes(
    tmp_path: Path, uninterrupted: tuple[dict[str, Any], list[dict[str, Any]]]
) -> None:
    async with Server(MemoryStore(), tmp_path) as server:
        daemons = (await join_all(server))[::-1]
        for number in range(ROUNDS):
            await asyncio.gather(*(daemon.work(number) for daemon in daemons))
            await server.until_round(number + 1)
        await asyncio.gather(*(daemon.report(ROUNDS) for daemon in daemons))
        await server.until_over()
    assert summary_of(tmp_path)["prototypes_sha256"] == uninterrupted[0]["prototypes_sha256"]
    assert metrics_of(tmp_path) == uninterrupted[1]


async def test_the_summary_is_of_this_run(server: Server, tmp_path: Path) -> None:
    await whole_run(server)
    summary = summary_of(tmp_path)
    assert summary["run_id"] == server.engine.run_id
    assert server.engine.run_id.startswith(f"{CONFIG.fingerprint}-")
    assert summary["prototypes_sha256"] == server.engine.aggregator.sha256
    assert summary["accuracy"]["last"]["weighted"] == (2 + 3 + 4) / 30
    assert [entry["architecture"] for entry in summary["per_client"]] == ["net0", "net1", "net2"]


async def stopped_with_one_report(server: Server) -> list[Daemon]:
    """A run that is over while all clients but the first have not sent their report on the last round."""
    daemons = await join_all(server)
    for number in range(ROUNDS):
        for daemon in daemons:
            await daemon.work(number)
        await server.until_round(number + 1)
    await daemons[0].report(ROUNDS)
    await server.coordinator.stop("enough")
    await server.until_over()
    return daemons


async def test_reports_that_arrive_after_the_end_are_in_the_summary(server: Server, tmp_path: Path) -> None:
    daemons = await stopped_with_one_report(server)
    before = summary_of(tmp_path)
    assert before["curve"][-1]["evaluated"] == 1
    await asyncio.gather(*(daemon.report(ROUNDS) for daemon in daemons))
    await server.settled()
    after = summary_of(tmp_path)
    assert after["curve"][-1]["evaluated"] == CLIENTS
    assert after["bytes_up"] == sum(line["bytes_up"] for line in metrics_of(tmp_path)) > before["bytes_up"]
    assert after["seconds"] == before["seconds"]


async def test_a_report_that_arrives_after_a_restart_does_not_count_the_time_since_the_end(tmp_path: Path) -> None:
    async with Server(SqliteStore(tmp_path), tmp_path) as server:
        daemons = await stopped_with_one_report(server)
        before = summary_of(tmp_path)
        await server.coordinator.leave(daemons[0].session, "done")
    async with Server(SqliteStore(tmp_path), tmp_path) as restarted:
        await daemons[1].moved_to(restarted).report(ROUNDS)
        await restarted.settled()
    after = summary_of(tmp_path)
    assert after["curve"][-1]["evaluated"] == 2
    assert after["seconds"] == before["seconds"]


async def test_two_runs_of_one_configuration_have_different_ids(tmp_path: Path) -> None:
    ids_seen = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        async with Server(MemoryStore(), tmp_path / name) as server:
            ids_seen.add(server.engine.run_id)
    assert len(ids_seen) == 2


async def test_the_first_download_is_empty_and_later_ones_are_personal(server: Server) -> None:
    daemons = await join_all(server)
    assert (await daemons[0].download(0)).prototypes is None
    for daemon in daemons:
        await daemon.work(0)
    await server.until_round(1)
    prototypes = [prototypes_of(await daemon.download(1)) for daemon in daemons]
    assert len({each.vectors.tobytes() for each in prototypes}) == CLIENTS
    assert all(each.class_ids.tolist() == [0, 1, 2, 3] for each in prototypes)


# --- deadlines ---


async def set_deadline(server: Server, seconds: float, *, min_clients: int = CLIENTS) -> None:
    """Gives the open round this many seconds from now."""
    await server.coordinator.pause()
    deadline = timedelta(seconds=seconds)
    server.engine.policy = replace(server.engine.policy, deadline=deadline, min_clients=min_clients)
    await server.coordinator.resume()


async def test_the_deadline_is_a_timer_and_needs_no_traffic(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path) as server:
        daemons = await join_all(server)
        for daemon in daemons[:2]:
            await daemon.work(0)
        assert server.engine.state.missing == ids(2)
        await set_deadline(server, 0.05, min_clients=2)
        await server.until(lambda run: run.state.round == 1)
        assert server.engine.state.members == ids(0, 1)


async def test_a_round_without_enough_uploads_is_extended_and_then_fails_naming_the_missing(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, max_extensions=2) as server:
        daemons = await join_all(server)
        await daemons[1].work(0)
        await set_deadline(server, 0.02)
        await server.until_over()
        status = status_of(server.view)
    assert status.phase == pb.PHASE_FAILED
    assert "missing: clients 0, 2" in status.reason
    extended = [incident.message for incident in status.incidents]
    assert extended == ["round 1/2 extended; missing: clients 0, 2 (2 times)"]
    assert summary_of(tmp_path)["outcome"] == "failed"
    assert summary_of(tmp_path)["completed_rounds"] == 0


async def test_the_time_to_the_deadline_is_shown(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, deadline=100) as server:
        await join_all(server)
        left = status_of(server.view).time_left.ToTimedelta().total_seconds()
        assert 95 < left <= 100


# --- failures ---


async def test_a_strategy_that_fails_fails_the_run_with_its_reason(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Payload:
        raise ArithmeticError("cannot count to three")

    monkeypatch.setattr(server.engine.aggregator._strategy, "aggregate", broken)
    daemons = await join_all(server)
    events = server.coordinator.follow(daemons[0].session)
    await next_event(events)
    for daemon in daemons:
        await daemon.work(0)
    ended = (await next_event(events)).run_ended
    assert ended.outcome == pb.RUN_OUTCOME_FAILED
    assert ended.reason == "round 1/2 could not be closed: cannot count to three"
    await server.until_over()
    summary = summary_of(tmp_path)
    assert (summary["outcome"], summary["reason"], summary["completed_rounds"]) == ("failed", ended.reason, 0)


class FailingStore(MemoryStore):
    """Fails to store uploads while `failing`."""

    failing = True

    def save_upload(self, record: Any, body: bytes) -> None:
        if self.failing:
            raise OSError("no space left on device")
        super().save_upload(record, body)


async def test_an_upload_that_could_not_be_stored_has_no_receipt_and_can_be_sent_again(tmp_path: Path) -> None:
    store = FailingStore()
    async with Server(store, tmp_path) as server:
        daemons = await join_all(server)
        with pytest.raises(OSError, match="no space left"):
            await daemons[0].upload(0)
        assert server.engine.state.uploaded == ids()
        store.failing = False
        assert not (await daemons[0].upload(0)).duplicate
