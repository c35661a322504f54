"""The session loop of one client: join, follow events, run rounds, retry, leave."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.compute.slots import TrainingSlots
from feddbp_client.daemon.backoff import Backoff
from feddbp_client.daemon.connection import REJOIN_REASONS, CallRefusedError, Connection, ServerUnavailableError
from feddbp_client.daemon.event_stream import EventStream
from feddbp_client.daemon.progress_log import progress_logged
from feddbp_client.daemon.reply_checks import InvalidReplyError, check_round, checked_config
from feddbp_client.daemon.round_worker import Assignment, RoundWorker
from feddbp_client.daemon.run_end import RunEnd
from feddbp_client.privacy.ledger import EPSILON_BUDGET
from feddbp_client.privacy.release import prepare_release
from feddbp_client.training.client_directory import ClientDirectory
from feddbp_client.training.errors import as_training_error
from feddbp_client.training.setup import LocalOptions, build_client
from feddbp_common.artifacts import CHECKPOINT_NAME, client_directory
from feddbp_common.config.features import describe_missing, missing_features, supported_features
from feddbp_common.config.privacy_text import privacy_sentences
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError, ExitCode, FedDBPError
from feddbp_common.fault_injection import fault_point
from feddbp_common.printable import printable
from feddbp_common.version import VERSION

log = logging.getLogger("feddbp.client")

_NEVER_REACHED: Final = ": is feddbp-server running there? --server HOST:PORT names another"


class MissingFeatureError(FedDBPError):
    """The run needs a feature that this version does not have."""

    exit_code = ExitCode.REFUSED


class UnwantedRunError(FedDBPError):
    """The run is not one that this client's operator lets it take part in."""

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, kw_only=True)
class DaemonOptions:
    """Where a daemon keeps its state, how long it retries, and what it trains with."""

    state_dir: Path
    patience: timedelta
    local: LocalOptions
    epsilon_budget: float = EPSILON_BUDGET
    """Most epsilon of all releases of a client together."""
    next_run: bool = False
    """Whether to wait for a server after a run that has ended: for that of the next run."""
    server_moved: bool = False
    """Whether a run's directory may be used with another server than before."""
    require_secure_sums: int | None = None
    """The fewest clients of a sum; None if runs are joined whose server sees more than sums."""
    name: str = ""
    """Shown to operators beside the client's id."""


