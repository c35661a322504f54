"""Runs without a network: a server over a store, and deterministic clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from run_machine import policy

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.artifacts import METRICS_NAME, SUMMARY_NAME
from feddbp_common.config.data import DataConfig
from feddbp_common.config.features import supported_features
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.wire import Encoded, FisherScores, Payload, PrototypeSet, decode, encode
from feddbp_server.reporting.audit import Audit
from feddbp_server.reporting.history import RunHistory
from feddbp_server.reporting.metrics_log import MetricsLog
from feddbp_server.reporting.prototype_snapshots import PrototypeSnapshots
from feddbp_server.reporting.records import RunRecords
from feddbp_server.rpc.auth import NoAuth
from feddbp_server.rpc.federation import FederationService
from feddbp_server.rpc.interceptors import CallGuard
from feddbp_server.rpc.run_events import RunEventStreams
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.rpc.upload import CheckedUpload, Uploads
from feddbp_server.run.admission.limits import DEFAULT_LIMITS, Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.coordinator import Coordinator
from feddbp_server.run.engine import RunEngine
from feddbp_server.run.pushed_states import EventWithState
from feddbp_server.run.sessions import Session
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.store import Store, StoreWriter

CLIENTS, ROUNDS, CLASSES, WIDTH = 3, 2, 4, 6
CONFIG = RunConfig(
    method="feddbp",
    method_settings={"k_top": 2, "eta": 0.5},
    clients=CLIENTS,
    rounds=ROUNDS,
    data=DataConfig(dataset="custom", classes=CLASSES),
    training=TrainingConfig(feature_dim=WIDTH),
)
PATIENCE = 10.0


def held_classes(client_id: int) -> list[int]:
    return sorted({client_id % CLASSES, (client_id + 1) % CLASSES})


def trained_upload(client_id: int, number: int, received: Payload, *, salt: int = 0) -> Encoded:
    """A client's upload; it depends on the client, the round, and every value it received."""
    known = 0.0 if received.prototypes is None else float(received.prototypes.vectors.sum(dtype=np.float64))
    noise = np.random.default_rng([client_id, number, salt])
    classes = held_classes(client_id)
    return encode(
        Payload(
            prototypes=PrototypeSet(
                class_ids=np.array(classes, np.int32),
                vectors=(noise.normal(size=(len(classes), WIDTH)) + 0.1 * known).astype(np.float32),
                counts=np.array([5] * len(classes), np.int32),
            ),
            fisher=FisherScores(noise.random((len(classes), WIDTH)).astype(np.float32)),
        )
    )


def metrics(client_id: int, number: int) -> pb.RoundMetrics:
    return pb.RoundMetrics(
        accuracies=[pb.Accuracy(rule="prototype", correct=client_id + number)],
        inference="prototype",
        test_samples=10,
        losses=[pb.LossTerm(name="total", value=1.0)],
        seconds=pb.Seconds(evaluate=0.5),
        bytes_up=100,
        bytes_down=10,
    )


