"""`feddbp status`: the table, the JSON, the stream, and servers that do not answer."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc
import pytest
from lab_samples import client, printed, run_status
from rich.console import Console

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.rpc.failures import REFUSAL_METADATA_KEY
from feddbp_lab.cli import main
from feddbp_lab.commands import status as status_command
from feddbp_lab.commands.options import StatusViewConfig
from feddbp_lab.commands.status import _StatusLines, as_dict
from feddbp_lab.control_client import (
    RequestRefusedError,
    ServerUnreachableError,
    call_control,
    get_status,
    watch_status,
)
from feddbp_lab.terminal.status_view import LiveStatusView, StatusView

NOW = 1_000_090.0


class ScriptedControl(pb_grpc.ControlServicer):
    """Sends the statuses scripted for each stream, then breaks the stream."""

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


def test_phase_round_and_missing_clients_are_shown() -> None:
    text = printed(StatusView(status=run_status(client(0), missing=[0, 1, 2, 7]), now=NOW))
    assert "training round 4/10   waiting for clients 0-2, 7" in text


def test_one_missing_client_and_the_deadline_are_shown() -> None:
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
def test_a_client_row_has_model_activity_last_seen_accuracy_training_time_and_bytes(width: int, expected: str) -> None:
    row_of = client(3, epochs_done=2, metrics_round=1, correct=25)
    row_of.metrics.seconds.train = 12.3
    row_of.bytes_up, row_of.bytes_down = 1_500_000, 600_000
    text = printed(StatusView(status=run_status(row_of), now=NOW), width=width)
    row = next(line for line in text.splitlines() if "mini_inception" in line)
    assert row.split() == expected.split()


@pytest.mark.parametrize(
    ("width", "shown"), [(110, "cuda:1   training"), (180, "cuda:1 (NVIDIA GeForce RTX 2080 Ti)   ")]
)
def test_the_name_of_a_card_is_shown_where_there_is_room(width: int, shown: str) -> None:
    row_of = client(3, epochs_done=2, metrics_round=1, correct=25)
    row_of.capabilities.device = "cuda:1 (NVIDIA GeForce RTX 2080 Ti)"
    row_of.peer = "ipv4:192.168.100.100:50000"
    text = printed(StatusView(status=run_status(row_of), now=NOW), width=width)
    assert shown in text
    assert "…" not in text


def test_a_client_that_left_is_shown_as_left_and_not_counted_as_joined() -> None:
    idle, left = client(0, pb.CLIENT_ACTIVITY_IDLE), client(1, pb.CLIENT_ACTIVITY_LEFT)
    text = printed(StatusView(status=run_status(idle, left, phase=pb.PHASE_WAITING), now=NOW))
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
def test_a_paused_run_shows_where_it_was_paused(held: pb.Phase.ValueType, number: int, words: str) -> None:
    status = run_status(client(0), phase=pb.PHASE_PAUSED, held_phase=held, round=number)
    assert words in printed(StatusView(status=status, now=NOW))
    assert as_dict(status)["held_phase"] == words_of(held)


def words_of(phase: pb.Phase.ValueType) -> str:
    return pb.Phase.Name(phase).removeprefix("PHASE_").lower()


def test_refusals_are_counted_by_reason() -> None:
    status = run_status(client(0), refusals={"stale_session": 2, "invalid_payload": 1})
    text = printed(StatusView(status=status, now=NOW))
    assert "refused since the server started: 1 invalid payload, 2 stale session" in text
    assert as_dict(status)["refusals"] == {"invalid_payload": 1, "stale_session": 2}


def test_the_last_five_incidents_are_shown_newest_last() -> None:
    status = run_status(client(0))
    for number in range(7):
        incident = status.incidents.add(message=f"incident {number}")
        incident.at.FromSeconds(1_000_000 + number)
    status.incidents[-1].client_id = 3
    lines = printed(StatusView(status=status, now=NOW)).splitlines()
    assert "incident 1" not in "".join(lines)
    assert lines[-1].strip() == "1 min 24 s ago: client 3: incident 6"


def test_a_failed_run_shows_its_reason() -> None:
    text = printed(StatusView(status=run_status(phase=pb.PHASE_FAILED, reason="no client rejoined"), now=NOW))
    assert "no client rejoined" in text


def test_json_output_has_words_for_enums_and_numbers() -> None:
    output = as_dict(run_status(client(0, metrics_round=1, correct=25), missing=[0], mean_accuracy=0.5))
    assert json.loads(json.dumps(output)) == output
    assert output["phase"] == "collecting"
    assert output["bytes_up"] == 1_234_567
    assert output["mean_accuracy"] == 0.5
    assert output["seconds_left"] is None
    assert output["clients"][0]["activity"] == "training"
    assert output["clients"][0]["accuracy"] == 0.5
    assert output["clients"][0]["train_seconds"] == 0.0
    assert output["held_phase"] is None
    assert output["clients"][0]["last_seen"] == "1970-01-12T13:46:40.000+00:00"


async def test_a_broken_stream_is_reconnected_until_the_run_has_ended() -> None:
    running, ended = run_status(client(0), round=1), run_status(client(0), round=10, phase=pb.PHASE_FINISHED)
    control = ScriptedControl([[running], [], [running, ended]])  # type: ignore[abstract]  # in the stub only
    async with serving(control) as address:
        seen = [status.phase async for status in watch_status(address, patience=timedelta(seconds=10))]
    assert seen == [pb.PHASE_COLLECTING, pb.PHASE_COLLECTING, pb.PHASE_FINISHED]
    assert control.opened == 3


async def test_watching_ends_after_the_patience_with_an_unreachable_server() -> None:
    with pytest.raises(ServerUnreachableError, match=r"no server answers at 127\.0\.0\.1:1: connection refused"):
        await anext(watch_status("127.0.0.1:1", patience=timedelta(seconds=0.3)))


async def test_a_transient_refusal_is_not_reported_as_an_unreachable_server() -> None:
    class Refusing(pb_grpc.ControlServicer):
        async def Pause(
            self, request: pb.PauseRequest, context: grpc.aio.ServicerContext[pb.PauseRequest, pb.RunStatus]
        ) -> pb.RunStatus:
            refusal = pb.Refusal(reason=pb.REFUSAL_REASON_STORAGE).SerializeToString()
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "the disk is full", trailing_metadata=((REFUSAL_METADATA_KEY, refusal),)
            )

    async with serving(Refusing()) as address:  # type: ignore[abstract]  # in the stub only
        with pytest.raises(RequestRefusedError, match="refuses the request: the disk is full"):
            await call_control(pb.PauseRequest(), address)


async def test_watching_continues_after_a_transient_refusal() -> None:
    class Busy(pb_grpc.ControlServicer):
        opened = 0

        async def WatchStatus(self, request: pb.WatchStatusRequest, context: Any) -> AsyncIterator[pb.RunStatus]:
            self.opened += 1
            if self.opened == 1:
                refusal = pb.Refusal(reason=pb.REFUSAL_REASON_BUSY).SerializeToString()
                await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "full", trailing_metadata=((REFUSAL_METADATA_KEY, refusal),)
                )
            yield run_status(client(0), round=10, phase=pb.PHASE_FINISHED)

    async with serving(Busy()) as address:  # type: ignore[abstract]  # in the stub only
        seen = [status.phase async for status in watch_status(address, patience=timedelta(seconds=10))]
    assert seen == [pb.PHASE_FINISHED]


def test_text_reported_by_a_client_is_not_parsed_as_markup() -> None:
    shown = client(0)
    shown.capabilities.architecture = "cnn[/bold]"
    shown.capabilities.device = "[link=x]cpu"
    text = printed(StatusView(status=run_status(shown), now=NOW), width=160)
    assert "cnn[/bold]" in text
    assert "[link=x]cpu" in text


def test_the_live_view_counts_the_deadline_down_and_shows_a_lost_connection() -> None:
    now = [NOW]
    view = LiveStatusView(clock=lambda: now[0])
    status = run_status(client(0))
    status.time_left.FromTimedelta(timedelta(seconds=60))
    view.show(status)
    now[0] += 15
    assert "45 s until the deadline" in printed(view, width=120)
    view.show_error(ServerUnreachableError("connection refused"))
    assert "no answer for 15 s, reconnecting: connection refused" in printed(view, width=120)
    view.show(status)
    assert "no answer" not in printed(view, width=120)


def test_time_goes_on_in_the_live_view_for_clients_that_are_away() -> None:
    now = [NOW]
    view = LiveStatusView(clock=lambda: now[0])
    here, away = client(0), client(1, pb.CLIENT_ACTIVITY_AWAY)
    here.last_seen.FromSeconds(int(NOW))
    view.show(run_status(here, away))
    now[0] += 30
    rows = {line.split()[0]: line for line in printed(view, width=100).splitlines() if "mini_" in line}
    assert " now " in rows["0"]
    assert " 2 min 00 s ago " in rows["1"]
    view.show_error(ServerUnreachableError("connection refused"))
    now[0] += 30
    rows = {line.split()[0]: line for line in printed(view, width=100).splitlines() if "mini_" in line}
    assert " 1 min 00 s ago " in rows["0"]  # whether it is still there, nobody knows
    assert " 2 min 30 s ago " in rows["1"]


def test_a_server_that_is_restarted_counts_no_deadline_down() -> None:
    view = LiveStatusView(clock=lambda: NOW)
    status = run_status(client(0))
    status.time_left.FromTimedelta(timedelta(seconds=60))
    view.show(status)
    view.show_error(ServerUnreachableError("the server is shutting down"))
    text = printed(view, width=120)
    assert "until the deadline" not in text
    assert "no answer for 0.0 s, reconnecting: the server is shutting down" in text


def test_another_run_in_the_place_of_the_first_is_told() -> None:
    view = LiveStatusView(clock=lambda: NOW)
    view.show(run_status(client(0)))
    other = run_status(client(0))
    other.run_id = "def-2"
    view.show(other)
    assert "the server holds another run now; it was abc-1" in printed(view, width=120)


def test_a_wide_terminal_shows_versions_and_addresses() -> None:
    shown = client(3)
    shown.capabilities.software_version, shown.peer = "0.2.0", "ipv6:%5B::1%5D:4711"
    status = run_status(shown)
    status.software_version = "0.2.0"
    assert {"version", "address", "0.2.0", "[::1]:4711"} <= {
        *printed(StatusView(status=status, now=NOW), width=145).split()
    }
    assert "address" not in printed(StatusView(status=status, now=NOW), width=144)
    assert as_dict(status)["clients"][0]["address"] == "[::1]:4711"


def test_versions_that_differ_are_shown_on_narrower_terminals_too() -> None:
    shown = client(3)
    shown.capabilities.software_version = "0.1.0"
    status = run_status(shown)
    status.software_version = "0.2.0"
    assert "0.1.0" in printed(StatusView(status=status, now=NOW), width=82)


def test_clients_that_joined_late_are_named_below_the_table() -> None:
    rows = [client(number, metrics_round=5, correct=25) for number in range(8)]
    for row in rows[1:]:
        row.first_round = row.client_id
    text = printed(StatusView(status=run_status(*rows), now=NOW), width=200)
    assert "trained later: client 1 since round 2, client 2 since round 3," in text
    assert "client 5 since round 6, 2 more" in text


@pytest.mark.parametrize("width", [40, 54, 60, 72, 80, 82, 93, 100, 110, 120, 130, 145, 160])
def test_every_terminal_shows_a_client_in_one_line(width: int) -> None:
    rows = [client(number, epochs_done=2, metrics_round=1, correct=25) for number in (0, 1, 12)] + [
        client(100, pb.CLIENT_ACTIVITY_AWAY, metrics_round=1, correct=25)
    ]
    for row in rows:
        row.bytes_up, row.metrics.seconds.train, row.peer = 123_456_789, 754.3, "ipv4:192.168.100.107:41872"
        row.capabilities.software_version = "0.2.0.dev0"
    status = run_status(*rows)
    status.software_version = "0.2.0.dev0"
    lines = printed(StatusView(status=status, now=NOW), width=width).splitlines()
    assert max(map(len, lines)) <= width
    found = {words[0]: line for line in lines if (words := line.split()) and words[0].isdecimal()}
    assert found.keys() == {"0", "1", "12", "100"}
    for number, line in found.items():
        assert "50.0 %" in line
        assert ("away" if number == "100" else "training 2/5 epochs") in line
        assert "…" not in line


async def test_a_server_that_shuts_down_is_reported_before_it_is_called_again() -> None:
    class Restarted(pb_grpc.ControlServicer):
        opened = 0

        async def WatchStatus(self, request: pb.WatchStatusRequest, context: Any) -> AsyncIterator[pb.RunStatus]:
            self.opened += 1
            phase = pb.PHASE_FINISHED if self.opened == 2 else pb.PHASE_COLLECTING
            yield run_status(client(0), phase=phase)

    seen: list[str] = []
    async with serving(Restarted()) as address:  # type: ignore[abstract]  # in the stub only
        stream = watch_status(address, patience=timedelta(seconds=10), on_error=lambda error: seen.append(str(error)))
        phases = [status.phase async for status in stream]
    assert phases == [pb.PHASE_COLLECTING, pb.PHASE_FINISHED]
    assert seen == [f"the server at {address} is shutting down"]


def test_where_the_output_is_no_terminal_an_outage_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    first, other = run_status(client(0)), run_status(client(0))
    other.run_id = "def-2"
    lines = _StatusLines(lambda status: print(status.run_id))
    for status in (first, first):
        lines.show(status)
        for _ in range(3):
            lines.show_error(ServerUnreachableError("connection refused"))
    lines.show(other)
    outage = "feddbp status: no answer, reconnecting: connection refused\n"
    replaced = "feddbp status: the server holds another run now; it was abc-1\n"
    assert capsys.readouterr() == ("abc-1\nabc-1\ndef-2\n", 2 * outage + replaced)


async def test_a_server_without_the_control_service_is_not_reported_as_unreachable() -> None:
    async with serving(None) as address:
        with pytest.raises(RequestRefusedError, match="refuses the request"):
            await get_status(address)


def test_a_host_name_that_does_not_exist_ends_a_watch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert main(["status", "--watch", "--server", "127.0.0.1:1"]) == 3
    assert capsys.readouterr() == ("", "feddbp: error: no server answers at 127.0.0.1:1: connection refused\n")


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example"])
def test_a_host_name_that_cannot_exist_ends_a_watch(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--watch", "--insecure", "--server", f"{host}:1"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    *warnings, error = captured.err.splitlines()
    assert len(warnings) <= 1
    assert error.startswith(f"feddbp: error: no server answers at {host}:1: ")


def test_a_live_view_says_that_no_server_has_answered_yet() -> None:
    view = LiveStatusView(clock=lambda: 7.0)
    view.show_error(ServerUnreachableError("no server answers at 127.0.0.1:1: connection refused"))
    assert printed(view) == "no answer yet, waiting: no server answers at 127.0.0.1:1: connection refused\n"


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_no_server_is_one_line_and_exit_code_3(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--server", "127.0.0.1:1", *more]) == 3
    captured = capsys.readouterr()
    assert captured.err == "feddbp: error: no server answers at 127.0.0.1:1: connection refused\n"
    assert captured.out == ""


async def test_a_terminal_that_changes_its_size_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100)
    monkeypatch.setattr(status_command, "console", lambda: console)

    async def resized(*_: object) -> pb.RunStatus:
        os.kill(os.getpid(), signal.SIGWINCH)
        await asyncio.sleep(0.1)  # the loop calls its handlers of signals
        return run_status(client(0))

    monkeypatch.setattr(status_command, "_follow", resized)
    await status_command._watch(StatusViewConfig(watch=True))
    assert "\x1b[2J" in written.getvalue()
