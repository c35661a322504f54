"""The daemon in rounds that close early, repeat, fail or end, with a fake connection and a fake trainer."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

import numpy as np
import pytest

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.compute.devices import CPU
from feddbp_client.compute.plan import Compute
from feddbp_client.compute.slots import TrainingSlots
from feddbp_client.daemon import round_worker as round_worker_module
from feddbp_client.daemon import run_end as run_end_module
from feddbp_client.daemon import session_loop as daemon_module
from feddbp_client.daemon.connection import CallRefusedError, ServerUnavailableError
from feddbp_client.daemon.reply_checks import InvalidReplyError, OutOfBoundsError
from feddbp_client.daemon.round_worker import Assignment, RoundWorker
from feddbp_client.daemon.session_loop import ClientDaemon, DaemonOptions
from feddbp_client.daemon.transfers import Download
from feddbp_client.training import checkpoint as checkpoint_module
from feddbp_client.training.checkpoint import Checkpoint
from feddbp_client.training.client_directory import ClientDirectory
from feddbp_client.training.errors import TrainingError
from feddbp_client.training.setup import LocalOptions
from feddbp_client.training.trainer import RoundResult, TrainerState
from feddbp_common.artifacts import CHECKPOINT_NAME
from feddbp_common.config.run import RunConfig, run_to_proto
from feddbp_common.errors import ConfigurationError, ExitCode, FedDBPError
from feddbp_common.printable import printable
from feddbp_common.wire import Encoded, Payload, PayloadRules, PrototypeSet, encode

CONFIG = RunConfig(rounds=3)
Script = Callable[["FakeConnection"], AsyncIterator[pb.RoundEvent]]


class Start(Protocol):
    def __call__(self, server: FakeConnection, *, patience: timedelta = ..., next_run: bool = ...) -> ClientDaemon: ...


class FakeConnection:
    """Replaces the connection: yields a script of events and records the client's calls."""

    awaits_admission = True
    server_identity = "127.0.0.1:50051"

    def __init__(
        self,
        script: Script,
        *,
        closed_rounds: frozenset[int] = frozenset(),
        late_uploads: frozenset[int] = frozenset(),
        reports_with_upload: bool = False,
    ) -> None:
        self.reports_with_upload = reports_with_upload
        self._late_uploads = late_uploads
        self.calls: list[str] = []
        self.run_id = "first"
        self.failures: list[str] = []
        self.payload = Payload()
        self.mistake: FedDBPError | None = None
        self.download_error: FedDBPError | None = None
        self._script = script
        self._closed_rounds = closed_rounds
        self._changed = asyncio.Event()

    async def has_seen(self, call: str) -> None:
        while call not in self.calls:
            self._changed.clear()
            await self._changed.wait()

    def _record(self, call: str) -> None:
        self.calls.append(call)
        self._changed.set()

    async def find_mistake(self) -> FedDBPError | None:
        return self.mistake

    async def get_run(self) -> pb.GetRunResponse:
        return pb.GetRunResponse(config=run_to_proto(CONFIG), run_id=self.run_id)

    async def join(self, request: pb.JoinRequest) -> pb.JoinResponse:
        return pb.JoinResponse(session="session", epoch=1)

    def follow(self, session: str) -> AsyncIterator[pb.RoundEvent]:
        return self._script(self)

    async def download(self, session: str, round_number: int, rules: PayloadRules) -> Download:
        self._record(f"download {round_number}")
        if self.download_error is not None:
            raise self.download_error
        if round_number in self._closed_rounds:
            raise round_is_closed()
        return Download(payload=self.payload, encoded=encode(self.payload), message_bytes=0)

    async def report(self, request: pb.ReportRequest) -> None:
        if request.HasField("failure"):
            self.failures.append(request.failure.cause)
        self._record(f"{'skip' if request.failure.skips_round else 'report'} {request.round}")

    async def upload(
        self, session: str, round_number: int, encoded: Encoded, metrics: pb.RoundMetrics | None = None
    ) -> None:
        self._record(f"upload {round_number}" if metrics is None else f"upload and report {round_number}")
        if round_number in self._late_uploads:
            raise round_is_closed()

    async def leave(self, session: str, reason: str) -> None:
        self._record("leave")


