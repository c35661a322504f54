"""The rounds of one run on a client: download, train or evaluate, checkpoint, report, upload."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import LATE_REASONS, CallRefusedError, Connection, ServerUnavailableError
from feddbp_client.daemon.progress_log import progress_logged, results_text
from feddbp_client.daemon.reply_checks import OutOfBoundsError
from feddbp_client.daemon.sum_journal import SkippedSumError
from feddbp_client.daemon.transfers import Download, pushed_download, upload_bytes
from feddbp_client.training.client_directory import ClientDirectory
from feddbp_client.training.errors import as_training_error
from feddbp_client.training.setup import LocalClient, restore_checkpoint
from feddbp_client.training.trainer import OnEpoch, RoundResult
from feddbp_common.errors import FedDBPError, ProtocolViolationError
from feddbp_common.fault_injection import fault_point
from feddbp_common.humanize import round_name
from feddbp_common.methods.sums import without_holders
from feddbp_common.printable import printable
from feddbp_common.wire import Encoded, PayloadRules, encode

if TYPE_CHECKING:
    from feddbp_client.daemon.secure_round import SecureRound, SecureRounds

log = logging.getLogger("feddbp.client")

_PROGRESS_SECONDS: Final = 0.5
"""Shortest time between two progress reports."""


@dataclass(frozen=True)
class Assignment:
    """A round, and whether the client trains in it or only evaluates."""

    round: int
    train: bool
    event: pb.RoundEvent | None = field(default=None, compare=False, repr=False)
    """Which announced it, perhaps with the client's state."""
    final: bool = False
    """Whether it is the evaluation after the last round, which may come before the last one that was planned."""


@dataclass(frozen=True, kw_only=True)
class CompletedRound:
    """The metrics to report and, if the client trained, the encoded upload."""

    round: int
    metrics: pb.RoundMetrics | None
    """None if the client could not even evaluate what it received."""
    upload: Encoded | None
    final: bool = False
    skipped: str = ""
    """Why the client skips the round; empty if it does not."""

    def satisfies(self, assignment: Assignment) -> bool:
        has_result = self.upload is not None or bool(self.skipped) or not assignment.train
        return self.round == assignment.round and has_result


