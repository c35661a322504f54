"""--on-event: the operator's command."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from feddbp_common.errors import ConfigurationError
from feddbp_server.reporting.event_command import EventCommand, command_words

KEEP = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"


async def test_every_event_is_given_to_the_command_in_order(tmp_path: Path) -> None:
    file = tmp_path / "events"
    command = EventCommand((sys.executable, "-c", KEEP, str(file)))
    command.run_id = "run-1"
    command.notify("client_lost", client=3, name="north clinic")
    command.notify("run_finished", reason="all rounds are done")
    await command.close()
    first, second = map(json.loads, file.read_text().splitlines())
    assert (first["event"], first["client"], first["name"]) == ("client_lost", 3, "north clinic")
    assert (second["event"], second["reason"], second["run_id"]) == ("run_finished", "all rounds are done", "run-1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("/nowhere/at/all",), "/nowhere/at/all cannot be started: No such file or directory"),
        ((sys.executable, "-c", "print('first'); print('no mail server'); exit(3)"), "ended with 3: no mail server"),
        (("sleep", "600"), "sleep was ended after 0.3 s"),
        (("sh", "-c", "sleep 600 & sleep 600"), "sh was ended after 0.3 s"),
    ],
)
async def test_a_command_that_fails_or_hangs_is_a_line_in_the_log(
    words: tuple[str, ...], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = 0.3 if "sleep" in words or "sh" in words else 60
    command = EventCommand(words, timeout=timedelta(seconds=seconds))
    command.notify("run_failed")
    worker = command._worker
    assert worker is not None
    await worker
    assert said in caplog.text


async def test_events_do_not_pile_up_without_end(caplog: pytest.LogCaptureFixture) -> None:
    command = EventCommand(("true",))
    for _ in range(150):
        command.notify("storage_trouble")
    assert "100 events wait for the command; storage_trouble is dropped" in caplog.text
    command._waiting.clear()
    await command.close()


async def test_without_a_command_no_process_is_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[object] = []
    monkeypatch.setattr(asyncio, "create_subprocess_exec", lambda *words, **_: started.append(words))
    command = EventCommand()
    for _ in range(150):
        command.notify("run_finished")
    assert command._worker is None
    await command.close()
    assert started == []
    assert caplog.text == ""


def test_a_command_line_has_quotes_but_no_shell() -> None:
    assert command_words("mail -s 'the run' me@example.org; ls") == ("mail", "-s", "the run", "me@example.org;", "ls")
    with pytest.raises(ConfigurationError, match=r"--on-event: .* is not a command line"):
        command_words("mail -s 'the run")
