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
from coordinator_runs import CLASSES, CONFIG, WIDTH, Daemon, Server, join_all, parts, trained_upload
from run_machine import ids

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.exchange import RealType, WireConfig
from feddbp_common.wire import Encoded, Payload, PrototypeSet, decode, digest_of, encode
from feddbp_server.reporting.audit import Audit
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.store import MemoryStore

Parts = AsyncIterator[pb.UploadPart]


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


UPLOAD = trained_upload(0, 0, Payload())


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
async def test_an_upload_is_accepted_however_it_is_cut(server: Server, daemon: Daemon, size: int) -> None:
    receipt = await server.upload(parts(daemon.secret, 0, UPLOAD, chunk=size))
    assert (receipt.round, receipt.sha256, receipt.duplicate) == (0, UPLOAD.manifest.sha256, False)
    body = await server.thread.run(lambda store: store.upload_body(store.uploads(0)[0]))
    assert body == UPLOAD.body()


# --- admission on the header ---


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
async def test_what_the_header_shows_is_refused_before_a_chunk_is_read(
    server: Server, daemon: Daemon, change: Callable[[pb.UploadHeader], Any], reason: int, field: str
) -> None:
    first = header(daemon, UPLOAD, awaits_admission=True)
    change(first.header)
    read: list[int] = []
    refusal = await refusal_of(server, counted(first, read))
    assert (refusal.details.reason, refusal.details.field) == (reason, field)
    assert read == []


async def test_the_rest_of_a_refused_upload_is_dropped_if_its_client_is_sending_already(tmp_path: Path) -> None:
    limits = Limits(discard_bytes=100_000)
    async with limited(tmp_path, limits) as (server, daemon):
        read: list[int] = []
        refusal = await refusal_of(server, counted(header(daemon, UPLOAD, round=1), read))
    assert refusal.details.reason == pb.REFUSAL_REASON_WRONG_ROUND
    assert 0 < 1000 * len(read) <= limits.discard_bytes + 1000


async def test_an_upload_larger_than_admitted_is_refused_on_its_header(tmp_path: Path) -> None:
    limits = Limits(upload_bytes=UPLOAD.manifest.total_bytes - 1)
    read: list[int] = []
    async with limited(tmp_path, limits) as (server, daemon):
        refusal = await refusal_of(server, counted(header(daemon, UPLOAD, awaits_admission=True), read))
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
        ([chunk(UPLOAD.body()[:-1])], "chunk", "the stream ended after"),
        ([chunk(UPLOAD.body()), chunk(b"x")], "chunk", "were declared"),
        ([chunk(b"")], "chunk", "is empty"),
        ([pb.UploadPart()], "chunk", "only chunks may follow the header"),
        ([pb.UploadPart(header=pb.UploadHeader())], "chunk", "only chunks may follow the header"),
        ([chunk(bytes(len(UPLOAD.body())))], "sha256", "does not match what was received"),
    ],
)
async def test_a_body_that_does_not_match_its_header_is_refused(
    server: Server, daemon: Daemon, rest: list[pb.UploadPart], field: str, words: str
) -> None:
    refusal = await refusal_of(server, stream(header(daemon, UPLOAD), *rest))
    assert (refusal.details.reason, refusal.details.field) == (pb.REFUSAL_REASON_INVALID_PAYLOAD, field)
    assert words in str(refusal)
    assert refusal.client_id == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, 2e6])
async def test_values_that_would_poison_the_average_are_refused(server: Server, daemon: Daemon, value: float) -> None:
    numbers = np.frombuffer(UPLOAD.body(), "<f4").copy()
    numbers[3] = value
    manifest = pb.Manifest()
    manifest.CopyFrom(UPLOAD.manifest)
    manifest.sha256 = digest_of(manifest, [numbers.tobytes()])
    poisoned = stream(header(daemon, UPLOAD, manifest=manifest), chunk(numbers.tobytes()))
    refusal = await refusal_of(server, poisoned)
    assert (refusal.details.reason, refusal.details.field) == (pb.REFUSAL_REASON_INVALID_PAYLOAD, "prototypes")