class RoundWorker:
    """Owns a client's progress in one run: the cached last round, the round in progress, its delivery, the checkpoint.

    Training runs in a thread and outlives a lost connection: its result is delivered in the next session.
    """

    def __init__(
        self,
        client: LocalClient,
        directory: ClientDirectory,
        connection: Connection,
        *,
        training_slot: asyncio.Semaphore,
        least_summed: int = 0,
    ) -> None:
        self.client = client
        self.directory = directory
        self._connection = connection
        self._slot = training_slot
        self._session = ""
        self._cached: CompletedRound | None = None
        self._running: tuple[Assignment, asyncio.Task[CompletedRound]] | None = None
        self._delivered: Assignment | None = None
        """The last assignment that was reported and uploaded in this session."""
        self._stopped = False
        self._ends_at = client.config.rounds
        """The round of the final evaluation: fewer than planned in a run that is stopped early."""
        self._sums: SecureRounds | None = None
        """None unless the run has secure sums."""
        if client.config.privacy.secure_sums:
            from feddbp_client.daemon.secure_round import SecureRounds  # cryptography is slow to import

            self._sums = SecureRounds(
                client.client_id,
                client.run_id,
                client.config,
                directory=directory.path,
                connection=connection,
                least=least_summed,
            )
        self._epochs_done = ""
        """Of the training in progress, for the log."""

    def resume(self) -> None:
        """Restores weights and the last completed round from the checkpoint, if there is one."""
        checkpoint = restore_checkpoint(self.client, self.directory)
        if checkpoint is not None:
            # a checkpoint without an upload is written after the final evaluation alone
            self._cached = CompletedRound(
                round=checkpoint.round,
                metrics=checkpoint.metrics,
                upload=checkpoint.upload,
                final=checkpoint.upload is None,
            )

    def start_session(self, session: str) -> None:
        """Delivers under this session from now on."""
        self._session = session
        if self._sums is not None:
            self._sums.start_session(session)
        # The server may have been restored from an older backup: deliver again, which costs a header if it was not.
        self._delivered = None

    @property
    def has_final_evaluation(self) -> bool:
        return self._cached is not None and self._cached.final

    async def run_round(self, assignment: Assignment) -> None:
        """Delivers the round's result, computing it first unless it is cached or in progress."""
        if assignment == self._delivered:
            return
        number = assignment.round
        self._ends_at = number if assignment.final else self.client.config.rounds
        try:
            completed = self._sendable(await self._completed(assignment), assignment)
            if completed.upload is not None and assignment.train:
                await self._upload(completed, completed.upload)
            elif completed.metrics is not None:
                await self._report(completed)
            if completed.skipped:
                await self._skip(completed)
        except CallRefusedError as error:
            if error.reason not in LATE_REASONS:
                raise
            log.warning("%s: too late: %s", self._name(number), error)
            return
        if completed.metrics is not None and not completed.skipped:
            log.info("%s: %s", self._name(number), results_text(number, completed.metrics))
        if self._sums is not None and assignment.train and not completed.skipped:
            async with progress_logged(lambda: f"{self._name(number)}: waiting for the sum"):
                await self._sums.open(number)
        self._delivered = assignment

    def _sendable(self, completed: CompletedRound, assignment: Assignment) -> CompletedRound:
        """The round's result, without an upload that must not follow another one under the same masks."""
        if self._sums is None or completed.upload is None or not assignment.train:
            return completed
        try:
            self._sums.sending(completed.round, completed.upload.manifest.sha256)
        except SkippedSumError as error:
            return replace(completed, upload=None, skipped=str(error))
        return completed

    async def _skip(self, completed: CompletedRound) -> None:
        """Tells the server that nothing more is to be expected in this round; the client stays for the next one."""
        number, cause = completed.round, completed.skipped
        log.warning("%s is skipped: %s", self._name(number), cause)
        failure = pb.Failure(cause=cause, skips_round=True)
        await self._connection.report(pb.ReportRequest(session=self._session, round=number, failure=failure))
        if completed.final:
            self.directory.set_reported()

    async def _report(self, completed: CompletedRound) -> None:
        request = pb.ReportRequest(session=self._session, round=completed.round, metrics=completed.metrics)
        await self._connection.report(request)
        if completed.final:
            self.directory.set_reported()
        fault_point("client.report.answered")

    async def _upload(self, completed: CompletedRound, upload: Encoded) -> None:
        """Uploads with the report on the round, or after it if the server takes them apart."""
        number, together = completed.round, self._connection.reports_with_upload
        if not together:
            await self._report(completed)
        try:
            async with progress_logged(lambda: f"{self._name(number)}: uploading"):
                await self._connection.upload(self._session, number, upload, completed.metrics if together else None)
        except CallRefusedError as error:
            if together and error.reason in LATE_REASONS:  # the report was refused with it, but counts all the same
                await self._report(completed)
            raise
        fault_point("client.upload.receipt")

    def stop(self) -> None:
        """Stops the training in progress at its next batch; the worker cannot train afterwards."""
        self._stopped = True
        self.client.trainer.stop()

    async def close(self) -> None:
        """Aborts the round in progress, then releases the directory: no thread may write to it without its lock."""
        if self._running is not None:
            self.stop()
            await self._wait_until_idle()
        self.directory.close()

    async def _completed(self, assignment: Assignment) -> CompletedRound:
        if self._cached is not None and self._cached.satisfies(assignment):
            return self._cached
        if self._running is None or self._running[0] != assignment:
            await self._wait_until_idle()
            try:
                download = await self._download(assignment, self.client.config.download_rules)
                work = await self._work_on(assignment, download)
            except OutOfBoundsError as error:
                self._cached = CompletedRound(
                    round=assignment.round, metrics=None, upload=None, final=assignment.final, skipped=str(error)
                )
                return self._cached
            self._running = (assignment, asyncio.create_task(work))
        try:
            self._cached = await asyncio.shield(self._running[1])
        except FedDBPError as error:
            await self._report_best_effort(assignment.round, failure=pb.Failure(cause=printable(str(error))))
            raise
        self._running = None
        return self._cached

    async def _download(self, assignment: Assignment, rules: PayloadRules) -> Download:
        pushed = None if assignment.event is None else pushed_download(assignment.event, rules)
        if pushed is not None:
            return pushed
        async with progress_logged(lambda: f"{self._name(assignment.round)}: downloading"):
            return await self._connection.download(self._session, assignment.round, rules)

    async def _work_on(self, assignment: Assignment, download: Download) -> Coroutine[Any, Any, CompletedRound]:
        """The work of a round. A client that cannot be in its secure sum only evaluates."""
        if self._sums is None or not assignment.train:
            return self._compute(assignment, download)
        try:
            async with progress_logged(lambda: f"{self._name(assignment.round)}: agreeing on the sum"):
                secure = await self._sums.agree(assignment.round, download.encoded.manifest.sha256)
        except SkippedSumError as error:
            return self._compute(replace(assignment, train=False), download, skipped=str(error))
        return self._compute(assignment, download, secure)

    async def _wait_until_idle(self) -> None:
        """Waits for a round in progress that is no longer needed: its thread cannot be cancelled."""
        if self._running is not None:
            _, task = self._running
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # retrieved, or asyncio would log it as never retrieved
            self._running = None

    async def _compute(
        self, assignment: Assignment, download: Download, secure: SecureRound | None = None, *, skipped: str = ""
    ) -> CompletedRound:
        trainer, number = self.client.trainer, assignment.round
        received = without_holders(download.payload)
        self._epochs_done = ""
        work = "training" if assignment.train else "evaluating"
        async with self._slot, progress_logged(lambda: f"{self._name(number)}: {work}{self._epochs_done}"):
            with as_training_error():
                if assignment.train:
                    on_epoch = self._progress_reporter(number)
                    result = await asyncio.to_thread(trainer.train, received, number, on_epoch)
                else:
                    result = await asyncio.to_thread(trainer.evaluate, received, number)
        # In threads: the event loop is free at once, and the next client begins to train.
        completed = await asyncio.to_thread(self._encoded, number, result, download, secure)
        completed = replace(completed, final=assignment.final, skipped=completed.skipped or skipped)
        fault_point("client.work.done")
        if not completed.skipped and (assignment.train or assignment.final):
            await asyncio.to_thread(self._save, completed, download.encoded)
            fault_point("client.work.saved")
        return completed

    def _encoded(
        self, number: int, result: RoundResult, download: Download, secure: SecureRound | None
    ) -> CompletedRound:
        upload = None
        result.metrics.bytes_down = download.message_bytes
        if result.upload is not None:
            payload = result.upload
            if self.client.config.sends_terms:
                payload = self.client.term_of(payload, download.payload)
            if secure is not None:
                try:
                    payload = secure.masked(payload)
                except ProtocolViolationError as error:
                    return CompletedRound(round=number, metrics=result.metrics, upload=None, skipped=str(error))
            upload = encode(payload, real_type=self.client.config.wire_type)
            result.metrics.bytes_up = upload_bytes(
                self._session, number, upload, awaits_admission=self._connection.awaits_admission
            )
        if secure is not None:
            result.metrics.bytes_up += secure.bytes_up
            result.metrics.bytes_down += secure.bytes_down
        return CompletedRound(round=number, metrics=result.metrics, upload=upload, skipped=result.skipped)

    def _save(self, completed: CompletedRound, received: Encoded) -> None:
        assert completed.metrics is not None
        checkpoint = replace(
            self.client.checkpoint(completed.round, completed.metrics), upload=completed.upload, received=received
        )
        checkpoint.save(self.directory.checkpoint)

    def _progress_reporter(self, number: int) -> OnEpoch:
        """A callback for the training thread that reports progress without blocking it."""
        loop = asyncio.get_running_loop()

        def report(done: int, epochs: int) -> None:
            progress = pb.Progress(epochs_done=done, epochs=epochs)
            asyncio.run_coroutine_threadsafe(self._report_best_effort(number, progress=progress), loop)

        throttled = _throttled(_PROGRESS_SECONDS, report)

        def on_epoch(done: int, epochs: int) -> None:
            self._epochs_done = f", {done}/{epochs} epochs done"
            throttled(done, epochs)

        return on_epoch

    async def _report_best_effort(
        self, number: int, *, progress: pb.Progress | None = None, failure: pb.Failure | None = None
    ) -> None:
        if self._stopped:  # on purpose, which is no failure, and the session may be over
            return
        request = pb.ReportRequest(session=self._session, round=number, progress=progress, failure=failure)
        try:
            await self._connection.report(request)
        except (ServerUnavailableError, CallRefusedError) as error:
            log.debug("%s: a report was lost: %s", self._name(number), error)

    def _name(self, number: int) -> str:
        return f"client {self.client.client_id}: {round_name(number, self.client.config.rounds, ends_at=self._ends_at)}"


def _throttled(seconds: float, call: OnEpoch) -> OnEpoch:
    """Drops calls that follow the last one within `seconds`."""
    last = -seconds

    def throttled(done: int, epochs: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            call(done, epochs)

    return throttled