def round_is_closed() -> CallRefusedError:
    return CallRefusedError("the round is closed", pb.Refusal(reason=pb.REFUSAL_REASON_WRONG_ROUND, current_round=1))


class FakeTrainer:
    """Trains nothing once it may `proceed`; with `endless`, until it is stopped."""

    def __init__(self) -> None:
        self.endless = False
        self.error: Exception | None = None
        self.skipped = ""
        self.received: list[Payload] = []
        self.proceed = threading.Event()
        self.proceed.set()
        self.on_stop: Callable[[], None] = lambda: None
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def evaluate(self, received: Payload, round_number: int) -> RoundResult:
        return RoundResult(metrics=pb.RoundMetrics(), upload=None)

    def train(self, received: Payload, round_number: int, on_epoch: object) -> RoundResult:
        self.received.append(received)
        assert self.proceed.wait(60)
        if self.endless:
            assert self._stopped.wait(60)
            self.on_stop()
            raise TrainingError("stopped")
        if self.error is not None:
            raise self.error
        upload = None if self.skipped else Payload()
        return RoundResult(metrics=pb.RoundMetrics(), upload=upload, skipped=self.skipped)


def opened(number: int, *, selected: bool = True) -> pb.RoundEvent:
    return pb.RoundEvent(round_opened=pb.RoundOpened(round=number, selected=selected))


def ended(outcome: pb.RunOutcome.ValueType = pb.RUN_OUTCOME_FINISHED) -> pb.RoundEvent:
    return pb.RoundEvent(run_ended=pb.RunEnded(outcome=outcome, reason="end of the script"))


def one_event(event: pb.RoundEvent) -> Script:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield event

    return script


def empty_checkpoint(round_number: int, metrics: pb.RoundMetrics) -> Checkpoint:
    return Checkpoint(
        run_id="first",
        client_id=0,
        round=round_number,
        architecture="none",
        head="none",
        image_shape=(1, 1, 1),
        class_names=(),
        config=run_to_proto(CONFIG),
        state=TrainerState(model={}),
        metrics=metrics,
    )


@pytest.fixture
def trainer() -> FakeTrainer:
    return FakeTrainer()


@pytest.fixture
def start(tmp_path: Path, trainer: FakeTrainer, monkeypatch: pytest.MonkeyPatch) -> Start:
    trainers = iter((trainer, FakeTrainer()))

    def built(config: RunConfig, run_id: str, *_: object) -> SimpleNamespace:
        return SimpleNamespace(
            client_id=0,
            run_id=run_id,
            config=config,
            trainer=next(trainers),
            architecture="none",
            data_summary=pb.DataSummary,
            capabilities=pb.Capabilities,
            compute=Compute(),
            checkpoint=empty_checkpoint,
        )

    monkeypatch.setattr(daemon_module, "build_client", built)
    local = LocalOptions(data=None, data_dir=tmp_path, model=None)

    def started(server: FakeConnection, *, patience: timedelta = timedelta(0), next_run: bool = False) -> ClientDaemon:
        connection: Any = server
        options = DaemonOptions(state_dir=tmp_path, patience=patience, local=local, next_run=next_run)
        return ClientDaemon(0, connection, options, slots=TrainingSlots({CPU: 1}))

    return started


def with_state(event: pb.RoundEvent, payload: Payload) -> pb.RoundEvent:
    encoded = encode(payload)
    event.state.CopyFrom(pb.PushedState(manifest=encoded.manifest, body=encoded.body()))
    return event