class Server:
    """The parts of a server as the command assembles them, on a store that may hold a run."""

    def __init__(
        self,
        store: Store,
        directory: Path,
        *,
        config: RunConfig = CONFIG,
        shares_prototypes: bool = False,
        **rules: Any,
    ) -> None:
        lease = rules.pop("lease", timedelta(seconds=30))
        limits = rules.pop("limits", DEFAULT_LIMITS)
        self.records = RunRecords(
            audit=Audit(directory),
            metrics_log=MetricsLog(directory),
            history=RunHistory(directory),
            snapshots=PrototypeSnapshots(directory) if shares_prototypes else None,
        )
        self.thread = StoreWriter(store)
        usual = {"rounds": config.rounds, "min_clients": config.clients, "deadline": None}
        self.engine = RunEngine(
            config=config,
            policy=policy(**{**usual, **rules}),
            store=self.thread,
            records=self.records,
            lease=lease,
            limits=limits,
        )
        self.events = RunEventStreams(self.engine, limits)
        self.coordinator = Coordinator(self.engine, limits)
        self.view = self.coordinator.view
        self.uploads = Uploads(self.engine, limits)
        self.federation = FederationService(self.coordinator, identity=NoAuth(), uploads=self.uploads)

    async def __aenter__(self) -> Server:
        try:
            await self.engine.start()
        except BaseException:
            await self.crash()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.drain()
        await self.crash()

    async def crash(self) -> None:
        """Ends without draining, as a crash does."""
        await self.thread.close()
        self.records.close()

    @property
    def phase(self) -> Phase:
        return self.engine.state.phase

    async def until(self, reached: Callable[[RunEngine], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                changed = self.engine.status_changed.upcoming()
                if reached(self.engine):
                    return
                await changed.wait()

    async def until_round(self, number: int) -> None:
        await self.until(
            lambda run: run.state.round >= number and run.state.phase in (Phase.COLLECTING, Phase.EVALUATING)
        )

    async def until_over(self) -> None:
        """Waits for the end of the run and the tasks that follow it."""
        await self.until(lambda run: run.state.phase.is_final)
        await self.settled()

    async def upload(self, stream: AsyncIterator[pb.UploadPart]) -> pb.UploadReceipt:
        """An upload as the service receives it."""
        context: Any = _Context()
        return await self.federation.Upload(stream, context)

    async def settled(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.engine.tasks.settled()


class _Context:
    """The part of a call's context that an upload without authentication uses."""

    async def send_initial_metadata(self, metadata: object) -> None:
        pass


@asynccontextmanager
async def listening(server: Server, limits: Limits = DEFAULT_LIMITS) -> AsyncIterator[str]:
    """The address of a server that has the command's interceptor and listens on a socket."""
    listener = grpc.aio.server(interceptors=[CallGuard(server.engine.event_log, limits=limits, identity=NoAuth())])
    pb_grpc.add_FederationServicer_to_server(server.federation, listener)
    port = listener.add_insecure_port("127.0.0.1:0")
    await listener.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await listener.stop(None)


def join_request(coordinator: Coordinator, client_id: int, *, previous: str = "") -> pb.JoinRequest:
    counts = [5 if class_id in held_classes(client_id) else 0 for class_id in range(CLASSES)]
    return pb.JoinRequest(
        run_id=coordinator.run_id,
        client_id=client_id,
        previous_session=previous,
        data=pb.DataSummary(label_counts=counts, test_samples=10),
        capabilities=pb.Capabilities(architecture=f"net{client_id}", device="cpu"),
        features=supported_features(coordinator.config.method),
    )


@dataclass
class Daemon:
    """A client's daemon, as the server sees it."""

    server: Server
    session: Session
    secret: str

    @classmethod
    async def join(cls, server: Server, client_id: int, *, previous: str = "") -> Daemon:
        request = join_request(server.coordinator, client_id, previous=previous)
        session, secret = await server.coordinator.join(request)
        return cls(server, session, secret)

    @property
    def client_id(self) -> int:
        return self.session.client_id

    def moved_to(self, server: Server) -> Daemon:
        """The same daemon after a restart of the server: its session is still valid."""
        return Daemon(server, server.coordinator.sessions.resolve(self.secret), self.secret)

    async def download(self, number: int) -> Payload:
        first, *rest = [part async for part in self.server.coordinator.download(self.session, number)]
        return decode(first.manifest, b"".join(part.chunk.data for part in rest))

    async def report(self, number: int) -> None:
        await self.server.coordinator.report_metrics(self.session, number, metrics(self.client_id, number))

    async def upload(self, number: int, *, salt: int = 0) -> pb.UploadReceipt:
        """Trains and uploads, through every check."""
        encoded = trained_upload(self.client_id, number, await self.download(number), salt=salt)
        return await self.send(number, encoded)

    async def send(self, number: int, encoded: Encoded) -> pb.UploadReceipt:
        return await self.server.upload(parts(self.secret, number, encoded))

    async def work(self, number: int) -> None:
        await self.report(number)
        await self.upload(number)


async def parts(session: str, number: int, encoded: Encoded, *, chunk: int = 50) -> AsyncIterator[pb.UploadPart]:
    yield pb.UploadPart(header=pb.UploadHeader(session=session, round=number, manifest=encoded.manifest))
    body = encoded.body()
    for start in range(0, len(body), chunk):
        yield pb.UploadPart(chunk=pb.Chunk(data=body[start : start + chunk]))


def accept(server: Server, daemon: Daemon, encoded: Encoded) -> Coroutine[None, None, pb.UploadReceipt]:
    """Commits an upload to round 0 that was neither admitted nor received."""
    body = encoded.body()
    header = pb.UploadHeader(session=daemon.secret, round=0, manifest=encoded.manifest)
    kept = server.engine.aggregator.kept_part(decode(encoded.manifest, body))
    return server.uploads.commit(CheckedUpload(session=daemon.session, header=header, body=body, kept=kept))


async def until_waited_for(lock: asyncio.Lock | asyncio.Semaphore, *, callers: int = 1) -> None:
    """Returns once so many callers wait for a lock that is held."""
    async with asyncio.timeout(PATIENCE):
        while len(lock._waiters or ()) < callers:  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0)


async def join_all(server: Server) -> list[Daemon]:
    return [await Daemon.join(server, client_id) for client_id in range(CLIENTS)]


async def whole_run(server: Server) -> None:
    """All clients join, work through all rounds one after the other, and report on the final state."""
    daemons = await join_all(server)
    for number in range(ROUNDS):
        for daemon in daemons:
            await daemon.work(number)
        await server.until_round(number + 1)
    for daemon in daemons:
        await daemon.report(ROUNDS)
    await server.until_over()


def summary_of(directory: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((directory / SUMMARY_NAME).read_text())
    return summary


def metrics_of(directory: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (directory / METRICS_NAME).read_text().splitlines()]
    return sorted(lines, key=lambda line: (line["round"], line["client"]))


async def next_event(events: AsyncIterator[pb.RoundEvent | EventWithState]) -> pb.RoundEvent:
    return as_sent(await asyncio.wait_for(anext(events), timeout=PATIENCE))


def as_sent(event: pb.RoundEvent | EventWithState) -> pb.RoundEvent:
    """An event as its client receives it."""
    return pb.RoundEvent.FromString(event.SerializeToString())


async def refusal_of(call: Awaitable[object]) -> pb.Refusal:
    with pytest.raises(RefusedError) as refusal:
        await call
    return refusal.value.details


def activities(server: Server) -> dict[int, pb.ClientActivity.ValueType]:
    return {client.client_id: client.activity for client in status_of(server.view).clients}
