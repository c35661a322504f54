"""Clients without a model: they use the whole protocol and upload random prototypes.

For load, soak and fault tests of the server, which need many clients and no training. What a light client uploads
depends on the run's seed, its id and the round alone, so runs can be compared bit for bit.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import numpy as np

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.backoff import Backoff
from feddbp_client.daemon.connection import (
    LATE_REASONS,
    REJOIN_REASONS,
    CallRefusedError,
    Connection,
    ServerUnavailableError,
)
from feddbp_client.daemon.event_stream import EventStream
from feddbp_client.daemon.secure_round import SecureRounds
from feddbp_client.daemon.sum_journal import SkippedSumError
from feddbp_client.daemon.transfers import Download, pushed_download, upload_bytes
from feddbp_common.config.features import supported_features
from feddbp_common.config.run import RunConfig, run_from_proto
from feddbp_common.methods.sums import shared_classes, term_of
from feddbp_common.seeding import derive_seed
from feddbp_common.wire import Encoded, FisherScores, Payload, PayloadRules, PrototypeSet, TopChannels, encode

log = logging.getLogger("feddbp.client")

OnEvent = Callable[[pb.RoundEvent], Awaitable[None]]


def synthetic_payload(rules: PayloadRules, seed: int) -> Payload:
    """A random payload that satisfies the rules of a prototype method, with every class."""
    if rules.prototypes is None:
        return Payload()
    classes, width = rules.prototypes.classes, rules.prototypes.width
    random = np.random.default_rng(seed)
    return Payload(
        prototypes=PrototypeSet(
            class_ids=np.arange(classes, dtype=np.int32),
            counts=np.ones(classes, dtype=np.int32),
            vectors=random.standard_normal((classes, width), dtype=np.float32),
        ),
        fisher=_synthetic_fisher(rules, classes, width, random),
    )


def _synthetic_fisher(
    rules: PayloadRules, classes: int, width: int, random: np.random.Generator
) -> FisherScores | TopChannels | None:
    if rules.fisher_scores:
        return FisherScores(random.random((classes, width), dtype=np.float32))
    if rules.top_channels is not None:
        return TopChannels(np.tile(np.arange(rules.top_channels, dtype=np.uint16), (classes, 1)))
    return None


def light_metrics(*, bytes_down: int, bytes_up: int) -> pb.RoundMetrics:
    return pb.RoundMetrics(
        accuracies=[pb.Accuracy(rule="none", correct=0)],
        inference="none",
        test_samples=1,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
    )


def _declared(config: RunConfig) -> list[int]:
    return [] if config.privacy.secure_sums else [1] * config.classes


class LightClient:
    """A client of a run that does not train."""

    test_samples = 1
    """What it declares when it joins; its reports may not count more."""

    def __init__(self, client_id: int, connection: Connection) -> None:
        self.client_id = client_id
        self.session = ""
        self.rounds_done = 0
        self._connection = connection
        self._config: RunConfig | None = None
        self._rules: PayloadRules | None = None
        self._received = Payload()
        self._sums: SecureRounds | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        """Where it keeps what has to survive a lost connection in a secure sum."""

    async def join(self) -> RunConfig:
        described = await self.describe()
        config = self.config_of(described)
        joined = await self._connection.join(
            pb.JoinRequest(
                run_id=described.run_id,
                client_id=self.client_id,
                previous_session=self.session,
                data=pb.DataSummary(label_counts=_declared(config), test_samples=self.test_samples),
                capabilities=pb.Capabilities(architecture="light", device="none"),
                features=supported_features(config.method),
            )
        )
        self.session, self._config = joined.session, config
        if config.privacy.secure_sums:
            self._sums = self._sums or self._secure_rounds(described.run_id, config)
            self._sums.start_session(self.session)
        return config

    def _secure_rounds(self, run_id: str, config: RunConfig) -> SecureRounds:
        self._scratch = tempfile.TemporaryDirectory(prefix="feddbp-light-", ignore_cleanup_errors=True)
        directory = Path(self._scratch.name)
        return SecureRounds(self.client_id, run_id, config, directory=directory, connection=self._connection)

    async def describe(self) -> pb.GetRunResponse:
        return await self._connection.get_run()

    def config_of(self, described: pb.GetRunResponse) -> RunConfig:
        return run_from_proto(described.config)

    async def run(self, on_event: OnEvent | None = None) -> pb.RunEnded:
        """Takes part until the run ends; raises if the connection breaks."""
        await self.join()

        async def act(event: pb.RoundEvent) -> pb.RunEnded | None:
            if on_event is not None:
                await on_event(event)
            return await self._act(event)

        async with EventStream(self._connection.follow(self.session)) as events:
            while (ended := await events.act_on_newest(act)) is None:
                pass
        return ended

    async def run_reconnecting(
        self, on_event: OnEvent | None = None, *, patience: timedelta = timedelta(minutes=5)
    ) -> pb.RunEnded | None:
        """Takes part until the run ends, and reconnects after failures as a real client does.

        Returns how the run ended, or None if it had ended when the client rejoined.
        """
        backoff = Backoff(patience=patience, longest=timedelta(seconds=1), clock=time.monotonic)

        async def note_success(event: pb.RoundEvent) -> None:
            backoff.succeeded()
            if on_event is not None:
                await on_event(event)

        while True:
            try:
                return await self.run(note_success)
            except (ServerUnavailableError, CallRefusedError) as error:
                if isinstance(error, CallRefusedError) and error.reason == pb.REFUSAL_REASON_RUN_ENDED:
                    return None
                transient = isinstance(error, ServerUnavailableError) or error.reason in REJOIN_REASONS
                asked = error.retry_after if isinstance(error, ServerUnavailableError) else None
                delay = backoff.next_delay(asked=asked) if transient else None
                if delay is None:
                    raise
                log.log(
                    logging.WARNING if asked is None else logging.DEBUG,
                    "client %d: %s; trying again in %.1fs",
                    self.client_id,
                    error,
                    delay,
                )
                await asyncio.sleep(delay)

    async def download(self, round_number: int) -> Download:
        return await self._connection.download(self.session, round_number, self._download_rules())

    async def state_of(self, event: pb.RoundEvent, round_number: int) -> Download:
        """The state that came with an event, or is downloaded."""
        return pushed_download(event, self._download_rules()) or await self.download(round_number)

    def _download_rules(self) -> PayloadRules:
        if self._rules is None:
            config = self._joined()
            self._rules = config.download_rules
        return self._rules

    def encoded_upload(self, round_number: int) -> Encoded:
        return encode(self._synthetic(round_number), real_type=self._joined().wire_type)

    def own_prototypes(self, round_number: int) -> PrototypeSet:
        """What it uploads of a round, or adds to its sum."""
        prototypes = self._uploaded_alone(round_number).prototypes
        assert prototypes is not None, "the method has none"
        return prototypes

    def _uploaded_alone(self, round_number: int) -> Payload:
        config = self._joined()
        return synthetic_payload(config.expanded_rules, derive_seed(config.seed, "light", self.client_id, round_number))

    def _synthetic(self, round_number: int) -> Payload:
        config = self._joined()
        payload = self._uploaded_alone(round_number)
        weights = config.method_spec.sum_weights(config.settings)
        if not config.sends_terms or weights is None:
            return payload
        shared = shared_classes(self._received, config.classes)
        return term_of(payload, weights, shape=config.exchange_shape, samples=config.classes, shared=shared)

    async def upload(
        self, round_number: int, encoded: Encoded, metrics: pb.RoundMetrics | None = None
    ) -> pb.UploadReceipt:
        return await self._connection.upload(self.session, round_number, encoded, metrics)

    async def upload_and_report(self, round_number: int, encoded: Encoded, *, bytes_down: int, bytes_up: int) -> None:
        """In one call, if the server takes them together."""
        if self._connection.reports_with_upload:
            await self.upload(round_number, encoded, light_metrics(bytes_down=bytes_down, bytes_up=bytes_up))
        else:
            await self.report(round_number, bytes_down=bytes_down, bytes_up=bytes_up)
            await self.upload(round_number, encoded)

    async def report(self, round_number: int, *, bytes_down: int, bytes_up: int) -> None:
        metrics = light_metrics(bytes_down=bytes_down, bytes_up=bytes_up)
        await self._connection.report(pb.ReportRequest(session=self.session, round=round_number, metrics=metrics))

    async def _act(self, event: pb.RoundEvent) -> pb.RunEnded | None:
        match event.WhichOneof("event"):
            case "round_opened":
                await self._do_round(event, event.round_opened.round, train=event.round_opened.selected)
            case "final_evaluation":
                await self._do_round(event, event.final_evaluation.round, train=False)
            case "run_ended":
                return event.run_ended
        return None

    async def _do_round(self, event: pb.RoundEvent, round_number: int, *, train: bool) -> None:
        try:
            await self._work(event, round_number, train=train)
        except CallRefusedError as error:
            if error.reason not in LATE_REASONS:
                raise
            log.warning("client %d is too late for round %d: %s", self.client_id, round_number, error)
        else:
            self.rounds_done += 1

    async def _work(self, event: pb.RoundEvent, round_number: int, *, train: bool) -> None:
        download = await self.state_of(event, round_number)
        received, self._received = download.message_bytes, download.payload
        if train and self._sums is not None:
            await self._add_to_sum(self._sums, round_number, download)
        elif train:
            encoded = self.encoded_upload(round_number)
            sent = upload_bytes(self.session, round_number, encoded)
            await self.upload_and_report(round_number, encoded, bytes_down=received, bytes_up=sent)
        else:
            await self.report(round_number, bytes_down=received, bytes_up=0)

    async def _add_to_sum(self, sums: SecureRounds, round_number: int, download: Download) -> None:
        try:
            secure = await sums.agree(round_number, download.encoded.manifest.sha256)
        except SkippedSumError as error:
            failure = pb.Failure(cause=str(error), skips_round=True)
            await self._connection.report(pb.ReportRequest(session=self.session, round=round_number, failure=failure))
            return
        encoded = encode(await asyncio.to_thread(secure.masked, self._synthetic(round_number)))
        sent = upload_bytes(self.session, round_number, encoded)
        sums.sending(round_number, encoded.manifest.sha256)
        await self.upload_and_report(round_number, encoded, bytes_down=download.message_bytes, bytes_up=sent)
        await sums.open(round_number)

    def _joined(self) -> RunConfig:
        assert self._config is not None, "join first"
        return self._config


class SteadyClient(LightClient):
    """Uploads the same payload in every round: to make one takes longer than to send it."""

    def __init__(self, client_id: int, connection: Connection) -> None:
        super().__init__(client_id, connection)
        self._payload: Encoded | None = None

    def encoded_upload(self, round_number: int) -> Encoded:
        if self._payload is None:
            self._payload = super().encoded_upload(0)
        return self._payload
