"""What an operator sets up once: a command for events, a log file, backups."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from light_runs import LIGHT_RUN, Crowd, Gate, exits, start_server, undisturbed_outcome
from processes import Federation, federation, wait_until

from feddbp_common.artifacts import DATABASE_NAME
from feddbp_lab.cli import main

KEEP = "import sys; open('events', 'a').write(sys.stdin.read())"


def events_in(directory: Path) -> list[dict[str, object]]:
    file = directory / "events"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def test_events_reach_the_command_and_lines_the_log_file(running_federation: Federation) -> None:
    directory = running_federation.directory
    watching = ("--on-event", f'python3 -c "{KEEP}"', "--lost-after", "0.2s", "--log-file", "logs/server.log")
    server = await start_server(running_federation, *LIGHT_RUN, *watching, "--log-file-size", 1000)
    gate = Gate(at_round=1)
    async with Crowd(running_federation.address, range(3), on_event={2: gate}) as crowd:
        await gate.reached.wait()
        await crowd.lose(2)
        await asyncio.to_thread(wait_until, lambda: events_in(directory), "the event of a lost client")
        async with Crowd(running_federation.address, [2]) as back:
            await asyncio.gather(crowd.ended(), back.ended())
    await exits(server, 0)
    *lost, ended = events_in(directory)
    assert {(event["event"], event["client"]) for event in lost} == {("client_lost", 2)}
    assert ended["event"] == "run_finished"
    logs = sorted((directory / "logs").iterdir())
    assert len(logs) > 1
    written = "".join(path.read_text() for path in logs)
    assert "the run finished: all rounds are done" in written


def test_a_log_file_that_cannot_be_opened_is_one_line(running_federation: Federation) -> None:
    (running_federation.directory / "file").write_text("")
    options = ("--state-dir", running_federation.state_dir, "--log-file", "file/server.log")
    server = running_federation.start("feddbp_server.cli", *options, name="server")
    server.expect_exit(2)
    assert "--log-file file/server.log: " in server.log


async def test_a_backup_of_a_running_server_is_a_state_directory(
    running_federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = await start_server(running_federation, *LIGHT_RUN)
    gate = Gate(at_round=1)
    copy = tmp_path / "copy"
    async with Crowd(running_federation.address, range(3), on_event={0: gate}):
        await gate.reached.wait()
        for _ in range(2):  # the second replaces the first
            assert await asyncio.to_thread(main, ["backup", str(running_federation.state_dir), str(copy)]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert first.startswith(f"{copy / DATABASE_NAME}: ")
        assert "replaces" not in first
        assert second.endswith(" (replaces the backup that was there)")
        server.kill()
    with federation(tmp_path / "restored") as restored:
        copy.rename(restored.directory / "server")
        again = await start_server(restored)  # with the options of the first
        async with Crowd(restored.address, range(3)) as crowd:
            await crowd.ended()
        await exits(again, 0)
        assert "resuming the run: collecting, round 2/3" in again.log
        outcome = restored.outcome()
    assert outcome == await asyncio.to_thread(undisturbed_outcome, tmp_path / "undisturbed", *LIGHT_RUN)


@pytest.mark.parametrize(
    ("target", "message"),
    [("here", "is the directory that is to be copied"), ("", "has no run.sqlite3; give the --state-dir of a server")],
)
def test_a_wrong_directory_is_named(
    target: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    assert main(["backup", str(tmp_path / "here"), str(tmp_path / (target or "there"))]) != 0
    assert message in capsys.readouterr().err