async def test_a_client_whose_rounds_cannot_be_prepared_releases_its_directory(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConfigurationError("cryptography is missing")

    monkeypatch.setattr(daemon_module, "RoundWorker", fail)
    with pytest.raises(ConfigurationError, match="cryptography is missing"):
        await start(FakeConnection(one_event(ended()))).run()
    ClientDirectory(tmp_path, "first", 0).close()


async def test_a_client_that_resumes_does_not_need_what_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_with: list[Path | None] = []

    def build(_: object, __: object, ___: object, options: LocalOptions) -> None:
        began_with.append(options.init_from)
        raise ConfigurationError("built")

    monkeypatch.setattr(daemon_module, "build_client", build)
    local = LocalOptions(data=None, data_dir=tmp_path, model=None, init_from=tmp_path / "gone")
    options = DaemonOptions(state_dir=tmp_path, patience=timedelta(0), local=local)
    directory = tmp_path / "first" / "client-0"
    directory.mkdir(parents=True)
    for is_resumed in (False, True):
        if is_resumed:
            empty_checkpoint(0, pb.RoundMetrics()).save(directory / CHECKPOINT_NAME)
        connection: Any = FakeConnection(one_event(ended()))
        with pytest.raises(ConfigurationError, match="built"):
            await ClientDaemon(0, connection, options, slots=TrainingSlots({CPU: 1})).run()
    assert began_with == [tmp_path / "gone", None]


async def test_a_round_whose_event_has_the_state_is_one_call(start: Start, trainer: FakeTrainer) -> None:
    vectors = np.ones((CONFIG.classes, CONFIG.exchange_shape.feature_dim), np.float32)
    state = Payload(prototypes=PrototypeSet(class_ids=np.arange(CONFIG.classes, dtype=np.int32), vectors=vectors))

    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield with_state(opened(0), state)
        await server.has_seen("upload and report 0")
        yield ended()

    server = FakeConnection(script, reports_with_upload=True)
    assert await start(server).run() is ExitCode.OK
    assert server.calls == ["upload and report 0"]
    (received,) = trainer.received
    assert received.prototypes is not None
    assert (received.prototypes.vectors == vectors).all()


@pytest.mark.parametrize("damage", ["body", "digest"])
async def test_a_state_in_an_event_is_checked_as_one_that_was_downloaded(start: Start, damage: str) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        event = with_state(opened(0), Payload())
        if damage == "body":
            event.state.body = b"more than was declared"
        else:
            event.state.manifest.sha256 = bytes(32)
        yield event
        await asyncio.Event().wait()

    with pytest.raises(InvalidReplyError, match=r"the server's answer to Follow is invalid: (body|sha256): "):
        await start(FakeConnection(script)).run()


async def test_the_report_of_an_upload_that_came_too_late_is_sent_apart(start: Start) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("report 0")
        yield ended()

    server = FakeConnection(script, reports_with_upload=True, late_uploads=frozenset({0}))
    assert await start(server).run() is ExitCode.OK
    assert server.calls == ["download 0", "upload and report 0", "report 0"]


async def test_a_round_that_closed_before_its_download_is_skipped(
    start: Start,
) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("download 0")
        yield opened(1)
        await server.has_seen("upload 1")
        yield ended()

    server = FakeConnection(script, closed_rounds=frozenset({0}))
    assert await start(server).run() is ExitCode.OK
    assert server.calls == ["download 0", "download 1", "report 1", "upload 1"]


async def test_a_round_that_was_only_evaluated_and_reopens_is_trained(
    start: Start,
) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0, selected=False)
        await server.has_seen("report 0")
        yield opened(0, selected=True)
        await server.has_seen("upload 0")
        yield ended()

    server = FakeConnection(script)
    assert await start(server).run() is ExitCode.OK
    assert server.calls == ["download 0", "report 0", "download 0", "report 0", "upload 0"]