class ClientDaemon:
    """Owns a client's session with the server: joins the server's current run and rejoins until the run ends."""

    def __init__(self, client_id: int, connection: Connection, options: DaemonOptions, *, slots: TrainingSlots) -> None:
        self.client_id = client_id
        self._connection = connection
        self._options = options
        self._slots = slots
        self._backoff = Backoff(patience=options.patience, clock=time.monotonic)
        self._session = ""
        self._run = pb.RunConfig()
        """As the server described it when the worker was made."""
        self._worker: RoundWorker | None = None
        self._calls_ended = asyncio.Event()
        self._has_reached_server = False
        self._end = RunEnd(client_id, options.state_dir, next_run=options.next_run, patience=options.patience)

    @property
    def has_joined(self) -> bool:
        return bool(self._session)

    async def run(self) -> ExitCode:
        """Takes part until the run ends; retries lost connections while patience lasts."""
        try:
            while True:
                try:
                    return await self._run_session()
                except ServerUnavailableError as error:
                    if (ended := await self._ended_without_server(error)) is not None:
                        return ended
                except CallRefusedError as error:
                    if error.reason == pb.REFUSAL_REASON_RUN_ENDED:
                        return self._ended_while_away(str(error))
                    if error.reason not in REJOIN_REASONS:
                        raise
                    await self._wait_before_retry(error)
        finally:
            self._calls_ended.set()
            await self._close_worker()

    def stop(self) -> None:
        """Stops training in progress; the caller then cancels `run`."""
        if self._worker is not None:
            self._worker.stop()

    async def leave(self) -> None:
        """Leaves the run, so that the server does not wait for this client; to be called when `run` is cancelled."""
        if not self._session:
            return
        await self._calls_ended.wait()  # the server would refuse calls that arrive after the goodbye
        try:
            await self._connection.leave(self._session, "stopped by its operator")
        except (ServerUnavailableError, CallRefusedError) as error:
            log.warning("client %d could not leave the run: %s", self.client_id, error)

    async def _run_session(self) -> ExitCode:
        worker = await self._worker_for_current_run()
        await self._join(worker)

        async def handle(event: pb.RoundEvent) -> ExitCode | None:
            return await self._handle(event, worker)

        async with EventStream(self._connection.follow(self._session)) as events:
            while True:
                ended = await events.act_on_newest(handle)
                self._backoff.succeeded()
                if ended is not None:
                    return ended

    async def _worker_for_current_run(self) -> RoundWorker:
        described = await self._connection.get_run()
        self._has_reached_server = True
        same_run = self._worker is not None and self._worker.client.run_id == described.run_id
        if self._worker is None or not same_run or described.config != self._run:  # a run may have been extended
            await self._close_worker()
            _check_features(described)
            config = checked_config(described)
            _check_wanted(config, self._options.require_secure_sums)
            loading = progress_logged(lambda: f"client {self.client_id}: loading data and model")
            async with self._slots.alone(), loading:
                with as_training_error():
                    client = await asyncio.to_thread(
                        build_client,
                        config,
                        described.run_id,
                        self.client_id,
                        self._local_options(described.run_id),
                    )
            directory = ClientDirectory(
                self._options.state_dir,
                described.run_id,
                self.client_id,
                server=self._connection.server_identity,
                moved=self._options.server_moved,
            )
            try:
                client.trainer.release_table = await asyncio.to_thread(
                    prepare_release,
                    config.privacy,
                    directory.path,
                    run_id=described.run_id,
                    client_id=self.client_id,
                    budget=self._options.epsilon_budget,
                    sharers=config.noise_sharers,
                )
                slot = self._slots.on(self._options.local.compute.device)
                least = self._options.require_secure_sums or 0
                self._worker = RoundWorker(client, directory, self._connection, training_slot=slot, least_summed=least)
            except BaseException:
                directory.close()
                raise
            self._worker.resume()
            self._run = described.config
            self._session = ""
        return self._worker

    def _local_options(self, run_id: str) -> LocalOptions:
        """Without `init_from` for a client that has a checkpoint of the run: what it began with may be gone by now."""
        local = self._options.local
        directory = client_directory(self._options.state_dir, run_id, self.client_id)
        return replace(local, init_from=None) if (directory / CHECKPOINT_NAME).exists() else local

    async def _close_worker(self) -> None:
        if self._worker is not None:
            await self._worker.close()
            self._worker = None

    async def _join(self, worker: RoundWorker) -> None:
        client = worker.client
        capabilities = client.capabilities()
        capabilities.name = self._options.name
        fault_point("client.join.calling")
        joined = await self._connection.join(
            pb.JoinRequest(
                run_id=client.run_id,
                client_id=self.client_id,
                previous_session=self._session or worker.directory.session(),
                data=client.data_summary(),
                capabilities=capabilities,
                features=supported_features(client.config.method),
            )
        )
        fault_point("client.join.answered")
        self._session = joined.session
        worker.start_session(joined.session)
        worker.directory.save_session(joined.session)
        self._backoff.answered()
        log.info(
            "client %d joined run %s with %s on %s", self.client_id, client.run_id, client.architecture, client.compute
        )
        for sentence in privacy_sentences(client.config):
            log.info("client %d: %s", self.client_id, sentence)
        self._check_patience(joined.lease.ToTimedelta())

    def _check_patience(self, lease: timedelta) -> None:
        if self._options.patience < lease:
            log.warning(
                "client %d stops retrying after %gs, but after a crash the server may reserve its id for %gs; "
                "give a longer --patience",
                self.client_id,
                self._options.patience.total_seconds(),
                lease.total_seconds(),
            )

    async def _handle(self, event: pb.RoundEvent, worker: RoundWorker) -> ExitCode | None:
        """Runs the round an event announces; returns an exit code when the event ends the run."""
        check_round(event, worker.client.config.rounds)
        match event.WhichOneof("event"):
            case "waiting":
                fault_point("client.follow.waiting")
                log.info("client %d waits: %s", self.client_id, printable(event.waiting.reason))
            case "round_opened":
                opened = event.round_opened
                self._end.completed_rounds = opened.round
                await worker.run_round(Assignment(opened.round, train=opened.selected, event=event))
            case "final_evaluation":
                number = self._end.completed_rounds = event.final_evaluation.round
                await worker.run_round(Assignment(number, train=False, event=event, final=True))
            case "server_draining":
                raise ServerUnavailableError("the server is shutting down")
            case "run_ended":
                fault_point("client.end.notified")
                return self._end.announced(event.run_ended, worker.directory, rounds=worker.client.config.rounds)
        return None

    def _ended_while_away(self, reason: str) -> ExitCode:
        worker = self._worker
        if worker is None:
            return self._end.end_while_away(reason, None, has_evaluated=False)
        return self._end.end_while_away(reason, worker.directory, has_evaluated=worker.has_final_evaluation)

    async def _ended_without_server(self, error: ServerUnavailableError) -> ExitCode | None:
        """Waits before the next attempt, unless there is nothing to wait for; then returns an exit code."""
        server = self._connection.server_identity
        ended = self._end.end_without_server(error, None if self._worker is None else self._worker.directory, server)
        if ended is not None:
            return ended
        await self._check_for_mistake()
        recorded = None if self._has_reached_server else self._end.recorded_ending(server)
        if recorded is None:
            await self._wait_before_retry(error)
        elif await self._end.is_confirmed():
            left = "its server does not answer, nothing is left to do (--next-run waits for another run)"
            log.info("client %d: %s; %s", self.client_id, recorded.text, left)
            return recorded.exit_code
        return None

    async def _check_for_mistake(self) -> None:
        """Raises what no retry would mend. A server that has answered before was given correctly, and may come back."""
        if not self._has_reached_server:
            mistake = await self._connection.find_mistake()
            if mistake is not None:
                raise mistake

    async def _wait_before_retry(self, error: Exception) -> None:
        asked = error.retry_after if isinstance(error, ServerUnavailableError) else None
        delay = self._backoff.next_delay(asked=asked)
        if delay is None:
            if isinstance(error, ServerUnavailableError):
                gave_up = f"{error}; gave up after {self._options.patience.total_seconds():g}s"
                raise ServerUnavailableError(gave_up if self._has_reached_server else f"{gave_up}{_NEVER_REACHED}")
            raise error
        log.warning("client %d: %s; trying again in %.1fs", self.client_id, error, delay)
        await asyncio.sleep(delay)


def _check_wanted(config: RunConfig, least: int | None) -> None:
    if least is not None and not config.privacy.secure_sums:
        raise UnwantedRunError("the server's run has no secure sums, and --require-secure-sums is given")
    if least is not None and least > config.clients:
        raise UnwantedRunError(f"the server's run has {config.clients} clients; --require-secure-sums is {least}")


def _check_features(described: pb.GetRunResponse) -> None:
    try:
        supported = supported_features(described.config.method)
    except ConfigurationError as error:
        raise InvalidReplyError("GetRun", "config.method", str(error)) from None
    lacking = missing_features(described.required_features, supported)
    if lacking:
        raise MissingFeatureError(describe_missing(lacking, client=VERSION, server=described.software_version))