def in_float32(client_id: int, value: float) -> Encoded:
    """An upload of one value everywhere, in float32 for any wire type of the run."""
    encoded = trained_upload(client_id, 0, Payload())
    payload = decode(encoded.manifest, encoded.body())
    assert payload.prototypes is not None
    vectors = np.full_like(payload.prototypes.vectors, value)
    return encode(replace(payload, prototypes=replace(payload.prototypes, vectors=vectors)))


async def test_no_upload_makes_a_download_overflow_the_wire_type(tmp_path: Path) -> None:
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


async def test_a_method_without_counts_refuses_a_class_the_client_does_not_hold(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"method": "fedproto", "method_settings": {}})
    async with Server(MemoryStore(), tmp_path, config=config) as server:
        daemon = (await join_all(server))[0]
        others = PrototypeSet(class_ids=np.array([3], np.int32), vectors=np.ones((1, WIDTH), np.float32))
        refusal = await refusal_of(server, parts(daemon.secret, 0, encode(Payload(prototypes=others))))
        assert (refusal.details.reason, refusal.details.field) == (pb.REFUSAL_REASON_INVALID_PAYLOAD, "class_ids")
        assert "of which no samples were declared at join" in str(refusal)


async def test_a_refused_upload_can_be_followed_by_a_good_one(server: Server, daemon: Daemon) -> None:
    await refusal_of(server, stream(header(daemon, UPLOAD), chunk(b"nonsense")))
    assert not (await daemon.send(0, UPLOAD)).duplicate


async def test_a_duplicate_is_answered_without_reading_its_body(server: Server, daemon: Daemon) -> None:
    await daemon.send(0, UPLOAD)
    read: list[int] = []
    receipt = await server.upload(counted(header(daemon, UPLOAD, awaits_admission=True), read))
    assert receipt.duplicate
    assert read == []


# --- limits ---


async def stuck(part: pb.UploadPart | None) -> Parts:
    if part is not None:
        yield part
    await asyncio.Event().wait()


async def test_an_upload_that_stalls_is_refused(tmp_path: Path) -> None:
    limits = Limits(header_wait=timedelta(seconds=0.02), chunk_wait=timedelta(seconds=0.03))
    async with limited(tmp_path, limits) as (server, daemon):
        without_header = await refusal_of(server, stuck(None))
        without_body = await refusal_of(server, stuck(header(daemon, UPLOAD)))
    assert "nothing arrived for 0.02s" in str(without_header)
    assert "nothing arrived for 0.03s" in str(without_body)


async def test_an_upload_is_admitted_when_one_of_those_before_it_is_stored(tmp_path: Path) -> None:
    limits = Limits(uploads_at_once=1, upload_wait=timedelta(hours=1))
    async with limited(tmp_path, limits) as (server, daemon):
        go_on, read = asyncio.Event(), list[int]()

        async def slow() -> Parts:
            yield header(daemon, UPLOAD)
            await go_on.wait()
            yield chunk(UPLOAD.body())

        first = asyncio.create_task(server.upload(slow()))
        await asyncio.sleep(0.01)
        other = await rejoined(server, 1)
        encoded = trained_upload(1, 0, Payload())

        async def watched() -> Parts:
            yield header(other, encoded, awaits_admission=True)
            read.append(1)
            yield chunk(encoded.body())

        second = asyncio.create_task(server.upload(watched()))
        await asyncio.sleep(0.01)
        assert not read
        go_on.set()
        await asyncio.gather(first, second)
        assert server.engine.state.uploaded == ids(0, 1)


