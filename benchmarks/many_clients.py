"""Time of a round of 20 clients in one process, relative to a plain loop over the same models and batches.

The clients are real daemons with a server process of their own. Between two rounds of theirs the loop repeats the last
one: copies of the clients evaluate, train and collect, one after another, with the prototypes that the clients
downloaded. What they would upload has to have the same digests.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.measurement import Measurement, seconds_of
from benchmarks.servers import running_server
from benchmarks.workload import CLASSES, split
from feddbp.v1 import federation_pb2 as pb
from feddbp_client.compute.slots import TrainingSlots
from feddbp_client.daemon.connection import USED_FEATURES, Connection
from feddbp_client.daemon.session_loop import ClientDaemon, DaemonOptions
from feddbp_client.daemon.transfers import Download
from feddbp_client.training.setup import LocalClient, LocalOptions, build_client
from feddbp_common.config.run import run_from_proto
from feddbp_common.rpc.server_features import PUSHED_STATE_FEATURE
from feddbp_common.wire import Encoded, Payload, PayloadRules, encode

CLIENTS = 20
ROUNDS = 5
"""The first is left out: it has no prototypes, and memory is not warm."""
SAMPLES = 400
"""Of each client; a quarter of them are for tests."""


class _PlainLoop:
    """The same clients without a federation."""

    def __init__(self) -> None:
        self.received: dict[tuple[int, int], Payload] = {}
        """By round and client."""
        self.uploaded: dict[tuple[int, int], bytes] = {}
        """Digests, by round and client."""
        self._clients: list[LocalClient] = []

    async def build(self, address: str, options: LocalOptions) -> None:
        connection = Connection(address)
        described = await connection.get_run()
        await connection.close()
        config = run_from_proto(described.config)
        self._clients = [build_client(config, described.run_id, client_id, options) for client_id in range(CLIENTS)]

    def repeat(self, number: int) -> float:
        """The seconds of the round; raises if it differs from that of the federation."""
        uploads: list[Payload | None] = []

        def train() -> None:
            for client in self._clients:
                received = self.received.pop((number, client.client_id))
                uploads.append(client.trainer.train(received, number, lambda *_: None).upload)

        seconds = seconds_of(train)
        for client, upload in zip(self._clients, uploads, strict=True):
            assert upload is not None
            digest = encode(upload, real_type=client.config.wire_type).manifest.sha256
            if digest != self.uploaded.pop((number, client.client_id)):
                raise RuntimeError(f"client {client.client_id} trained something else in round {number}")
        return seconds


class _Alternation:
    """Holds the clients at the start of each round until the loop has repeated the one before."""

    def __init__(self, loop: _PlainLoop) -> None:
        self.loop = loop
        self.pairs: list[tuple[float, float]] = []
        """Seconds of each round with a federation, and without."""
        self._arrived = 0
        self._open = asyncio.Event()
        self._opened_at = 0.0

    async def enter(self, number: int) -> None:
        self._arrived += 1
        this_round = self._open
        if self._arrived < CLIENTS:
            await this_round.wait()
            return
        if number:
            federated = time.perf_counter() - self._opened_at
            self.pairs.append((federated, await asyncio.to_thread(self.loop.repeat, number - 1)))
        self._arrived, self._open, self._opened_at = 0, asyncio.Event(), time.perf_counter()
        this_round.set()


class _HeldConnection(Connection):
    def __init__(self, address: str, client_id: int, alternation: _Alternation) -> None:
        # the state is taken from downloads, see below
        super().__init__(address, client_id=client_id, used_features=USED_FEATURES - {PUSHED_STATE_FEATURE})
        self._client_id = client_id
        self._alternation = alternation

    async def follow(self, session: str) -> AsyncIterator[pb.RoundEvent]:
        async with aclosing(super().follow(session)) as events:  # type: ignore[type-var]
            async for event in events:
                if event.HasField("round_opened"):
                    await self._alternation.enter(event.round_opened.round)
                elif event.HasField("final_evaluation"):
                    await self._alternation.enter(event.final_evaluation.round)
                yield event

    async def download(self, session: str, round_number: int, rules: PayloadRules) -> Download:
        download = await super().download(session, round_number, rules)
        self._alternation.loop.received[round_number, self._client_id] = download.payload
        return download

    async def upload(
        self, session: str, round_number: int, encoded: Encoded, metrics: pb.RoundMetrics | None = None
    ) -> pb.UploadReceipt:
        self._alternation.loop.uploaded[round_number, self._client_id] = encoded.manifest.sha256
        return await super().upload(session, round_number, encoded, metrics)


async def _pairs(address: str, directory: Path) -> list[tuple[float, float]]:
    local = LocalOptions(data=_data(directory), data_dir=directory, model=None)
    loop = _PlainLoop()
    await loop.build(address, local)
    alternation, slots = _Alternation(loop), TrainingSlots({local.compute.device: 1})
    connections = [_HeldConnection(address, client_id, alternation) for client_id in range(CLIENTS)]
    options = DaemonOptions(state_dir=directory / "clients", patience=timedelta(minutes=5), local=local)
    daemons = [
        ClientDaemon(client_id, connection, options, slots=slots) for client_id, connection in enumerate(connections)
    ]
    try:
        await asyncio.gather(*(daemon.run() for daemon in daemons))
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))
    return alternation.pairs


def _data(directory: Path) -> Path:
    data = split(SAMPLES)
    path = directory / "images.npz"
    np.savez(path, x_train=data.images[np.arange(SAMPLES)], y_train=data.labels.numpy())
    return path


def measure() -> list[Measurement]:
    torch.set_num_threads(1)
    run = ("--clients", CLIENTS, "--min-clients", CLIENTS, "--rounds", ROUNDS, "--round-deadline", "0")
    task = ("--dataset", "custom", "--classes", CLASSES, "--model-group", "mini-8", "--log-level", "warning")
    with tempfile.TemporaryDirectory() as directory, running_server(*run, *task) as server:
        _, *pairs = asyncio.run(_pairs(server.address, Path(directory)))
    ratios = [federated / plain for federated, plain in pairs]
    lost = median((federated - plain) / CLIENTS for federated, plain in pairs)
    return [
        Measurement(
            question=f"round of {CLIENTS} clients in one process against a plain loop over their training, mini-8",
            value=median(ratios),
            bar=1.05,
            detail=f"{len(pairs)} rounds, {', '.join(f'{ratio:.3f}' for ratio in ratios)}; "
            f"{median(plain for _, plain in pairs):.1f} s without, {1000 * lost:.0f} ms more per client",
        )
    ]
