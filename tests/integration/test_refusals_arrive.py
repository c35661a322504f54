"""Every refused upload gets its reason to the client, whatever the size and the stage at which it is refused.

gRPC's core may replace the status of a call that ends while the client is sending. These tests send real uploads over
a socket, many at a time, and look at what each caller received; nothing is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import numpy as np
import pytest
from processes import Federation, federation

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_client.daemon import connection as client_connection
from feddbp_client.daemon.connection import CallRefusedError, Connection
from feddbp_client.daemon.transfers import upload_parts
from feddbp_common.config.run import run_from_proto
from feddbp_common.rpc.credentials import ClientCredentials, client_subject
from feddbp_common.rpc.failures import refusal_in
from feddbp_common.wire import Encoded, FisherScores, Payload, PrototypeSet, encode

CLASSES = 4000
SIZES = (10, 100, 1000, 4000)
"""Classes in an upload: 41 kB to 16 MB."""
AT_ONCE = 10
SAMPLES = 3
MAX_UPLOAD_BYTES = 5 << 20
REPETITIONS = 20


def upload_of(classes: int, *, last_value: float = 0.0) -> Encoded:
    random = np.random.default_rng(classes)
    vectors = random.standard_normal((classes, 512), dtype=np.float32)
    vectors[-1, -1] = last_value
    return encode(
        Payload(
            prototypes=PrototypeSet(
                class_ids=np.arange(classes, dtype=np.int32),
                counts=np.full(classes, SAMPLES, dtype=np.int32),
                vectors=vectors,
            ),
            fisher=FisherScores(scores=random.random((classes, 512), dtype=np.float32)),
        )
    )


UPLOADS = {size: upload_of(size) for size in SIZES}


@dataclass
class Caller:
    """A client that has joined and calls the server as the test says."""

    connection: Connection
    stub: pb_grpc.FederationAsyncStub
    request: pb.JoinRequest
    session: str = ""

    async def join(self) -> None:
        """Joins, or joins again and supersedes the session it has."""
        self.request.previous_session = self.session
        self.session = (await self.connection.join(self.request)).session


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server that waits for a second client, so that no upload of the first is in time."""
    with federation(tmp_path_factory.mktemp("refusals")) as running:
        running.server(
            *("--dataset", "custom", "--classes", CLASSES, "--clients", 2, "--min-clients", 2),
            *("--max-bytes-in-flight", 1 << 30),
        )
        yield running


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server whose first round opens with the join of its only client, which it selects."""
    with federation(tmp_path_factory.mktemp("open")) as running:
        running.server(
            *("--dataset", "custom", "--classes", CLASSES, "--clients", 1, "--min-clients", 1),
            *("--max-upload-bytes", MAX_UPLOAD_BYTES),
        )
        yield running


@asynccontextmanager
async def joined(address: str, client_id: int) -> AsyncIterator[Caller]:
    connection = Connection(address, client_id=client_id)
    credentials = ClientCredentials()
    async with credentials.channel(address, client_subject(client_id)) as channel:
        stub: pb_grpc.FederationAsyncStub = pb_grpc.FederationStub(channel)
        described = await connection.get_run()
        assert run_from_proto(described.config).classes == CLASSES
        request = pb.JoinRequest(
            run_id=described.run_id,
            client_id=client_id,
            data=pb.DataSummary(label_counts=[SAMPLES] * CLASSES, test_samples=1),
        )
        caller = Caller(connection, stub, request)
        await caller.join()
        try:
            yield caller
        finally:
            await connection.leave(caller.session, "done")
            await connection.close()


def too_early(parts: list[pb.UploadPart]) -> None:
    parts[0].header.round = 7


def unknown_session(parts: list[pb.UploadPart]) -> None:
    parts[0].header.session = "unknown"


def bad_manifest(parts: list[pb.UploadPart]) -> None:
    parts[0].header.manifest.total_bytes += 1


def no_header(parts: list[pb.UploadPart]) -> None:
    del parts[0]


STAGES: list[tuple[Callable[[list[pb.UploadPart]], None], int]] = [
    (too_early, pb.REFUSAL_REASON_WRONG_ROUND),
    (unknown_session, pb.REFUSAL_REASON_STALE_SESSION),
    (bad_manifest, pb.REFUSAL_REASON_WRONG_ROUND),  # no round is open
    (no_header, pb.REFUSAL_REASON_INVALID_REQUEST),
]


async def reason_of(call: Awaitable[pb.UploadReceipt]) -> object:
    """Why a call was refused; anything else as it is, for the message of the test."""
    try:
        return await call
    except CallRefusedError as error:
        return error.reason
    except grpc.aio.AioRpcError as error:
        refusal = refusal_in(error)
        return refusal.reason if refusal is not None else repr(error)


async def many(calls: int, call: Callable[[], object]) -> list[object]:
    """The outcomes of so many calls, a few at a time."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one() -> object:
        async with slots:
            return await call()  # type: ignore[misc]

    return await asyncio.gather(*(one() for _ in range(calls)))


