"""Replaces feddbp-client: takes part in a run without torch, and reports accuracies that rise.

FAKE_EPOCH_SECONDS: duration of an epoch. FAKE_EXIT=ID,ROUND,CODE: client ID exits with CODE in that round.
FAKE_HANG: ignores SIGTERM, and says so.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from benchmarks.light_client import LightClient

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.config import ClientConfig
from feddbp_client.daemon.connection import Connection, ServerUnavailableError
from feddbp_client.daemon.transfers import upload_parts
from feddbp_common.config.command_line import settings_from, settings_parser

EPOCHS = 5
TEST_SAMPLES = 40


class LearningClient(LightClient):
    """A light client that reports progress and rising accuracies."""

    test_samples = TEST_SAMPLES

    async def _do_round(self, event: pb.RoundEvent, round_number: int, *, train: bool) -> None:
        received = await self.state_of(event, round_number)
        metrics = _metrics(round_number, self.client_id, trained=train)
        metrics.bytes_down = received.message_bytes
        if train:
            await self._train(round_number)
            encoded = self.encoded_upload(round_number)
            metrics.bytes_up = sum(part.ByteSize() for part in upload_parts(self.session, round_number, encoded))
            await self.upload(round_number, encoded, metrics)
        else:
            await self._connection.report(pb.ReportRequest(session=self.session, round=round_number, metrics=metrics))

    async def _train(self, round_number: int) -> None:
        for epoch in range(EPOCHS):
            await asyncio.sleep(float(os.environ.get("FAKE_EPOCH_SECONDS", "0")) * (1 + self.client_id % 3))
            self._exit_if_configured(round_number)
            progress = pb.Progress(epochs_done=epoch + 1, epochs=EPOCHS)
            await self._connection.report(pb.ReportRequest(session=self.session, round=round_number, progress=progress))

    def _exit_if_configured(self, round_number: int) -> None:
        if "FAKE_EXIT" in os.environ:
            client, at_round, code = map(int, os.environ["FAKE_EXIT"].split(","))
            if (client, at_round) == (self.client_id, round_number):
                print(f"client {client} exits: FAKE_EXIT", file=sys.stderr, flush=True)
                os._exit(code)


def _metrics(round_number: int, client_id: int, *, trained: bool) -> pb.RoundMetrics:
    correct = int(TEST_SAMPLES * (1 - 0.8 ** (round_number + client_id / 4)))
    losses = {"ce_shared": 2.0, "ce_decision": 1.6, "l_s": 0.05, "l_d": 1.2} if trained else {}
    return pb.RoundMetrics(
        accuracies=[pb.Accuracy(rule="head", correct=correct)],
        inference="head",
        test_samples=TEST_SAMPLES,
        losses=[pb.LossTerm(name=name, value=value / (round_number + 1)) for name, value in losses.items()],
    )


async def _run(config: ClientConfig) -> None:
    connection = Connection(config.identity.server)
    try:
        await asyncio.gather(*(LearningClient(number, connection).run() for number in config.identity.client_ids))
    except ServerUnavailableError:
        await asyncio.sleep(config.identity.patience.total_seconds())
    await connection.close()


if __name__ == "__main__":
    if "FAKE_HANG" in os.environ:
        signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"SIGTERM is ignored\n"))
    asyncio.run(_run(settings_from(ClientConfig, settings_parser("fake", "", ClientConfig).parse_args())))