async def test_a_round_that_is_announced_twice_runs_once(start: Start) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("upload 0")
        yield pb.RoundEvent(waiting=pb.Waiting(reason="the run is paused"))
        yield opened(0)
        yield opened(1)
        await server.has_seen("upload 1")
        yield ended()

    server = FakeConnection(script)
    assert await start(server).run() is ExitCode.OK
    assert server.calls.count("upload 0") == 1


async def test_training_gets_the_payload_that_the_connection_decoded(start: Start, trainer: FakeTrainer) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("upload 0")
        yield ended()

    server = FakeConnection(script)
    assert await start(server).run() is ExitCode.OK
    (received,) = trainer.received
    assert received is server.payload


async def test_a_round_the_server_has_lost_is_delivered_again_without_training_twice(
    start: Start,
) -> None:
    sessions: list[list[str]] = []

    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        server.calls = []
        sessions.append(server.calls)
        yield opened(0)
        await server.has_seen("upload 0")
        if len(sessions) == 1:
            raise ServerUnavailableError("the disk was lost")
        yield ended()

    server = FakeConnection(script)
    daemon = start(server, patience=timedelta(seconds=30))
    async with asyncio.timeout(30):
        assert await daemon.run() is ExitCode.OK
    assert sessions == [["download 0", "report 0", "upload 0"], ["report 0", "upload 0"]]


async def test_a_round_in_progress_is_delivered_in_the_next_session(start: Start, trainer: FakeTrainer) -> None:
    sessions = 0

    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        nonlocal sessions
        sessions += 1
        yield opened(0)
        await server.has_seen("download 0")
        if sessions == 1:
            raise ServerUnavailableError("the connection was lost")
        trainer.proceed.set()
        await server.has_seen("upload 0")
        yield ended()

    trainer.proceed.clear()
    server = FakeConnection(script)
    async with asyncio.timeout(30):
        assert await start(server, patience=timedelta(seconds=30)).run() is ExitCode.OK
    assert server.calls == ["download 0", "report 0", "upload 0"]


async def test_the_directory_stays_locked_until_the_training_thread_has_ended(
    start: Start, trainer: FakeTrainer, tmp_path: Path
) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("download 0")
        yield ended(pb.RUN_OUTCOME_STOPPED)

    def try_to_lock() -> None:
        with pytest.raises(ConfigurationError, match="another daemon runs client 0"):
            ClientDirectory(tmp_path, "first", 0)
        attempts.append(True)

    attempts: list[bool] = []
    trainer.endless, trainer.on_stop = True, try_to_lock
    async with asyncio.timeout(30):
        await start(FakeConnection(script)).run()
    assert attempts
    ClientDirectory(tmp_path, "first", 0).close()


async def test_an_outcome_of_a_later_server_is_logged_as_its_number(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield ended(cast(pb.RunOutcome.ValueType, 99))

    assert await start(FakeConnection(script)).run() is ExitCode.RUN_FAILED
    assert "the run outcome 99: end of the script" in caplog.text


async def test_run_ended_decides_the_exit_code_even_if_the_server_is_gone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("download 0")
        yield ended(pb.RUN_OUTCOME_STOPPED)

    async def gone(self: FakeConnection, request: pb.ReportRequest) -> None:
        raise ServerUnavailableError("the server does not answer")

    monkeypatch.setattr(FakeConnection, "report", gone)
    assert await start(FakeConnection(script)).run() is ExitCode.RUN_FAILED


async def test_training_is_aborted_when_the_run_is_stopped(start: Start, trainer: FakeTrainer) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("download 0")
        yield ended(pb.RUN_OUTCOME_STOPPED)

    trainer.endless = True
    async with asyncio.timeout(30):
        assert await start(FakeConnection(script)).run() is ExitCode.RUN_FAILED


async def test_a_result_of_one_run_is_never_delivered_to_another(start: Start, trainer: FakeTrainer) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        if server.run_id == "first":
            await server.has_seen("download 0")
            server.run_id = "another"
            raise ServerUnavailableError("restarted with another run")
        await server.has_seen("upload 0")
        yield ended()

    trainer.endless = True
    server = FakeConnection(script)
    daemon = start(server, patience=timedelta(seconds=30))
    async with asyncio.timeout(30):
        assert await daemon.run() is ExitCode.OK
    assert server.calls == ["download 0", "download 0", "report 0", "upload 0"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("CUDA out of memory.\nTry this and that"), "RuntimeError: CUDA out of memory."),
        (NotImplementedError(), "NotImplementedError"),
        (TrainingError("training diverged"), "training diverged"),
        # the name of a file whose bytes are not UTF-8, which no message can have as it is
        (TrainingError("caf\udce9.png was changed"), "caf\udce9.png was changed"),
    ],
)
async def test_an_error_of_training_is_reported_to_the_server_in_one_line(
    start: Start, trainer: FakeTrainer, error: Exception, message: str
) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await asyncio.Event().wait()

    trainer.error = error
    server = FakeConnection(script)
    with pytest.raises(TrainingError) as raised:
        await start(server).run()
    assert str(raised.value) == message
    assert server.failures == [printable(message)]


