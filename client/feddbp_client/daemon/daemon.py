"""One client's life: join, follow, and for every round download, work, report and upload; again and again if need be.

The daemon knows nothing of losses or models: the work itself is done by a `LocalTrainer` in a thread, and goes on
while the connection is lost and found again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.backoff import Backoff
from feddbp_client.daemon.connection import (
    LATE_REASONS,
    REJOIN_REASONS,
    CallRefusedError,
    Connection,
    ServerUnavailableError,
    upload_parts,
)
from feddbp_client.daemon.event_stream import EventStream
from feddbp_client.training.checkpoint import Checkpoint, ClientDirectory
from feddbp_client.training.setup import ClientSetup, LocalOptions, prepare, resume
from feddbp_client.training.trainer import OnEpoch, RoundResult, as_training_error
from feddbp_common.config.run import run_from_proto
from feddbp_common.errors import ExitCode, FedDBPError
from feddbp_common.fault_injection import fault_point
from feddbp_common.wire import Encoded, PayloadRules, decode, encode

log = logging.getLogger("feddbp.client")


@dataclass(frozen=True, kw_only=True)
class DaemonOptions:
    """How a daemon behaves towards the server."""

    state_dir: Path
    patience: timedelta
    local: LocalOptions


@dataclass(frozen=True, kw_only=True)
class Work:
    """A finished round: what is reported and, if the client trained, uploaded."""

    round: int
    metrics: pb.RoundMetrics
    contribution: Encoded | None


class ClientDaemon:
    """Client `client_id` of whatever run the server holds."""

    def __init__(
        self, client_id: int, connection: Connection, options: DaemonOptions, *, training_slot: asyncio.Semaphore
    ) -> None:
        self.client_id = client_id
        self._connection = connection
        self._options = options
        self._slot = training_slot
        self._backoff = Backoff(patience=options.patience, clock=time.monotonic)
        self._prepared: ClientSetup | None = None
        self._directory: ClientDirectory | None = None
        self._session = ""
        self._done: tuple[int, bool] | None = None
        """The round that was done last in this session, and whether the client trained in it."""
        self._last_work: Work | None = None
        self._under_way: tuple[tuple[int, bool], asyncio.Task[Work]] | None = None

    async def run(self) -> ExitCode:
        """Stays with the run until it ends, whatever happens to the connection."""
        try:
            while True:
                try:
                    return await self._one_session()
                except ServerUnavailableError as error:
                    await self._wait_for_server(error)
                except CallRefusedError as error:
                    if error.reason == pb.REFUSAL_REASON_RUN_ENDED:
                        return self._run_ended_without_us(str(error))
                    if error.reason not in REJOIN_REASONS:
                        raise
                    await self._wait_for_server(error)
        finally:
            await self._abandon_work()
            if self._directory is not None:
                self._directory.close()

    def stop(self) -> None:
        """Ends work that is under way; `run` is then cancelled."""
        if self._prepared is not None:
            self._prepared.local.stop()

    async def leave(self) -> None:
        """Says goodbye, so that nobody waits for this client."""
        if self._session:
            with suppress(ServerUnavailableError, CallRefusedError):
                await self._connection.leave(self._session, "stopped by its operator")

    async def _one_session(self) -> ExitCode:
        prepared = await self._prepare()
        directory = self._directory
        assert directory is not None
        fault_point("client.join.calling")
        joined = await self._connection.join(
            pb.JoinRequest(
                run_id=prepared.run_id,
                client_id=self.client_id,
                previous_session=self._session or directory.session(),
                data=prepared.summary(),
                capabilities=prepared.capabilities(),
            )
        )
        fault_point("client.join.answered")
        self._session = joined.session
        # a server may come back from an older backup: it is told again what it has had, at the price of a header
        self._done = None
        directory.save_session(joined.session)
        self._backoff.answered()
        log.info("client %d joined run %s with %s", self.client_id, prepared.run_id, prepared.architecture)
        self._check_patience(joined.lease.ToTimedelta())
        async with EventStream(self._connection.follow(self._session)) as inbox:
            while True:
                ended = await inbox.act_on_newest(self._act)
                self._backoff.succeeded()
                if ended is not None:
                    return ended

    def _check_patience(self, lease: timedelta) -> None:
        if self._options.patience < lease:
            log.warning(
                "client %d gives up after %gs without the server, but after a crash its id may be reserved for %gs; "
                "a longer --patience would bring it back",
                self.client_id,
                self._options.patience.total_seconds(),
                lease.total_seconds(),
            )

    async def _prepare(self) -> ClientSetup:
        described = await self._connection.get_run()
        if self._prepared is None or self._prepared.run_id != described.run_id:
            await self._abandon_work()  # it was for another run
            config = run_from_proto(described.config)
            async with self._slot:
                with as_training_error():
                    self._prepared = await asyncio.to_thread(
                        prepare, config, described.run_id, self.client_id, self._options.local
                    )
            if self._directory is not None:
                self._directory.close()
            self._directory = ClientDirectory(self._options.state_dir, described.run_id, self.client_id)
            self._take_up(resume(self._prepared, self._directory))
        return self._prepared

    def _take_up(self, checkpoint: Checkpoint | None) -> None:
        self._session, self._done, self._last_work = "", None, None
        if checkpoint is not None:
            self._last_work = Work(
                round=checkpoint.round, metrics=checkpoint.metrics, contribution=checkpoint.contribution
            )

    async def _act(self, event: pb.RoundEvent) -> ExitCode | None:
        """Does what an event asks for; says how the run ended once it has."""
        match event.WhichOneof("event"):
            case "waiting":
                fault_point("client.follow.waiting")
                log.info("client %d waits: %s", self.client_id, event.waiting.reason)
            case "round_opened":
                await self._do_round(event.round_opened.round, train=event.round_opened.selected)
            case "final_evaluation":
                await self._do_round(event.final_evaluation.round, train=False)
            case "server_draining":
                raise ServerUnavailableError("the server is going away")
            case "run_ended":
                fault_point("client.end.told")
                return self._run_ended(event.run_ended)
        return None

    async def _do_round(self, number: int, *, train: bool) -> None:
        if (number, train) == self._done:
            return
        try:
            work = await self._work_of(number, train=train)
            await self._connection.report(pb.ReportRequest(session=self._session, round=number, metrics=work.metrics))
            fault_point("client.report.answered")
            if work.contribution is not None and train:
                await self._connection.upload(self._session, number, work.contribution)
                fault_point("client.upload.receipt")
                log.info("client %d has uploaded round %d", self.client_id, number)
        except CallRefusedError as error:
            if error.reason not in LATE_REASONS:
                raise
            log.warning("client %d is too late for round %d: %s", self.client_id, number, error)
            return
        self._done = (number, train)

    async def _work_of(self, number: int, *, train: bool) -> Work:
        """The work of a round, done once: found on disk, still under way from before, or begun now."""
        last = self._last_work
        if last is not None and last.round == number and (last.contribution is not None or not train):
            return last
        if self._under_way is None or self._under_way[0] != (number, train):
            await self._finish_what_is_under_way()
            rules = self._download_rules()
            download = await self._connection.download(self._session, number, rules)
            work = self._work(number, download.encoded, download.message_bytes, train=train)
            self._under_way = ((number, train), asyncio.create_task(work))
        try:
            self._last_work = await asyncio.shield(self._under_way[1])
        except FedDBPError as error:  # whatever it is, the server should not have to guess
            await self._report_failure(number, error)
            raise
        self._under_way = None
        return self._last_work

    async def _abandon_work(self) -> None:
        """A run that has ended has no use for what is under way, and a thread left behind would keep the process."""
        if self._under_way is not None:
            self.stop()
            await self._finish_what_is_under_way()

    async def _finish_what_is_under_way(self) -> None:
        """A thread cannot be stopped: work that came too late for its round ends before the next begins."""
        if self._under_way is not None:
            _, task = self._under_way
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # looked at, so that nobody complains that it was not; it is of no use any more
            self._under_way = None

    async def _work(self, number: int, received: Encoded, bytes_down: int, *, train: bool) -> Work:
        prepared = self._prepared
        assert prepared is not None
        payload = decode(received.manifest, received.body())
        loop = asyncio.get_running_loop()
        async with self._slot:
            with as_training_error():
                if train:
                    result = await asyncio.to_thread(
                        prepared.local.train, payload, number, self._progress_sender(number, loop)
                    )
                else:
                    result = await asyncio.to_thread(prepared.local.observe, payload, number)
        work = self._finished(number, result, bytes_down)
        fault_point("client.work.done")
        if train or number == prepared.config.rounds:
            checkpoint = replace(
                prepared.checkpoint(number, work.metrics), contribution=work.contribution, received=received
            )
            assert self._directory is not None
            await asyncio.to_thread(checkpoint.save, self._directory.checkpoint)
            fault_point("client.work.saved")
        return work

    def _finished(self, number: int, result: RoundResult, bytes_down: int) -> Work:
        assert self._prepared is not None
        contribution = None
        result.metrics.bytes_down = bytes_down
        if result.contribution is not None:
            contribution = encode(result.contribution, real_type=self._prepared.config.wire_type)
            result.metrics.bytes_up = sum(part.ByteSize() for part in upload_parts(self._session, number, contribution))
        return Work(round=number, metrics=result.metrics, contribution=contribution)

    def _progress_sender(self, number: int, loop: asyncio.AbstractEventLoop) -> OnEpoch:
        """Tells the server how far training is, from the worker thread, without waiting for it."""

        def send(done: int, epochs: int) -> None:
            progress = pb.Progress(epochs_done=done, epochs=epochs)
            request = pb.ReportRequest(session=self._session, round=number, progress=progress)
            asyncio.run_coroutine_threadsafe(self._quietly(request), loop)

        return _at_most_every(0.5, send)

    async def _quietly(self, request: pb.ReportRequest) -> None:
        try:
            await self._connection.report(request)
        except (ServerUnavailableError, CallRefusedError) as error:
            log.debug("client %d: a progress report was lost: %s", self.client_id, error)

    async def _report_failure(self, number: int, error: FedDBPError) -> None:
        failure = pb.Failure(cause=str(error))
        await self._quietly(pb.ReportRequest(session=self._session, round=number, failure=failure))

    def _download_rules(self) -> PayloadRules:
        assert self._prepared is not None
        config = self._prepared.config
        return config.method_spec.download_rules(config.settings, config.exchange_shape)

    def _run_ended(self, ended: pb.RunEnded) -> ExitCode:
        finished = ended.outcome == pb.RUN_OUTCOME_FINISHED
        log.log(
            logging.INFO if finished else logging.ERROR,
            "client %d: the run %s: %s",
            self.client_id,
            pb.RunOutcome.Name(ended.outcome).removeprefix("RUN_OUTCOME_").lower(),
            ended.reason,
        )
        if self._directory is not None and self._directory.checkpoint.exists():
            log.info("client %d has kept what it learnt in %s", self.client_id, self._directory.checkpoint)
        return ExitCode.OK if finished else ExitCode.RUN_FAILED

    def _run_ended_without_us(self, reason: str) -> ExitCode:
        log.info("client %d: %s", self.client_id, reason)
        return ExitCode.OK if self._did_last_evaluation() else ExitCode.RUN_FAILED

    def _did_last_evaluation(self) -> bool:
        return (
            self._prepared is not None
            and self._last_work is not None
            and self._last_work.round == self._prepared.config.rounds
        )

    async def _wait_for_server(self, error: Exception) -> None:
        delay = self._backoff.next_delay()
        if delay is None:
            if isinstance(error, ServerUnavailableError):
                waited = self._options.patience.total_seconds()
                raise ServerUnavailableError(f"{error}; gave up after {waited:g}s") from None
            raise error
        log.warning("client %d: %s; trying again in %.1fs", self.client_id, error, delay)
        await asyncio.sleep(delay)


def _at_most_every(seconds: float, call: OnEpoch) -> OnEpoch:
    last = -seconds

    def limited(done: int, epochs: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            call(done, epochs)

    return limited
