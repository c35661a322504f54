"""What each promise of a round costs: the bare server, and servers that add one promise after the other.

All of them but the bare one are used by our own clients, and have our server's settings of the process.
`python -m benchmarks.ladder RUNG CLIENTS CLASSES` serves.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from enum import IntEnum
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.measurement import Measurement
from benchmarks.round import Comparison, Setting, compare, listening_process
from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig, run_to_proto
from feddbp_common.rpc.keepalive import DEFAULT_LEASE
from feddbp_common.rpc.server_features import ADMISSION_FEATURE, PUSHED_STATE_FEATURE, UPLOADED_REPORT_FEATURE
from feddbp_common.version import VERSION
from feddbp_common.wire import (
    Encoded,
    Payload,
    PrototypeSet,
    check_manifest,
    check_values,
    decode,
    digest_of,
    encode,
)
from feddbp_server.process import prepare_process, settle_heap
from feddbp_server.rpc.upload import ADMITTED
from feddbp_server.store import SqliteStore, Store, StoreWriter, UploadRecord

SETTING = Setting(clients=20, rounds=15)
RUN_ID = "ladder"


class Rung(IntEnum):
    """What a server does beyond the bare one; each also does what those before it do."""

    CALLS = 1
    CHECKS = 2
    BODIES = 3

    @property
    def title(self) -> str:
        return ("our messages and calls", "digest and value checks", "bodies and rows on the disk")[self - 1]


class LadderService(pb_grpc.FederationServicer):
    """Serves rounds to our clients with the promises of one rung, and without all others."""

    def __init__(self, rung: Rung, clients: int, classes: int, directory: Path) -> None:
        self._rung = rung
        self._clients = clients
        self._config = RunConfig(clients=clients, rounds=10_000, data=DataConfig(dataset="custom", classes=classes))
        self._rules = self._config.method_spec.upload_rules(self._config.settings, self._config.exchange_shape)
        self._bodies: list[bytes] = []
        self._round = 0
        self._state = _state(np.zeros((classes, self._config.exchange_shape.feature_dim), np.float32))
        self._opened = asyncio.Event()
        self._store: StoreWriter | None = None
        if rung >= Rung.BODIES:
            store = SqliteStore(directory)
            store.open_run(RUN_ID, "{}")
            self._store = StoreWriter(store)

    async def GetRun(self, request: pb.GetRunRequest, context: object) -> pb.GetRunResponse:
        features = (ADMISSION_FEATURE, PUSHED_STATE_FEATURE, UPLOADED_REPORT_FEATURE)
        config = run_to_proto(self._config)
        return pb.GetRunResponse(config=config, run_id=RUN_ID, software_version=VERSION, features=features)

    async def Join(self, request: pb.JoinRequest, context: object) -> pb.JoinResponse:
        response = pb.JoinResponse(session=str(request.client_id), epoch=1)
        response.lease.FromTimedelta(DEFAULT_LEASE)
        return response

    async def Follow(self, request: pb.FollowRequest, context: object) -> AsyncIterator[pb.RoundEvent]:
        while True:
            opened, number = self._opened, self._round
            event = pb.RoundEvent(round_opened=pb.RoundOpened(round=number, selected=True))
            event.state.manifest.CopyFrom(self._state.manifest)
            event.state.body = self._state.body()
            yield event
            await opened.wait()

    async def Upload(self, request_iterator: AsyncIterator[pb.UploadPart], context: Any) -> pb.UploadReceipt:
        header = (await anext(request_iterator)).header
        if self._rung >= Rung.CHECKS:
            check_manifest(header.manifest, self._rules, max_bytes=1 << 30)
        await context.send_initial_metadata(ADMITTED)
        body = b"".join([part.chunk.data async for part in request_iterator])
        if self._rung >= Rung.CHECKS:
            self._check(header.manifest, body)
        if self._store is not None:
            record = UploadRecord(
                int(header.session), header.round, header.manifest.sha256, header.manifest.SerializeToString()
            )
            await self._store.run(lambda store: store.save_upload(record, body))
        self._bodies.append(body)
        if len(self._bodies) == self._clients:
            await self._close_round()
        return pb.UploadReceipt(round=header.round, sha256=header.manifest.sha256)

    def _check(self, manifest: pb.Manifest, body: bytes) -> None:
        if digest_of(manifest, [body]) != manifest.sha256:
            raise ValueError("the digest does not match")
        check_values(decode(manifest, body), self._rules)

    async def _close_round(self) -> None:
        shape = self._config.classes, self._config.exchange_shape.feature_dim
        total = np.zeros(shape[0] * shape[1], dtype=np.float64)
        for body in self._bodies:
            total += np.frombuffer(body, dtype=np.float32, count=len(total))
        self._state = _state((total / self._clients).astype(np.float32).reshape(shape))
        self._bodies.clear()
        if self._store is not None:
            await self._store.tidy(self._forget)
        self._round += 1
        opened, self._opened = self._opened, asyncio.Event()
        opened.set()

    def _forget(self, store: Store) -> None:
        store.forget_superseded_uploads(self._round)


def _state(vectors: np.ndarray[Any, np.dtype[np.float32]]) -> Encoded:
    class_ids = np.arange(len(vectors), dtype=np.int32)
    return encode(Payload(prototypes=PrototypeSet(class_ids=class_ids, vectors=vectors)))


def rung_server(rung: Rung, setting: Setting) -> AbstractContextManager[tuple[str, int]]:
    return listening_process("benchmarks.ladder", str(int(rung)), str(setting.clients), str(setting.classes))


def measure() -> list[Measurement]:
    measured = []
    for rung in Rung:
        comparison = compare(SETTING, lambda setting, _, rung=rung: rung_server(rung, setting))  # type: ignore[misc]
        measured += _measurements(f"+ {rung.title}", comparison)
    return measured + _measurements("our server", compare(SETTING))


def _measurements(name: str, comparison: Comparison) -> list[Measurement]:
    title = f"ladder, {SETTING.name}: {name}"
    extra = (comparison.our_bytes - comparison.bare_bytes) / 1e6
    return [
        Measurement(question=f"{title}: round", value=comparison.time_ratio(), bar=None, detail=comparison.detail()),
        Measurement(
            question=f"{title}: server CPU",
            value=comparison.cpu_ratio(),
            bar=None,
            detail=f"{extra:+.0f} MB of memory above bare",
        ),
    ]


async def _serve(rung: Rung, clients: int, classes: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        server = grpc.aio.server()
        service = LadderService(rung, clients, classes, Path(directory))  # type: ignore[abstract]  # in the stub only
        pb_grpc.add_FederationServicer_to_server(service, server)
        print(server.add_insecure_port("127.0.0.1:0"), flush=True)
        await server.start()
        settle_heap()
        await server.wait_for_termination()


if __name__ == "__main__":
    prepare_process()
    asyncio.run(_serve(Rung(int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])))
