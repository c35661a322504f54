"""`feddbp status`: the picture, the JSON, the stream, and servers that are not there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc
import pytest
from lab_samples import client, printed, run_status

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.rpc.failures import REFUSAL_METADATA_KEY
from feddbp_lab.cli import main
from feddbp_lab.commands.status import as_dict
from feddbp_lab.control_client import (
    RequestRefusedError,
    ServerUnreachableError,
    call_control,
    get_status,
    watch_status,
)
from feddbp_lab.terminal.status_table import LiveStatusView, StatusView

NOW = 1_000_090.0


class ScriptedControl(pb_grpc.ControlServicer):
    """Every stream tells what the script holds for it, then breaks off."""

    def __init__(self, streams: list[list[pb.RunStatus]]) -> None:
        self.streams = streams
        self.opened = 0

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.RunStatus:
        return self.streams[0][0]

    async def WatchStatus(self, request: pb.WatchStatusRequest, context: Any) -> AsyncIterator[pb.RunStatus]:
        script = self.streams[min(self.opened, len(self.streams) - 1)]
        self.opened += 1
        for status in script:
            yield status
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")


@asynccontextmanager
async def serving(control: pb_grpc.ControlServicer | None) -> AsyncIterator[str]:
    server = grpc.aio.server()
    if control is not None:
        pb_grpc.add_ControlServicer_to_server(control, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def test_phase_round_and_missing_clients_are_told() -> None:
    text = printed(StatusView(status=run_status(client(0), missing=[0, 1, 2, 7]), now=NOW))
    assert "training round 4/10   waiting for clients 0-2, 7" in text


def test_one_missing_client_and_the_deadline() -> None:
    status = run_status(client(0), missing=[4])
    status.time_left.FromTimedelta(timedelta(seconds=75))
    text = printed(StatusView(status=status, now=NOW))
    assert "waiting for client 4   1 min 15 s until the deadline" in text


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (120, "3 mini_inception cpu training 2/5 epochs 1 min 30 s ago 50.0 % 12 s 1.5 MB 600 kB"),
        (100, "3 mini_inception training 2/5 epochs 1 min 30 s ago 50.0 % 12 s 2.1 MB"),
    ],
)
def test_a_client_row_has_state_model_last_sign_of_life_accuracy_training_time_and_bytes(
    width: int, expected: str
) -> None:
    row_of = client(3, epochs_done=2, metrics_round=1, correct=25)
    row_of.metrics.seconds.train = 12.3
    row_of.bytes_up, row_of.bytes_down = 1_500_000, 600_000
    text = printed(StatusView(status=run_status(row_of), now=NOW), width=width)
    row = next(line for line in text.splitlines() if "mini_inception" in line)
    assert row.split() == expected.split()


def test_whoever_left_is_not_called_away_and_not_counted_as_waiting() -> None:
    here, left = client(0, pb.CLIENT_ACTIVITY_IDLE), client(1, pb.CLIENT_ACTIVITY_LEFT)
    text = printed(StatusView(status=run_status(here, left, phase=pb.PHASE_WAITING), now=NOW))
    assert "waiting for clients 1/8" in text
    assert "left" in next(line for line in text.splitlines() if "mini_residual" in line)


@pytest.mark.parametrize(
    ("held", "number", "words"),
    [
        (pb.PHASE_WAITING, 3, "paused before round 4/10"),
        (pb.PHASE_COLLECTING, 3, "paused in round 4/10"),
        (pb.PHASE_AGGREGATING, 3, "paused in round 4/10"),
        (pb.PHASE_EVALUATING, 10, "paused after round 10/10"),
    ],
)
def test_a_pause_tells_what_it_holds(held: pb.Phase.ValueType, number: int, words: str) -> None:
    status = run_status(client(0), phase=pb.PHASE_PAUSED, held_phase=held, round=number)
    assert words in printed(StatusView(status=status, now=NOW))
    assert as_dict(status)["held_phase"] == words_of(held)


def words_of(phase: pb.Phase.ValueType) -> str:
    return pb.Phase.Name(phase).removeprefix("PHASE_").lower()


def test_refusals_are_told_by_reason() -> None:
    status = run_status(client(0), refusals={"stale_session": 2, "invalid_payload": 1})
    text = printed(StatusView(status=status, now=NOW))
    assert "refused since the server started: 1 invalid payload, 2 stale session" in text
    assert as_dict(status)["refusals"] == {"invalid_payload": 1, "stale_session": 2}


def test_the_last_incidents_are_told_newest_last() -> None:
    status = run_status(client(0))
    for number in range(7):
        incident = status.incidents.add(message=f"trouble {number}")
        incident.at.FromSeconds(1_000_000 + number)
    status.incidents[-1].client_id = 3
    lines = printed(StatusView(status=status, now=NOW)).splitlines()
    assert "trouble 1" not in "".join(lines)
    assert lines[-1].strip() == "1 min 24 s ago: client 3: trouble 6"


def test_a_failed_run_tells_its_reason() -> None:
    text = printed(StatusView(status=run_status(phase=pb.PHASE_FAILED, reason="nobody came back"), now=NOW))
    assert "nobody came back" in text


def test_the_json_has_words_and_numbers() -> None:
    told = as_dict(run_status(client(0, metrics_round=1, correct=25), missing=[0], mean_accuracy=0.5))
    assert json.loads(json.dumps(told)) == told
    assert told["phase"] == "collecting"
    assert told["bytes_up"] == 1_234_567
    assert told["mean_accuracy"] == 0.5
    assert told["seconds_left"] is None
    assert told["clients"][0]["activity"] == "training"
    assert told["clients"][0]["accuracy"] == 0.5
    assert told["clients"][0]["train_seconds"] == 0.0
    assert told["held_phase"] is None
    assert told["clients"][0]["last_seen"] == "1970-01-12T13:46:40.000+00:00"


async def test_a_broken_stream_is_opened_again_until_the_run_is_over() -> None:
    going_on, over = run_status(client(0), round=1), run_status(client(0), round=10, phase=pb.PHASE_FINISHED)
    control = ScriptedControl([[going_on], [], [going_on, over]])
    async with serving(control) as address:
        seen = [status.phase async for status in watch_status(address, patience=timedelta(seconds=10))]
    assert seen == [pb.PHASE_COLLECTING, pb.PHASE_COLLECTING, pb.PHASE_FINISHED]
    assert control.opened == 3


async def test_patience_with_a_silent_server_ends() -> None:
    with pytest.raises(ServerUnreachableError, match=r"no server answers at 127\.0\.0\.1:1: connection refused"):
        await anext(watch_status("127.0.0.1:1", patience=timedelta(seconds=0.3)))


async def test_a_server_that_refuses_for_now_is_not_taken_for_an_absent_one() -> None:
    class Refusing(pb_grpc.ControlServicer):
        async def Pause(self, request: pb.PauseRequest, context: Any) -> pb.RunStatus:
            refusal = pb.Refusal(reason=pb.REFUSAL_REASON_STORAGE).SerializeToString()
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "the disk is full", trailing_metadata=((REFUSAL_METADATA_KEY, refusal),)
            )

    async with serving(Refusing()) as address:
        with pytest.raises(RequestRefusedError, match="refuses to answer: the disk is full"):
            await call_control(pb.PauseRequest(), address)


async def test_a_watch_outlasts_a_refusal_that_will_pass() -> None:
    class Crowded(pb_grpc.ControlServicer):
        opened = 0

        async def WatchStatus(self, request: pb.WatchStatusRequest, context: Any) -> AsyncIterator[pb.RunStatus]:
            self.opened += 1
            if self.opened == 1:
                refusal = pb.Refusal(reason=pb.REFUSAL_REASON_BUSY).SerializeToString()
                await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "full", trailing_metadata=((REFUSAL_METADATA_KEY, refusal),)
                )
            yield run_status(client(0), round=10, phase=pb.PHASE_FINISHED)

    async with serving(Crowded()) as address:
        seen = [status.phase async for status in watch_status(address, patience=timedelta(seconds=10))]
    assert seen == [pb.PHASE_FINISHED]


def test_what_a_client_says_of_itself_is_not_taken_for_markup() -> None:
    shown = client(0)
    shown.capabilities.architecture = "cnn[/bold]"
    shown.capabilities.device = "[link=x]cpu"
    text = printed(StatusView(status=run_status(shown), now=NOW), width=160)
    assert "cnn[/bold]" in text
    assert "[link=x]cpu" in text


def test_on_a_screen_time_goes_on_and_silence_is_told() -> None:
    now = [NOW]
    screen = LiveStatusView(clock=lambda: now[0])
    status = run_status(client(0))
    status.time_left.FromTimedelta(timedelta(seconds=60))
    screen.show(status)
    now[0] += 15
    assert "45 s until the deadline" in printed(screen, width=120)
    screen.lose(ServerUnreachableError("connection refused"))
    assert "no answer for 15 s, trying again: connection refused" in printed(screen, width=120)
    screen.show(status)
    assert "no answer" not in printed(screen, width=120)


async def test_a_server_of_another_kind_is_not_taken_for_an_absent_one() -> None:
    async with serving(None) as address:
        with pytest.raises(RequestRefusedError, match="refuses to answer"):
            await get_status(address)


@pytest.mark.parametrize("more", [[], ["--watch"], ["--json"]])
def test_no_server_is_one_line_and_exit_code_3(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--server", "127.0.0.1:1", *more]) == 3
    told = capsys.readouterr()
    assert told.err == "feddbp: error: no server answers at 127.0.0.1:1: connection refused\n"
    assert told.out == ""
