"""One upload stream from its header to its receipt, without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coordinator_runs import CLASSES, CONFIG, WIDTH, Daemon, Server, contribution, join_all, parts
from run_machine import ids

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import RealType, WireConfig
from feddbp_common.wire import Encoded, Payload, PrototypeSet, decode, digest_of, encode
from feddbp_server.reporting.event_log import Audit
from feddbp_server.run.limits import Limits
from feddbp_server.run.refusals import RefusedError
from feddbp_server.store import MemoryStore

Parts = AsyncIterator[pb.UploadPart]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(MemoryStore(), tmp_path) as started:
        yield started


@pytest.fixture
async def daemon(server: Server) -> Daemon:
    return (await join_all(server))[0]


@asynccontextmanager
async def limited(directory: Path, limits: Limits) -> AsyncIterator[tuple[Server, Daemon]]:
    """A server with other limits, and its client 0."""
    async with Server(MemoryStore(), directory, limits=limits) as server:
        yield server, (await join_all(server))[0]


async def refusal_of(server: Server, stream: Parts) -> RefusedError:
    with pytest.raises(RefusedError) as refusal:
        await server.upload(stream)
    assert server.engine.state.uploaded == ids()
    stored = await server.thread.run(lambda store: store.uploads(0))
    assert stored == []
    return refusal.value


async def stream(*sent: pb.UploadPart) -> Parts:
    for part in sent:
        yield part


def header(daemon: Daemon, encoded: Encoded, **changed: Any) -> pb.UploadPart:
    manifest = pb.Manifest()
    manifest.CopyFrom(encoded.manifest)
    usual: dict[str, Any] = {"session": daemon.secret, "round": 0, "manifest": manifest}
    return pb.UploadPart(header=pb.UploadHeader(**{**usual, **changed}))


def chunk(data: bytes) -> pb.UploadPart:
    return pb.UploadPart(chunk=pb.Chunk(data=data))


LEARNT = contribution(0, 0, Payload())


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
async def test_an_upload_is_accepted_however_it_is_cut(server: Server, daemon: Daemon, size: int) -> None:
    receipt = await server.upload(parts(daemon.secret, 0, LEARNT, chunk=size))
    assert (receipt.round, receipt.sha256, receipt.duplicate) == (0, LEARNT.manifest.sha256, False)
    body = await server.thread.run(lambda store: store.upload_body(store.uploads(0)[0]))
    assert body == LEARNT.body()


# --- the header comes first, and is judged before anything else is read ---


async def counted(part: pb.UploadPart, read: list[int]) -> Parts:
    yield part
    while True:
        read.append(len(read))
        yield chunk(b"x" * 1000)


@pytest.mark.parametrize(
    ("change", "reason", "field"),
    [
        (lambda h: setattr(h, "session", "guess"), pb.REFUSAL_REASON_STALE_SESSION, "session"),
        (lambda h: setattr(h, "session", ""), pb.REFUSAL_REASON_STALE_SESSION, "session"),
        (lambda h: setattr(h, "round", 1), pb.REFUSAL_REASON_WRONG_ROUND, "round"),
        (lambda h: h.ClearField("manifest"), pb.REFUSAL_REASON_INVALID_PAYLOAD, "sha256"),
        (lambda h: setattr(h.manifest, "total_bytes", 1), pb.REFUSAL_REASON_INVALID_PAYLOAD, "total_bytes"),
        (lambda h: setattr(h.manifest, "sha256", b"short"), pb.REFUSAL_REASON_INVALID_PAYLOAD, "sha256"),
        (lambda h: h.manifest.prototypes.counts.pop(), pb.REFUSAL_REASON_INVALID_PAYLOAD, "counts"),
        (
            lambda h: h.manifest.prototypes.counts.__setitem__(0, 6),  # five were declared at join
            pb.REFUSAL_REASON_INVALID_PAYLOAD,
            "counts",
        ),
        (
            lambda h: h.manifest.prototypes.class_ids.__setitem__(1, CLASSES),
            pb.REFUSAL_REASON_INVALID_PAYLOAD,
            "class_ids",
        ),
        (
            lambda h: h.manifest.tensors.add(name="extra", dtype=pb.DTYPE_FLOAT32, shape=[0]),
            pb.REFUSAL_REASON_INVALID_PAYLOAD,
            "'extra'",
        ),
    ],
)
async def test_what_the_header_gives_away_is_refused_before_a_chunk_is_read(
    server: Server, daemon: Daemon, change: Callable[[pb.UploadHeader], Any], reason: int, field: str
) -> None:
    first = header(daemon, LEARNT)
    change(first.header)
    read: list[int] = []
    refusal = await refusal_of(server, counted(first, read))
    assert (refusal.details.reason, refusal.details.field) == (reason, field)
    assert read == []


async def test_an_upload_larger_than_admitted_is_refused_on_its_header(tmp_path: Path) -> None:
    limits = Limits(upload_bytes=LEARNT.manifest.total_bytes - 1)
    read: list[int] = []
    async with limited(tmp_path, limits) as (server, daemon):
        refusal = await refusal_of(server, counted(header(daemon, LEARNT), read))
    assert refusal.details.reason == pb.REFUSAL_REASON_TOO_LARGE
    assert read == []


@pytest.mark.parametrize("first", [None, pb.UploadPart(), chunk(b"abc")])
async def test_an_upload_has_to_begin_with_its_header(server: Server, first: pb.UploadPart | None) -> None:
    refusal = await refusal_of(server, stream(*([] if first is None else [first])))
    assert (refusal.details.reason, refusal.details.field) == (pb.REFUSAL_REASON_INVALID_REQUEST, "header")


# --- the body ---


@pytest.mark.parametrize(
    ("rest", "field", "words"),
    [
        ([], "chunk", "the stream ended after 0 of"),
        ([chunk(LEARNT.body()[:-1])], "chunk", "the stream ended after"),
        ([chunk(LEARNT.body()), chunk(b"x")], "chunk", "were declared"),
        ([chunk(b"")], "chunk", "is empty"),
        ([pb.UploadPart()], "chunk", "only chunks may follow the header"),
        ([pb.UploadPart(header=pb.UploadHeader())], "chunk", "only chunks may follow the header"),
        ([chunk(bytes(len(LEARNT.body())))], "sha256", "does not match what was received"),
    ],
)
async def test_a_body_that_is_not_what_was_announced_is_refused(
    server: Server, daemon: Daemon, rest: list[pb.UploadPart], field: str, words: str
) -> None:
    refusal = await refusal_of(server, stream(header(daemon, LEARNT), *rest))
    assert (refusal.details.reason, refusal.details.field) == (pb.REFUSAL_REASON_INVALID_PAYLOAD, field)
    assert words in str(refusal)
    assert refusal.client_id == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, 2e6])
async def test_values_that_would_poison_the_average_are_refused(server: Server, daemon: Daemon, value: float) -> None:
    numbers = np.frombuffer(LEARNT.body(), "<f4").copy()
    numbers[3] = value
    manifest = pb.Manifest()
    manifest.CopyFrom(LEARNT.manifest)
    manifest.sha256 = digest_of(manifest, [numbers.tobytes()])
    poisoned = stream(header(daemon, LEARNT, manifest=manifest), chunk(numbers.tobytes()))
    refusal = await refusal_of(server, poisoned)
    assert (refusal.details.reason, refusal.details.field) == (pb.REFUSAL_REASON_INVALID_PAYLOAD, "prototypes")


def in_float32(client_id: int, value: float) -> Encoded:
    """A contribution in the widest type, whatever that of the run is, full of one value."""
    encoded = contribution(client_id, 0, Payload())
    payload = decode(encoded.manifest, encoded.body())
    assert payload.prototypes is not None
    vectors = np.full_like(payload.prototypes.vectors, value)
    return encode(replace(payload, prototypes=replace(payload.prototypes, vectors=vectors)))


async def test_nobody_makes_a_download_too_large_for_the_type_of_the_run(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"wire": WireConfig(wire_dtype=RealType.FLOAT16)})
    async with Server(MemoryStore(), tmp_path, config=config) as server:
        daemons = await join_all(server)
        refusal = await refusal_of(server, parts(daemons[0].secret, 0, in_float32(0, 1e6)))
        assert (refusal.details.reason, refusal.details.field) == (pb.REFUSAL_REASON_INVALID_PAYLOAD, "prototypes")
        for daemon in daemons:
            await daemon.send(0, in_float32(daemon.client_id, 65_504.0))
        await server.until_round(1)
        for daemon in daemons:
            received = (await daemon.download(1)).prototypes
            assert received is not None
            assert received.vectors.max() == 65_504.0


async def test_a_method_without_counts_takes_no_class_a_client_does_not_hold(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"method": "fedproto", "method_settings": {}})
    async with Server(MemoryStore(), tmp_path, config=config) as server:
        daemon = (await join_all(server))[0]
        others = PrototypeSet(class_ids=np.array([3], np.int32), vectors=np.ones((1, WIDTH), np.float32))
        refusal = await refusal_of(server, parts(daemon.secret, 0, encode(Payload(prototypes=others))))
        assert (refusal.details.reason, refusal.details.field) == (pb.REFUSAL_REASON_INVALID_PAYLOAD, "class_ids")
        assert "of which no samples were declared at join" in str(refusal)


async def test_a_refused_upload_can_be_followed_by_a_good_one(server: Server, daemon: Daemon) -> None:
    await refusal_of(server, stream(header(daemon, LEARNT), chunk(b"nonsense")))
    assert not (await daemon.send(0, LEARNT)).duplicate


async def test_a_duplicate_is_answered_without_reading_its_body(server: Server, daemon: Daemon) -> None:
    await daemon.send(0, LEARNT)
    read: list[int] = []
    receipt = await server.upload(counted(header(daemon, LEARNT), read))
    assert receipt.duplicate
    assert read == []


# --- limits ---


async def stuck(part: pb.UploadPart | None) -> Parts:
    if part is not None:
        yield part
    await asyncio.Event().wait()


async def test_a_stream_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    limits = Limits(header_wait=timedelta(seconds=0.02), chunk_wait=timedelta(seconds=0.03))
    async with limited(tmp_path, limits) as (server, daemon):
        without_header = await refusal_of(server, stuck(None))
        without_body = await refusal_of(server, stuck(header(daemon, LEARNT)))
    assert "nothing arrived for 0.02s" in str(without_header)
    assert "nothing arrived for 0.03s" in str(without_body)


async def test_a_client_uploads_one_thing_at_a_time(server: Server, daemon: Daemon) -> None:
    first = asyncio.create_task(server.upload(stuck(header(daemon, LEARNT))))
    await asyncio.sleep(0.01)
    refusal = await refusal_of(server, parts(daemon.secret, 0, LEARNT))
    assert refusal.details.reason == pb.REFUSAL_REASON_BUSY
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not (await daemon.send(0, LEARNT)).duplicate


async def test_the_upload_of_a_superseded_session_is_given_up_for_the_next_one(server: Server, daemon: Daemon) -> None:
    zombie = asyncio.create_task(server.upload(stuck(header(daemon, LEARNT))))
    await asyncio.sleep(0.01)
    successor = await Daemon.join(server, 0, previous=daemon.secret)
    assert not (await successor.send(0, LEARNT)).duplicate
    with pytest.raises(RefusedError, match="superseded while it uploaded") as refusal:
        await zombie
    assert refusal.value.details.reason == pb.REFUSAL_REASON_STALE_SESSION


async def test_an_upload_whose_connection_is_lost_is_nobodys_fault(
    server: Server, daemon: Daemon, tmp_path: Path
) -> None:
    async def cut() -> Parts:
        yield header(daemon, LEARNT)
        asyncio.get_running_loop().call_soon(upload.cancel)  # as gRPC does, right after the stream has ended

    upload = asyncio.create_task(server.upload(cut()))
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert not (await daemon.send(0, LEARNT)).duplicate
    assert [line["what"] for line in audit_lines(tmp_path)] == ["joined", "joined", "joined", "accepted"]


async def test_all_uploads_together_are_bounded(tmp_path: Path) -> None:
    limits = Limits(bytes_in_flight=2 * LEARNT.manifest.total_bytes - 1)
    async with limited(tmp_path, limits) as (server, daemon):
        first = asyncio.create_task(server.upload(stuck(header(daemon, LEARNT))))
        await asyncio.sleep(0.01)
        other = await taken_anew(server, 1)
        learnt = contribution(1, 0, Payload())
        refusal = await refusal_of(server, parts(other.secret, 0, learnt))
        assert refusal.details.reason == pb.REFUSAL_REASON_BUSY
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        receipt = await server.upload(parts(other.secret, 0, learnt))
        assert not receipt.duplicate


async def taken_anew(server: Server, client_id: int) -> Daemon:
    """A daemon in the place of one that is gone."""
    holder = server.engine.sessions.get(client_id)
    assert holder is not None
    server.engine.sessions.leave(holder)
    return await Daemon.join(server, client_id)


# --- the audit log ---


def audit_lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "audit.jsonl").read_text().splitlines()]


async def test_the_audit_log_says_who_joined_and_what_was_accepted(
    server: Server, daemon: Daemon, tmp_path: Path
) -> None:
    await daemon.send(0, LEARNT)
    noted = audit_lines(tmp_path)
    assert [(line["what"], line["client"]) for line in noted] == [
        ("joined", 0),
        ("joined", 1),
        ("joined", 2),
        ("accepted", 0),
    ]
    assert noted[-1]["sha256"] == LEARNT.manifest.sha256.hex()
    assert noted[-1]["bytes"] == LEARNT.manifest.total_bytes
    assert daemon.secret not in (tmp_path / "audit.jsonl").read_text()


def test_refusals_are_noted_and_counted(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    refusal = RefusedError(pb.REFUSAL_REASON_INVALID_PAYLOAD, "counts: class 2\nhas 0 samples", field="counts")
    for _ in range(2):
        audit.record_refusal("Upload", refusal, client=4, peer="ipv4:127.0.0.1:5")
    audit.close()
    first, second = audit_lines(tmp_path)
    assert (first["what"], first["client"], first["call"]) == ("refused", 4, "Upload")
    assert (first["reason"], first["field"]) == ("invalid_payload", "counts")
    assert first["message"] == "counts: class 2\nhas 0 samples"
    assert second["peer"] == "ipv4:127.0.0.1:5"
    assert audit.refusals == {"invalid_payload": 2}


def test_the_audit_log_is_only_ever_added_to(tmp_path: Path) -> None:
    for number in range(3):
        audit = Audit(tmp_path)
        audit.record("joined", client=number)
        assert [line["client"] for line in audit_lines(tmp_path)] == list(range(number + 1))
        audit.close()
