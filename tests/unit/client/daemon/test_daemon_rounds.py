"""The daemon's way through rounds that do not go as planned, with a server and a model that only pretend."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
import torch

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon import daemon as daemon_module
from feddbp_client.daemon.connection import CallRefusedError, Download, ServerUnavailableError
from feddbp_client.daemon.daemon import ClientDaemon, DaemonOptions
from feddbp_client.training.checkpoint import Checkpoint
from feddbp_client.training.setup import LocalOptions
from feddbp_client.training.trainer import RoundResult, TrainingError
from feddbp_common.artifacts import CHECKPOINT_NAME
from feddbp_common.config.run import RunConfig, run_to_proto
from feddbp_common.errors import ExitCode
from feddbp_common.wire import Encoded, Payload, PayloadRules, encode

CONFIG = RunConfig(rounds=3)
Script = Callable[["PretendedServer"], AsyncIterator[pb.RoundEvent]]


class Start(Protocol):
    def __call__(self, server: PretendedServer, *, patience: timedelta = ...) -> ClientDaemon: ...


class PretendedServer:
    """Stands in for the connection: follows a script of events and notes what the client does."""

    def __init__(self, script: Script, *, closed_rounds: frozenset[int] = frozenset()) -> None:
        self.done: list[str] = []
        self.run_id = "pretended"
        self.failures: list[str] = []
        self.payload = Payload()
        self._script = script
        self._closed_rounds = closed_rounds
        self._changed = asyncio.Event()

    async def has_seen(self, what: str) -> None:
        while what not in self.done:
            self._changed.clear()
            await self._changed.wait()

    def _note(self, what: str) -> None:
        self.done.append(what)
        self._changed.set()

    async def get_run(self) -> pb.GetRunResponse:
        return pb.GetRunResponse(config=run_to_proto(CONFIG), run_id=self.run_id)

    async def join(self, request: pb.JoinRequest) -> pb.JoinResponse:
        return pb.JoinResponse(session="session", epoch=1)

    def follow(self, session: str) -> AsyncIterator[pb.RoundEvent]:
        return self._script(self)

    async def download(self, session: str, round_number: int, rules: PayloadRules) -> Download:
        self._note(f"download {round_number}")
        if round_number in self._closed_rounds:
            raise CallRefusedError("it is over", pb.Refusal(reason=pb.REFUSAL_REASON_WRONG_ROUND, current_round=1))
        return Download(payload=self.payload, encoded=encode(self.payload), message_bytes=0)

    async def report(self, request: pb.ReportRequest) -> None:
        if request.HasField("failure"):
            self.failures.append(request.failure.cause)
        self._note(f"report {request.round}")

    async def upload(self, session: str, round_number: int, encoded: Encoded) -> None:
        self._note(f"upload {round_number}")


class PretendedModel:
    """Learns nothing; with `endless`, for as long as it is let."""

    def __init__(self) -> None:
        self.endless = False
        self.trouble: Exception | None = None
        self.received: list[Payload] = []
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def evaluate(self, received: Payload, round_number: int) -> RoundResult:
        return RoundResult(metrics=pb.RoundMetrics(), upload=None)

    def train(self, received: Payload, round_number: int, on_epoch: object) -> RoundResult:
        self.received.append(received)
        if self.endless:
            assert self._stopped.wait(60)
            raise TrainingError("stopped")
        if self.trouble is not None:
            raise self.trouble
        return RoundResult(metrics=pb.RoundMetrics(), upload=Payload())


def opened(number: int, *, selected: bool = True) -> pb.RoundEvent:
    return pb.RoundEvent(round_opened=pb.RoundOpened(round=number, selected=selected))


def ended(outcome: pb.RunOutcome.ValueType = pb.RUN_OUTCOME_FINISHED) -> pb.RoundEvent:
    return pb.RoundEvent(run_ended=pb.RunEnded(outcome=outcome, reason="so it goes"))


def pretended_checkpoint(round_number: int, metrics: pb.RoundMetrics) -> Checkpoint:
    return Checkpoint(
        run_id="pretended",
        client_id=0,
        round=round_number,
        architecture="none",
        head="none",
        image_shape=(1, 1, 1),
        class_names=(),
        config=run_to_proto(CONFIG),
        model={},
        metrics=metrics,
    )


@pytest.fixture
def model() -> PretendedModel:
    return PretendedModel()


@pytest.fixture
def start(tmp_path: Path, model: PretendedModel, monkeypatch: pytest.MonkeyPatch) -> Start:
    models = iter((model, PretendedModel()))

    def built(config: RunConfig, run_id: str, *_: object) -> SimpleNamespace:
        return SimpleNamespace(
            client_id=0,
            run_id=run_id,
            config=config,
            trainer=next(models),
            architecture="none",
            data_summary=pb.DataSummary,
            capabilities=pb.Capabilities,
            checkpoint=pretended_checkpoint,
        )

    monkeypatch.setattr(daemon_module, "build_client", built)
    local = LocalOptions(data=None, data_dir=tmp_path, model=None, device=torch.device("cpu"), amp=False)

    def started(server: PretendedServer, *, patience: timedelta = timedelta(0)) -> ClientDaemon:
        connection: Any = server
        options = DaemonOptions(state_dir=tmp_path, patience=patience, local=local)
        return ClientDaemon(0, connection, options, training_slot=asyncio.Semaphore(1))

    return started


async def test_a_round_that_closed_before_its_download_is_passed_over(
    start: Start,
) -> None:
    async def script(server: PretendedServer) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("download 0")
        yield opened(1)
        await server.has_seen("upload 1")
        yield ended()

    server = PretendedServer(script, closed_rounds=frozenset({0}))
    assert await start(server).run() is ExitCode.OK
    assert server.done == ["download 0", "download 1", "report 1", "upload 1"]


async def test_a_round_that_was_observed_and_opens_anew_is_trained(
    start: Start,
) -> None:
    async def script(server: PretendedServer) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0, selected=False)
        await server.has_seen("report 0")
        yield opened(0, selected=True)
        await server.has_seen("upload 0")
        yield ended()

    server = PretendedServer(script)
    assert await start(server).run() is ExitCode.OK
    assert server.done == ["download 0", "report 0", "download 0", "report 0", "upload 0"]


async def test_a_round_that_is_told_of_twice_is_done_once(start: Start) -> None:
    async def script(server: PretendedServer) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("upload 0")
        yield pb.RoundEvent(waiting=pb.Waiting(reason="the run is paused"))
        yield opened(0)
        yield opened(1)
        await server.has_seen("upload 1")
        yield ended()

    server = PretendedServer(script)
    assert await start(server).run() is ExitCode.OK
    assert server.done.count("upload 0") == 1


async def test_training_gets_the_payload_that_the_connection_decoded(start: Start, model: PretendedModel) -> None:
    async def script(server: PretendedServer) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("upload 0")
        yield ended()

    server = PretendedServer(script)
    assert await start(server).run() is ExitCode.OK
    (received,) = model.received
    assert received is server.payload


async def test_a_server_that_has_forgotten_a_round_is_given_it_again_and_nothing_is_trained_twice(
    start: Start,
) -> None:
    told: list[list[str]] = []

    async def script(server: PretendedServer) -> AsyncIterator[pb.RoundEvent]:
        server.done = []
        told.append(server.done)
        yield opened(0)
        await server.has_seen("upload 0")
        if len(told) == 1:
            raise ServerUnavailableError("its disk is lost")
        yield ended()

    server = PretendedServer(script)
    daemon = start(server, patience=timedelta(seconds=30))
    async with asyncio.timeout(30):
        assert await daemon.run() is ExitCode.OK
    assert told == [["download 0", "report 0", "upload 0"], ["report 0", "upload 0"]]


async def test_the_last_word_of_a_server_that_is_gone_counts(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(server: PretendedServer) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("download 0")
        yield ended(pb.RUN_OUTCOME_STOPPED)

    async def gone(self: PretendedServer, request: pb.ReportRequest) -> None:
        raise ServerUnavailableError("the server does not answer")

    monkeypatch.setattr(PretendedServer, "report", gone)
    assert await start(PretendedServer(script)).run() is ExitCode.RUN_FAILED


async def test_training_is_given_up_when_the_run_is_stopped(start: Start, model: PretendedModel) -> None:
    async def script(server: PretendedServer) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await server.has_seen("download 0")
        yield ended(pb.RUN_OUTCOME_STOPPED)

    model.endless = True
    async with asyncio.timeout(30):
        assert await start(PretendedServer(script)).run() is ExitCode.RUN_FAILED


async def test_work_for_one_run_is_never_given_to_another(start: Start, model: PretendedModel) -> None:
    async def script(server: PretendedServer) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        if server.run_id == "pretended":
            await server.has_seen("download 0")
            server.run_id = "another"
            raise ServerUnavailableError("it was stopped, and started with another run")
        await server.has_seen("upload 0")
        yield ended()

    model.endless = True
    server = PretendedServer(script)
    daemon = start(server, patience=timedelta(seconds=30))
    async with asyncio.timeout(30):
        assert await daemon.run() is ExitCode.OK
    assert server.done == ["download 0", "download 0", "report 0", "upload 0"]


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (RuntimeError("CUDA out of memory.\nTry this and that"), "RuntimeError: CUDA out of memory."),
        (NotImplementedError(), "NotImplementedError"),
        (TrainingError("training diverged"), "training diverged"),
    ],
)
async def test_whatever_training_raises_is_told_to_the_server_in_one_line(
    start: Start, model: PretendedModel, trouble: Exception, told: str
) -> None:
    async def script(server: PretendedServer) -> AsyncIterator[pb.RoundEvent]:
        yield opened(0)
        await asyncio.Event().wait()

    model.trouble = trouble
    server = PretendedServer(script)
    with pytest.raises(TrainingError) as raised:
        await start(server).run()
    assert str(raised.value) == told
    assert server.failures == [told]


async def test_the_last_evaluation_is_finished_even_if_the_run_did_not_wait_for_it(
    start: Start, tmp_path: Path
) -> None:
    async def script(server: PretendedServer) -> AsyncIterator[pb.RoundEvent]:
        yield pb.RoundEvent(final_evaluation=pb.FinalEvaluation(round=CONFIG.rounds))
        await server.has_seen(f"download {CONFIG.rounds}")
        yield ended()

    assert await start(PretendedServer(script)).run() is ExitCode.OK
    assert Checkpoint.load(tmp_path / "pretended" / "client-0" / CHECKPOINT_NAME).round == CONFIG.rounds