@pytest.mark.parametrize("size", SIZES)
async def test_a_client_of_ours_receives_the_reason(server: Federation, size: int) -> None:
    async with joined(server.address, 0) as caller:
        assert caller.connection.awaits_admission

        async def refused() -> object:
            with pytest.raises(CallRefusedError) as refusal:
                await caller.connection.upload(caller.session, 0, UPLOADS[size])
            return refusal.value.reason

        outcomes = await many(100, refused)
    assert outcomes == [pb.REFUSAL_REASON_WRONG_ROUND] * 100


@pytest.mark.parametrize(("change", "reason"), STAGES, ids=[change.__name__ for change, _ in STAGES])
@pytest.mark.parametrize("size", SIZES)
async def test_a_client_that_sends_everything_at_once_receives_the_reason(
    server: Federation, size: int, change: Callable[[list[pb.UploadPart]], None], reason: int
) -> None:
    async with joined(server.address, 0) as caller:
        parts = list(upload_parts(caller.session, 0, UPLOADS[size]))
        change(parts)

        async def refused() -> object:
            return await reason_of(caller.stub.Upload(iter(parts)))

        calls = 40 if size < SIZES[-2] else 20
        outcomes = await many(calls, refused)
    assert outcomes == [reason] * calls


# --- refused while or after the body is received ---


def wrong_digest(parts: list[pb.UploadPart]) -> None:
    parts[0].header.manifest.sha256 = bytes(32)


def chunk_too_many(parts: list[pb.UploadPart]) -> None:
    parts.append(parts[1])


def no_chunk_in_the_middle(parts: list[pb.UploadPart]) -> None:
    parts.insert(1 + len(parts) // 2, parts[0])


def unchanged(_: list[pb.UploadPart]) -> None: ...


@dataclass(frozen=True)
class Refused:
    """An upload to the open round, and why it is refused."""

    name: str
    upload: Encoded
    change: Callable[[list[pb.UploadPart]], None] = unchanged
    reason: int = pb.REFUSAL_REASON_INVALID_PAYLOAD


RECEIVED = [
    refused
    for size in (100, 1000)
    for refused in (
        Refused(f"wrong digest-{size}", UPLOADS[size], wrong_digest),
        Refused(f"chunk too many-{size}", UPLOADS[size], chunk_too_many),
        Refused(f"no chunk in the middle-{size}", UPLOADS[size], no_chunk_in_the_middle),
        Refused(f"not finite-{size}", upload_of(size, last_value=float("nan"))),
    )
]
TOO_LARGE = Refused("too large-4000", UPLOADS[4000], reason=pb.REFUSAL_REASON_TOO_LARGE)
refused_uploads = pytest.mark.parametrize(
    "refused", [*RECEIVED, TOO_LARGE], ids=[refused.name for refused in [*RECEIVED, TOO_LARGE]]
)


def parts_of(refused: Refused, session: str, *, awaits_admission: bool) -> list[pb.UploadPart]:
    parts = list(upload_parts(session, 0, refused.upload, awaits_admission=awaits_admission))
    refused.change(parts)
    return parts


@refused_uploads
async def test_a_client_of_ours_receives_the_reason_in_an_open_round(
    open_server: Federation, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with joined(open_server.address, 0) as caller:
        assert caller.connection.awaits_admission
        parts = parts_of(refused, caller.session, awaits_admission=True)
        monkeypatch.setattr(client_connection, "upload_parts", lambda *_, **__: iter(parts))
        outcomes = [
            await reason_of(caller.connection.upload(caller.session, 0, refused.upload)) for _ in range(REPETITIONS)
        ]
    assert outcomes == [refused.reason] * REPETITIONS


@refused_uploads
async def test_a_client_that_sends_everything_at_once_receives_the_reason_in_an_open_round(
    open_server: Federation, refused: Refused
) -> None:
    async with joined(open_server.address, 0) as caller:
        parts = parts_of(refused, caller.session, awaits_admission=False)
        outcomes = [await reason_of(caller.stub.Upload(iter(parts))) for _ in range(REPETITIONS)]
    assert outcomes == [refused.reason] * REPETITIONS


@pytest.mark.parametrize("awaits_admission", [True, False])
@pytest.mark.parametrize("size", [100, 1000])
async def test_a_client_superseded_while_it_uploads_receives_the_reason(
    open_server: Federation, size: int, awaits_admission: bool
) -> None:
    async with joined(open_server.address, 0) as caller:

        async def superseded() -> object:
            parts = list(upload_parts(caller.session, 0, UPLOADS[size], awaits_admission=awaits_admission))
            half = 1 + len(parts) // 2
            call = caller.stub.Upload()
            await call.write(parts[0])
            if awaits_admission:
                await call.initial_metadata()
            for part in parts[1:half]:
                await call.write(part)
            await call.initial_metadata()  # admitted, in any case
            await caller.join()
            for part in parts[half:]:
                await call.write(part)
            await call.done_writing()
            return await reason_of(call)

        outcomes = [await superseded() for _ in range(REPETITIONS)]
    assert outcomes == [pb.REFUSAL_REASON_STALE_SESSION] * REPETITIONS