async def test_the_final_evaluation_completes_even_if_the_run_did_not_wait_for_it(start: Start, tmp_path: Path) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield pb.RoundEvent(final_evaluation=pb.FinalEvaluation(round=CONFIG.rounds))
        await server.has_seen(f"download {CONFIG.rounds}")
        yield ended()

    assert await start(FakeConnection(script)).run() is ExitCode.OK
    assert Checkpoint.load(tmp_path / "first" / "client-0" / CHECKPOINT_NAME).round == CONFIG.rounds


# --- stopping ---


async def test_a_client_that_is_stopped_leaves_without_reporting_a_failure(
    start: Start, trainer: FakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        try:
            yield opened(0)
            await asyncio.Event().wait()
        finally:
            server._record("stream closed")

    trainer.endless = True
    server = FakeConnection(script)
    daemon = start(server)
    running = asyncio.create_task(daemon.run())
    await server.has_seen("download 0")
    assert daemon.has_joined
    running.cancel()
    leaving = asyncio.create_task(daemon.leave())
    await server.has_seen("stream closed")
    actions = [task for task in asyncio.all_tasks() if "handle" in str(task.get_coro())]
    assert actions == []  # the error of a task that nobody waits for would be logged as never retrieved
    daemon.stop()
    with pytest.raises(asyncio.CancelledError):
        await running
    await leaving
    assert server.calls == ["download 0", "stream closed", "leave"]
    assert server.failures == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# --- after the last report ---


def last_evaluation() -> pb.RoundEvent:
    return pb.RoundEvent(final_evaluation=pb.FinalEvaluation(round=CONFIG.rounds))


async def lost_after_the_last_report(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
    yield last_evaluation()
    await server.has_seen(f"report {CONFIG.rounds}")
    yield last_evaluation()  # acted on once the report is answered
    raise ServerUnavailableError("the server does not answer")


class GoneConnection(FakeConnection):
    """A server that has ended."""

    async def get_run(self) -> pb.GetRunResponse:
        raise ServerUnavailableError("the server does not answer")


async def nothing(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
    return
    yield


async def test_a_client_that_has_reported_everything_does_not_wait_for_a_lost_server(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        daemon = start(FakeConnection(lost_after_the_last_report), patience=timedelta(days=1))
        async with asyncio.timeout(30):
            assert await daemon.run() is ExitCode.OK
    assert "client 0: the server does not answer; it has all results of this client, nothing is left to do" in (
        caplog.messages
    )
    assert "checkpoint.safetensors" in caplog.messages[-1]


async def test_a_client_killed_after_its_last_report_ends_at_once_when_the_server_is_gone(
    start: Start, tmp_path: Path
) -> None:
    directory = ClientDirectory(tmp_path, "first", 0)
    directory.save_session("session", reported=True)
    directory.close()
    async with asyncio.timeout(30):
        assert await start(GoneConnection(nothing), patience=timedelta(days=1)).run() is ExitCode.OK
    assert await start(GoneConnection(nothing)).run() is ExitCode.OK  # and started again


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(pb.RUN_OUTCOME_FINISHED, ExitCode.OK), (pb.RUN_OUTCOME_STOPPED, ExitCode.RUN_FAILED)],
    ids=["finished", "stopped"],
)
async def test_a_client_started_again_after_the_end_does_not_wait_for_a_server_that_is_gone(
    start: Start,
    outcome: pb.RunOutcome.ValueType,
    code: ExitCode,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_end_module, "_STARTUP_SECONDS", 0.0)

    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield last_evaluation()
        await server.has_seen(f"report {CONFIG.rounds}")
        yield ended(outcome)

    await start(FakeConnection(script)).run()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        async with asyncio.timeout(60):
            assert await start(GoneConnection(nothing), patience=timedelta(days=1)).run() is code
    (line,) = caplog.messages
    how = f"the run {'finished' if code is ExitCode.OK else 'stopped'}: end of the script"
    assert line.startswith(f"client 0: {how}; its server does not answer, nothing is left to do")


async def test_after_the_end_another_run_or_another_server_is_waited_for(start: Start) -> None:
    await start(FakeConnection(one_event(ended()))).run()
    with pytest.raises(ServerUnavailableError):
        await start(GoneConnection(nothing), next_run=True).run()
    other = GoneConnection(nothing)
    other.server_identity = "10.0.0.7:50051"
    with pytest.raises(ServerUnavailableError):
        await start(other).run()


async def test_a_server_that_is_started_with_its_clients_is_found_after_an_ended_run(start: Start) -> None:
    await start(FakeConnection(one_event(ended()))).run()

    class Late(FakeConnection):
        tries = 0

        async def get_run(self) -> pb.GetRunResponse:
            self.tries += 1
            if self.tries == 1:
                raise ServerUnavailableError("the server does not answer")
            return await super().get_run()

    late = Late(one_event(ended(pb.RUN_OUTCOME_FAILED)))
    late.run_id = "second"
    assert await start(late, patience=timedelta(days=1)).run() is ExitCode.RUN_FAILED
    assert late.tries == 2


async def test_a_run_that_ends_early_is_logged_with_its_last_round(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    final = pb.RoundEvent(final_evaluation=pb.FinalEvaluation(round=1))

    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield final
        await server.has_seen("report 1")
        yield ended()

    with caplog.at_level(logging.INFO):
        assert await start(FakeConnection(script)).run() is ExitCode.OK
    assert any(line.startswith("client 0: the final evaluation: ") for line in caplog.messages)
    assert f"client 0: the run finished after 1 of {CONFIG.rounds} rounds: end of the script" in caplog.messages


async def test_a_disk_that_is_full_after_the_last_report_does_not_fail_the_client(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        monkeypatch.setattr(checkpoint_module, "commit_file", full)
        monkeypatch.setattr(RoundWorker, "_save", lambda *_: None)  # of the checkpoint, which came before
        yield last_evaluation()
        await server.has_seen(f"report {CONFIG.rounds}")
        yield ended()

    assert await start(FakeConnection(script)).run() is ExitCode.OK


async def test_a_client_without_a_report_on_the_final_state_waits_for_a_lost_server(start: Start) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("upload 0")
        raise ServerUnavailableError("the server does not answer")

    with pytest.raises(ServerUnavailableError):
        await start(FakeConnection(script)).run()
    with pytest.raises(ServerUnavailableError):
        await start(GoneConnection(nothing)).run()


# --- mistakes ---


async def test_a_mistake_in_the_address_is_not_retried(start: Start) -> None:
    server = GoneConnection(nothing)
    server.mistake = ConfigurationError("the server uses TLS")
    with pytest.raises(ConfigurationError, match="the server uses TLS"):
        await start(server, patience=timedelta(days=1)).run()


async def test_a_server_that_has_answered_is_waited_for_whatever_answers_in_its_place(start: Start) -> None:
    sessions = 0

    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        nonlocal sessions
        sessions += 1
        if sessions == 1:
            raise ServerUnavailableError("a proxy answers for it")
        yield ended()

    server = FakeConnection(script)
    server.mistake = ConfigurationError("no feddbp server")
    assert await start(server, patience=timedelta(seconds=30)).run() is ExitCode.OK


@pytest.mark.parametrize("step", ["encode", "checkpoint"])
async def test_the_next_client_trains_while_the_result_of_the_last_is_encoded_and_stored(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_trains = threading.Event()

    class NextTrainer(FakeTrainer):
        def train(self, received: Payload, round_number: int, on_epoch: object) -> RoundResult:
            next_trains.set()
            return super().train(received, round_number, on_epoch)

    def until_the_next_trains(act: Callable[..., Any]) -> Callable[..., Any]:
        def delayed(*arguments: Any, **options: Any) -> Any:
            assert next_trains.wait(60)
            return act(*arguments, **options)

        return delayed

    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield ended()

    def worker(client_id: int, trainer: FakeTrainer) -> RoundWorker:
        checkpoint = until_the_next_trains(empty_checkpoint) if step == "checkpoint" else empty_checkpoint
        client: Any = SimpleNamespace(client_id=client_id, config=CONFIG, trainer=trainer, checkpoint=checkpoint)
        connection: Any = FakeConnection(script)
        return RoundWorker(client, ClientDirectory(tmp_path, "first", client_id), connection, training_slot=slot)

    if step == "encode":
        monkeypatch.setattr(round_worker_module, "encode", until_the_next_trains(encode))
    slot = asyncio.Semaphore(1)
    workers = [worker(0, FakeTrainer()), worker(1, NextTrainer())]
    await asyncio.gather(*(ready.run_round(Assignment(0, train=True)) for ready in workers))
    for finished in workers:
        assert Checkpoint.load(finished.directory.checkpoint).round == 0
        await finished.close()


async def test_a_client_whose_training_diverges_skips_the_round_and_stays(
    start: Start, trainer: FakeTrainer, tmp_path: Path
) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("skip 0")
        trainer.skipped = ""
        yield opened(1)
        await server.has_seen("upload 1")
        yield ended()

    trainer.skipped = "training diverged"
    server = FakeConnection(script)
    assert await start(server).run() is ExitCode.OK
    assert server.calls == ["download 0", "report 0", "skip 0", "download 1", "report 1", "upload 1"]
    assert server.failures == ["training diverged"]


async def test_a_download_out_of_bounds_is_skipped_even_in_the_last_evaluation(start: Start) -> None:
    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("skip 0")
        yield pb.RoundEvent(final_evaluation=pb.FinalEvaluation(round=CONFIG.rounds))
        await server.has_seen(f"skip {CONFIG.rounds}")
        yield ended()

    server = FakeConnection(script)
    server.download_error = OutOfBoundsError("Download", "prototypes", "has a value of 2e+06, the maximum is 1e+06")
    assert await start(server).run() is ExitCode.OK
    assert server.calls == ["download 0", "skip 0", "download 3", "skip 3"]


async def test_a_skip_is_repeated_in_a_new_session(start: Start, trainer: FakeTrainer) -> None:
    sessions = []

    async def script(server: FakeConnection) -> AsyncIterator[pb.RoundEvent]:
        sessions.append(1)
        yield opened(0)
        if len(sessions) == 1:
            await server.has_seen("skip 0")
            raise ServerUnavailableError("the connection is lost")
        server.calls.clear()
        await server.has_seen("skip 0")
        yield ended()

    trainer.skipped = "training diverged"
    server = FakeConnection(script)
    assert await start(server, patience=timedelta(seconds=60)).run() is ExitCode.OK
    assert server.calls == ["report 0", "skip 0"]  # without another training
