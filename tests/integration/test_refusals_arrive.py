"""Every refused upload gets its reason to the client, whatever the size and the stage at which it is refused.

gRPC's core may replace the status of a call that ends while the client is sending. These tests send real uploads over
a socket, many at a time, and look at what each caller received; nothing is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from processes import Federation, federation

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_client.daemon.connection import CallRefusedError, Connection, upload_parts
from feddbp_common.config.run import run_from_proto
from feddbp_common.rpc.credentials import ClientCredentials, client_subject
from feddbp_common.rpc.failures import refusal_in
from feddbp_common.wire import Encoded, FisherScores, Payload, PrototypeSet, encode

CLASSES = 4000
SIZES = (10, 100, 1000, 4000)
"""Classes in an upload: 41 kB to 16 MB."""
AT_ONCE = 10
SAMPLES = 3


def upload_of(classes: int) -> Encoded:
    random = np.random.default_rng(classes)
    return encode(
        Payload(
            prototypes=PrototypeSet(
                class_ids=np.arange(classes, dtype=np.int32),
                counts=np.full(classes, SAMPLES, dtype=np.int32),
                vectors=random.standard_normal((classes, 512), dtype=np.float32),
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
    session: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server that waits for a second client, so that no upload of the first is in time."""
    with federation(tmp_path_factory.mktemp("refusals")) as running:
        running.server(
            *("--dataset", "custom", "--classes", CLASSES, "--clients", 2, "--min-clients", 2),
            *("--max-bytes-in-flight", 1 << 30),
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
        answer = await connection.join(
            pb.JoinRequest(
                run_id=described.run_id,
                client_id=client_id,
                data=pb.DataSummary(label_counts=[SAMPLES] * CLASSES, test_samples=1),
            )
        )
        yield Caller(connection, stub, answer.session)
        await connection.leave(answer.session, "done")
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
            call = caller.stub.Upload(iter(parts))
            try:
                return await call
            except Exception as error:
                refusal = refusal_in(error)  # type: ignore[arg-type]
                return refusal.reason if refusal is not None else repr(error)

        calls = 60 if size < SIZES[-1] else 20
        outcomes = await many(calls, refused)
    assert outcomes == [reason] * calls