async def test_uploads_that_are_stuck_do_not_keep_others_from_being_admitted(tmp_path: Path) -> None:
    limits = Limits(uploads_at_once=1, upload_wait=timedelta(milliseconds=1))
    async with limited(tmp_path, limits) as (server, daemon):
        first = asyncio.create_task(server.upload(stuck(header(daemon, UPLOAD))))
        await asyncio.sleep(0.01)
        other = await rejoined(server, 1)
        await server.upload(parts(other.secret, 0, trained_upload(1, 0, Payload())))
        assert server.engine.state.uploaded == ids(1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_a_client_uploads_one_thing_at_a_time(server: Server, daemon: Daemon) -> None:
    first = asyncio.create_task(server.upload(stuck(header(daemon, UPLOAD))))
    await asyncio.sleep(0.01)
    refusal = await refusal_of(server, parts(daemon.secret, 0, UPLOAD))
    assert refusal.details.reason == pb.REFUSAL_REASON_BUSY
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not (await daemon.send(0, UPLOAD)).duplicate


async def test_the_upload_of_a_superseded_session_ends_when_the_next_one_uploads(
    server: Server, daemon: Daemon
) -> None:
    zombie = asyncio.create_task(server.upload(stuck(header(daemon, UPLOAD))))
    await asyncio.sleep(0.01)
    successor = await Daemon.join(server, 0, previous=daemon.secret)
    assert not (await successor.send(0, UPLOAD)).duplicate
    with pytest.raises(RefusedError, match="superseded while it uploaded") as refusal:
        await zombie
    assert refusal.value.details.reason == pb.REFUSAL_REASON_STALE_SESSION


async def test_an_upload_whose_connection_is_lost_is_not_audited_as_refused(
    server: Server, daemon: Daemon, tmp_path: Path
) -> None:
    async def cut() -> Parts:
        yield header(daemon, UPLOAD)
        asyncio.get_running_loop().call_soon(upload.cancel)  # as gRPC does, right after the stream has ended

    upload = asyncio.create_task(server.upload(cut()))
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert not (await daemon.send(0, UPLOAD)).duplicate
    assert [line["what"] for line in audit_lines(tmp_path)] == ["joined", "joined", "joined", "accepted"]


async def test_all_uploads_together_are_bounded(tmp_path: Path) -> None:
    limits = Limits(bytes_in_flight=2 * UPLOAD.manifest.total_bytes - 1)
    async with limited(tmp_path, limits) as (server, daemon):
        first = asyncio.create_task(server.upload(stuck(header(daemon, UPLOAD))))
        await asyncio.sleep(0.01)
        other = await rejoined(server, 1)
        encoded = trained_upload(1, 0, Payload())
        refusal = await refusal_of(server, parts(other.secret, 0, encoded))
        assert refusal.details.reason == pb.REFUSAL_REASON_BUSY
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        receipt = await server.upload(parts(other.secret, 0, encoded))
        assert not receipt.duplicate


async def rejoined(server: Server, client_id: int) -> Daemon:
    """A new daemon of a client whose session has ended."""
    holder = server.engine.sessions.get(client_id)
    assert holder is not None
    server.engine.sessions.leave(holder)
    return await Daemon.join(server, client_id)


# --- the audit log ---


def audit_lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "audit.jsonl").read_text().splitlines()]


async def test_the_audit_log_lists_joins_and_accepted_uploads(server: Server, daemon: Daemon, tmp_path: Path) -> None:
    await daemon.send(0, UPLOAD)
    noted = audit_lines(tmp_path)
    assert [(line["what"], line["client"]) for line in noted] == [
        ("joined", 0),
        ("joined", 1),
        ("joined", 2),
        ("accepted", 0),
    ]
    assert noted[-1]["sha256"] == UPLOAD.manifest.sha256.hex()
    assert noted[-1]["bytes"] == UPLOAD.manifest.total_bytes
    assert daemon.secret not in (tmp_path / "audit.jsonl").read_text()


def test_refusals_are_audited_and_counted(tmp_path: Path) -> None:
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


def test_the_audit_log_is_append_only(tmp_path: Path) -> None:
    for number in range(3):
        audit = Audit(tmp_path)
        audit.record("joined", client=number)
        assert [line["client"] for line in audit_lines(tmp_path)] == list(range(number + 1))
        audit.close()
