"""Operators drop, block and allow clients while a run goes on."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from coordinator_runs import (
    CLIENTS,
    CONFIG,
    PATIENCE,
    Daemon,
    Server,
    accept,
    activities,
    join_all,
    join_request,
    next_event,
    refusal_of,
    trained_upload,
    until_waited_for,
)
from run_machine import ids
from slow_disk import SlowDisk

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import AUDIT_NAME, ROUNDS_NAME
from feddbp_common.config.run import RunConfig
from feddbp_common.wire import Payload, PrototypeSet, decode, encode
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.state_machine.events import Blocked
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.store import ClientRecord, MemoryStore, SqliteStore, Store, StoreError

TWO_OF_THREE: dict[str, Any] = {"min_clients": 2, "clients": CLIENTS, "join_window": timedelta(days=1)}


def trained_prototypes(client_id: int) -> PrototypeSet:
    """What a client uploads to the first round."""
    encoded = trained_upload(client_id, 0, Payload())
    prototypes = decode(encoded.manifest, encoded.body()).prototypes
    assert prototypes is not None
    return prototypes


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path)


async def test_a_round_goes_on_without_a_dropped_client_which_may_join_again(store: Store, tmp_path: Path) -> None:
    async with Server(store, tmp_path, **TWO_OF_THREE) as server:
        first, second, third = await join_all(server)
        events = server.coordinator.follow(third.session)
        assert (await next_event(events)).HasField("round_opened")
        await first.work(0)
        await second.work(0)
        assert await server.coordinator.drop(2, "stuck")
        assert not await server.coordinator.drop(2, "stuck")
        await server.until_round(1)
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        assert (
            await refusal_of(third.send(0, trained_upload(2, 0, Payload())))
        ).reason == pb.REFUSAL_REASON_STALE_SESSION
        await Daemon.join(server, 2)
        assert 2 in server.engine.state.members
        assert await server.coordinator.drop(2, "stuck again")


async def test_a_blocked_client_is_shut_out_until_it_is_allowed_again(tmp_path: Path) -> None:
    async with Server(SqliteStore(tmp_path), tmp_path, **TWO_OF_THREE) as server:
        first, second, third = await join_all(server)
        await third.work(0)
        assert await server.coordinator.block(2, "certificate stolen")
        assert not await server.coordinator.block(2, "certificate stolen")
        assert server.engine.state.uploaded == ids()
        assert activities(server)[2] == pb.CLIENT_ACTIVITY_BLOCKED
        assert list(status_of(server.view).blocked) == [2]
        again = server.coordinator.join(join_request(server.coordinator, 2, previous=third.secret))
        assert (await refusal_of(again)).reason == pb.REFUSAL_REASON_BLOCKED
        await first.work(0)
    async with Server(SqliteStore(tmp_path), tmp_path, **TWO_OF_THREE) as restarted:
        assert restarted.engine.state.blocked == ids(2)
        await second.moved_to(restarted).work(0)
        await restarted.until_round(1)
        assert not await restarted.thread.run(lambda store: store.upload(2, 0))
        assert await restarted.coordinator.allow(2)
        assert not await restarted.coordinator.allow(2)
        await Daemon.join(restarted, 2)
        assert restarted.engine.state.members == ids(0, 1, 2)
    entries = [json.loads(line) for line in (tmp_path / AUDIT_NAME).read_text().splitlines()]
    operated = [entry for entry in entries if entry["what"].endswith("_by_operator")]
    assert [(entry["what"], entry["client"]) for entry in operated] == [
        ("blocked_by_operator", 2),
        ("allowed_by_operator", 2),
    ]
    assert operated[0]["reason"] == "certificate stolen"


async def test_an_upload_that_comes_while_a_block_deletes_the_one_before_is_refused(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with Server(disk, tmp_path, **TWO_OF_THREE) as server:
        third = (await join_all(server))[2]
        disk.slow_at = "forgotten upload"
        blocking = asyncio.create_task(server.coordinator.block(2, ""))
        assert await asyncio.to_thread(disk.reached.wait, PATIENCE)
        uploading = asyncio.create_task(accept(server, third, trained_upload(2, 0, Payload())))
        await until_waited_for(server.engine.sessions.lock_of(2))
        disk.released.set()
        assert await blocking
        assert (await refusal_of(uploading)).reason == pb.REFUSAL_REASON_STALE_SESSION
        assert await server.thread.run(lambda store: store.uploads(0)) == []


@pytest.mark.parametrize("first", ["block", "upload"])
async def test_no_upload_of_a_client_is_averaged_that_is_blocked_at_the_same_time(first: str, tmp_path: Path) -> None:
    async with Server(SqliteStore(tmp_path), tmp_path, **TWO_OF_THREE) as server:
        third = (await join_all(server))[2]
        calls = [accept(server, third, trained_upload(2, 0, Payload())), server.coordinator.block(2, "")]
        results = await asyncio.gather(*(calls if first == "upload" else calls[::-1]), return_exceptions=True)
        if first == "block":
            refusals = [result for result in results if isinstance(result, RefusedError)]
            assert [refusal.details.reason for refusal in refusals] == [pb.REFUSAL_REASON_STALE_SESSION]
        assert await server.thread.run(lambda store: store.uploads(0)) == []
        assert server.engine.state.uploaded == ids()
        again = server.coordinator.join(join_request(server.coordinator, 2, previous=third.secret))
        assert (await refusal_of(again)).reason == pb.REFUSAL_REASON_BLOCKED


async def test_a_client_that_is_allowed_again_receives_nothing_made_of_the_upload_it_was_blocked_for(
    tmp_path: Path,
) -> None:
    longer: dict[str, Any] = {**TWO_OF_THREE, "config": CONFIG.model_copy(update={"rounds": 4})}
    async with Server(SqliteStore(tmp_path), tmp_path, **longer) as server:
        daemons = await join_all(server)
        for daemon in daemons:
            await daemon.work(0)
        await server.until_round(1)
        await daemons[2].upload(1)
        assert await server.coordinator.block(2, "")
        for daemon in daemons[:2]:
            await daemon.work(1)
        await server.until_round(2)
        assert await server.coordinator.allow(2)
        third = await Daemon.join(server, 2)
        received = encode(await third.download(2)).manifest
    async with Server(SqliteStore(tmp_path), tmp_path, **longer) as restarted:
        assert encode(await third.moved_to(restarted).download(2)).manifest == received


class FailsToForget(SlowDisk):
    """Fails to delete an upload once a test has released it, so many times."""

    failures = 1

    def forget_upload(self, client_id: int, round_number: int) -> None:
        super().forget_upload(client_id, round_number)
        self.failures -= 1
        if self.failures >= 0:
            raise sqlite3.OperationalError("database or disk is full")


async def test_newcomers_receive_nothing_of_a_finished_client_that_is_blocked(tmp_path: Path) -> None:
    config = RunConfig.model_validate({**CONFIG.model_dump(), "newcomers": 1, "newcomer_rounds": 1})
    rules: dict[str, Any] = {**TWO_OF_THREE, "newcomers": ids(2), "newcomer_rounds": 1}
    async with Server(MemoryStore(), tmp_path, config=config, **rules) as server:
        first, second, newcomer = await join_all(server)
        await first.work(0)
        await second.work(0)
        await server.until_round(1)
        assert await server.coordinator.block(1, "its data are false")
        await newcomer.work(1)
        await server.until_round(2)
        received = (await newcomer.download(2)).prototypes
    finished = trained_prototypes(0)
    assert received is not None
    # class 1 is one of clients 0 and 1
    np.testing.assert_array_equal(received.vectors[received.class_ids == 1], finished.vectors[finished.class_ids == 1])


async def test_a_client_that_calls_during_a_block_that_fails_is_served(tmp_path: Path) -> None:
    disk = FailsToForget()
    async with Server(disk, tmp_path, **TWO_OF_THREE) as server:
        third = (await join_all(server))[2]
        context: Any = SimpleNamespace(peer=lambda: "")  # without authentication, nothing else of it is used

        async def follow() -> Any:
            events: Any = server.federation.Follow(pb.FollowRequest(session=third.secret), context)
            async with aclosing(events):
                return await anext(events)

        async def join() -> Any:
            request = join_request(server.coordinator, 2, previous=third.secret)
            return await server.federation.Join(request, context)

        disk.slow_at = "forgotten upload"
        blocking = asyncio.create_task(server.coordinator.block(2, ""))
        assert await asyncio.to_thread(disk.reached.wait, PATIENCE)
        await server.federation.Report(pb.ReportRequest(session=third.secret, progress=pb.Progress()), context)
        following = asyncio.create_task(follow())
        await until_waited_for(server.engine._lock)
        joining = asyncio.create_task(join())
        await until_waited_for(server.engine.sessions.lock_of(2))
        disk.released.set()
        with pytest.raises(StoreError):
            await blocking
        assert (await following).HasField("round_opened")
        assert (await joining).epoch == 2


@pytest.mark.parametrize("place", range(3))
async def test_of_two_blocks_at_once_the_first_may_fail_and_no_upload_is_left(place: int, tmp_path: Path) -> None:
    async with Server(FailsToForget(), tmp_path, **TWO_OF_THREE) as server:
        third = (await join_all(server))[2]
        calls: list[Any] = [server.coordinator.block(2, ""), server.coordinator.block(2, "")]
        calls.insert(place, accept(server, third, trained_upload(2, 0, Payload())))
        results = await asyncio.gather(*calls, return_exceptions=True)
        del results[place]
        assert isinstance(results[0], StoreError)
        assert results[1] is True
        assert server.coordinator.blocked == ids(2)
        assert server.engine.state.uploaded == ids()
        assert await server.thread.run(lambda store: store.uploads(0)) == []


async def test_an_upload_that_is_stored_before_a_block_that_fails_counts(tmp_path: Path) -> None:
    async with Server(FailsToForget(), tmp_path, **TWO_OF_THREE) as server:
        third = (await join_all(server))[2]
        receipt, blocked = await asyncio.gather(
            accept(server, third, trained_upload(2, 0, Payload())),
            server.coordinator.block(2, ""),
            return_exceptions=True,
        )
        assert isinstance(receipt, pb.UploadReceipt)
        assert isinstance(blocked, StoreError)
        assert server.engine.state.uploaded == ids(2)


async def test_an_upload_that_is_stored_before_its_client_is_dropped_counts(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with Server(disk, tmp_path, **TWO_OF_THREE) as server:
        first, second, third = await join_all(server)
        await first.work(0)
        await second.work(0)
        disk.slow_at = "upload"
        uploading = asyncio.create_task(accept(server, third, trained_upload(2, 0, Payload())))
        assert await asyncio.to_thread(disk.reached.wait, PATIENCE)
        dropping = asyncio.create_task(server.coordinator.drop(2, ""))
        await until_waited_for(server.engine.sessions.lock_of(2))
        disk.released.set()
        await asyncio.gather(uploading, dropping)
        await server.until_round(1)
        assert [record.client_id for record in await server.thread.run(lambda store: store.uploads(0))] == [0, 1, 2]
    (closed,) = map(json.loads, (tmp_path / ROUNDS_NAME).read_text().splitlines())
    assert closed["missing"] == []


class FailsToSave(SqliteStore):
    """Fails to save the state of the run while `full`."""

    full = False

    def save_snapshot(self, snapshot: str) -> None:
        if self.full:
            raise sqlite3.OperationalError("database or disk is full")
        super().save_snapshot(snapshot)


async def test_the_upload_of_a_client_whose_block_fails_still_counts(tmp_path: Path) -> None:
    disk = FailsToSave(tmp_path)
    async with Server(disk, tmp_path, **TWO_OF_THREE) as server:
        first, _, third = await join_all(server)
        await first.work(0)
        await third.work(0)
        disk.full = True
        with pytest.raises(StoreError):
            await server.coordinator.block(2, "")
        disk.full = False
        assert server.engine.state.uploaded == ids(0, 2)
        assert [record.client_id for record in await server.thread.run(lambda store: store.uploads(0))] == [0, 2]
        assert await server.coordinator.block(2, "")
        assert server.engine.state.uploaded == ids(0)
        assert [record.client_id for record in await server.thread.run(lambda store: store.uploads(0))] == [0]


class NoRoomForClients(SqliteStore):
    """Fails to store sessions while `full`."""

    full = False

    def save_client(self, record: ClientRecord) -> None:
        if self.full:
            raise sqlite3.OperationalError("database or disk is full")
        super().save_client(record)


@pytest.mark.parametrize("call", ["block", "drop", "leave"])
async def test_a_client_whose_session_cannot_be_ended_stays_as_it_is(call: str, tmp_path: Path) -> None:
    disk = NoRoomForClients(tmp_path)
    async with Server(disk, tmp_path, **TWO_OF_THREE) as server:
        third = (await join_all(server))[2]

        async def ended() -> None:
            if call == "leave":
                await server.coordinator.leave(third.session, "")
            else:
                assert await getattr(server.coordinator, call)(2, "")

        before = server.engine.state
        disk.full = True
        with pytest.raises(StoreError):
            await ended()
        disk.full = False
        assert server.engine.state == before
        await third.report(0)
        await ended()
        assert server.engine.state.members == ids(0, 1)
        assert not server.engine.sessions.is_current(third.session)
        assert await server.thread.run(lambda store: store.clients()[2].session_sha256) == b""
    entries = [json.loads(line) for line in (tmp_path / AUDIT_NAME).read_text().splitlines()]
    ending = {"block": "blocked_by_operator", "drop": "dropped_by_operator", "leave": "left"}[call]
    assert [entry["what"] for entry in entries].count(ending) == 1


async def test_a_session_that_a_block_did_not_end_is_of_no_use_and_ended_by_the_next_block(tmp_path: Path) -> None:
    disk = MemoryStore()
    async with Server(disk, tmp_path, **TWO_OF_THREE) as server:
        third = (await join_all(server))[2]
        events = server.coordinator.follow(third.session)
        assert (await next_event(events)).HasField("round_opened")
        await server.engine.apply(Blocked(2))  # as a server of an earlier version that was killed before the rest
        assert (await refusal_of(next_event(events))).reason == pb.REFUSAL_REASON_BLOCKED
    async with Server(disk, tmp_path, **TWO_OF_THREE) as restarted:
        third = third.moved_to(restarted)
        context: Any = SimpleNamespace()  # without authentication, nothing of it is used
        for call in (
            restarted.federation.Report(pb.ReportRequest(session=third.secret, progress=pb.Progress()), context),
            anext(restarted.federation.Follow(pb.FollowRequest(session=third.secret), context)),
        ):
            assert (await refusal_of(call)).reason == pb.REFUSAL_REASON_BLOCKED
        assert await restarted.coordinator.block(2, "")
        assert not await restarted.coordinator.block(2, "")
        assert not restarted.engine.sessions.is_current(third.session)
        assert await restarted.thread.run(lambda store: store.clients()[2].session_sha256) == b""


async def test_a_client_that_never_joined_can_be_blocked(tmp_path: Path) -> None:
    window = timedelta(days=1)
    async with Server(MemoryStore(), tmp_path, min_clients=1, clients=CLIENTS, join_window=window) as server:
        await Daemon.join(server, 0)
        await Daemon.join(server, 1)
        assert not server.engine.state.began_with
        assert list(status_of(server.view).missing) == [2]
        await server.coordinator.block(2, "")
        assert server.phase is Phase.COLLECTING


async def test_an_id_outside_of_the_run_is_refused(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path) as server:
        for call in (server.coordinator.drop(9, ""), server.coordinator.block(9, ""), server.coordinator.allow(9)):
            assert (await refusal_of(call)).reason == pb.REFUSAL_REASON_UNKNOWN_CLIENT


async def test_the_status_names_who_never_joined_and_who_trains_alone(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"min_clients": 1, "clients": CLIENTS, "join_window": timedelta(0)}
    async with Server(MemoryStore(), tmp_path, **rules) as server:
        await Daemon.join(server, 1)
        status = status_of(server.view)
        assert (list(status.never_joined), status.training_alone, status.total_clients) == ([0, 2], True, CLIENTS)
        await Daemon.join(server, 0)
        assert not status_of(server.view).training_alone


async def test_the_window_begins_anew_when_a_server_is_restarted(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"min_clients": 1, "clients": CLIENTS}
    async with Server(SqliteStore(tmp_path), tmp_path, **rules, join_window=timedelta(days=1)) as server:
        await Daemon.join(server, 0)
    async with Server(SqliteStore(tmp_path), tmp_path, **rules, join_window=timedelta(seconds=0.05)) as restarted:
        await restarted.until(lambda run: run.state.phase is Phase.COLLECTING)
        assert restarted.engine.state.began_with == 1
