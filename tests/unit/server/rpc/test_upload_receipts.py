"""Uploads that are repeated, late or concurrent: which of them gets a receipt."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from coordinator_runs import (
    Server,
    accept,
    join_all,
    refusal_of,
    trained_upload,
)
from run_machine import ids

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.wire import Payload
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.store import MemoryStore, SqliteStore, Store


async def test_the_same_upload_again_gets_the_same_receipt(server: Server) -> None:
    daemons = await join_all(server)
    first = await daemons[0].upload(0)
    again = await daemons[0].upload(0)
    assert (first.round, first.duplicate) == (0, False)
    assert (again.round, again.sha256, again.duplicate) == (0, first.sha256, True)
    assert server.engine.state.uploaded == ids(0)


async def test_the_same_upload_after_its_round_closed_gets_the_same_receipt(server: Server) -> None:
    daemons = await join_all(server)
    encoded = trained_upload(0, 0, Payload())
    first = await daemons[0].send(0, encoded)
    for daemon in daemons[1:]:
        await daemon.work(0)
    await server.until_round(1)
    again = await daemons[0].send(0, encoded)
    assert (again.sha256, again.duplicate) == (first.sha256, True)


async def test_another_upload_for_the_same_round_is_refused(server: Server) -> None:
    daemons = await join_all(server)
    first = await daemons[0].upload(0)
    refusal = await refusal_of(daemons[0].upload(0, salt=1))
    assert (refusal.reason, refusal.current_round) == (pb.REFUSAL_REASON_ALREADY_UPLOADED, 0)
    stored = await server.thread.run(lambda store: store.upload(0, 0))
    assert stored is not None
    assert stored.sha256 == first.sha256


@pytest.mark.parametrize("back_end", ["memory", "sqlite"])
async def test_of_two_uploads_at_once_one_is_stored_and_only_it_has_a_receipt(tmp_path: Path, back_end: str) -> None:
    store = MemoryStore() if back_end == "memory" else SqliteStore(tmp_path)
    async with Server(store, tmp_path) as server:
        daemons = await join_all(server)
        uploads = [trained_upload(0, 0, Payload(), salt=salt) for salt in (0, 0, 1)]
        answers = await asyncio.gather(
            *(accept(server, daemons[0], encoded) for encoded in uploads),
            return_exceptions=True,
        )
        stored = await server.thread.run(lambda store: store.upload(0, 0))
    assert stored is not None
    assert stored.sha256 == uploads[0].manifest.sha256
    first, twin, other = answers
    assert isinstance(first, pb.UploadReceipt)
    assert isinstance(twin, pb.UploadReceipt)
    assert (first.duplicate, twin.duplicate) == (False, True)
    assert isinstance(other, RefusedError)
    assert other.details.reason == pb.REFUSAL_REASON_ALREADY_UPLOADED


def lose_upload(store: Store) -> None:
    """Makes the store that of a server which the upload of client 0 to round 0 never reached."""
    assert isinstance(store, MemoryStore)
    del store._uploads[0, 0]


async def test_an_upload_to_a_closed_round_is_refused_with_the_open_one(server: Server) -> None:
    daemons = await join_all(server)
    for daemon in daemons:
        await daemon.work(0)
    await server.until_round(1)
    late = trained_upload(0, 0, Payload(), salt=5)
    await server.thread.run(lose_upload)
    refusal = await refusal_of(daemons[0].send(0, late))
    assert (refusal.reason, refusal.current_round) == (pb.REFUSAL_REASON_WRONG_ROUND, 1)
