"""The history of a run: what its files keep of clients and rounds, and what watchers are sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from event_logs import session_of

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import CLIENTS_NAME, ROUNDS_NAME
from feddbp_server.reporting.history import RunHistory, Watcher


def devices_in(path: Path) -> list[str]:
    return [json.loads(line)["device"] for line in path.read_text().splitlines()]


def test_the_last_line_of_a_client_is_what_it_said_last(tmp_path: Path) -> None:
    history = RunHistory(tmp_path)
    for device in ("cpu", "cuda:0", "cuda:0", "cpu"):
        history.joined(session_of(3, device=device))
    history.close()
    assert devices_in(tmp_path / CLIENTS_NAME) == ["cpu", "cuda:0", "cpu"]


def test_a_client_that_joins_with_other_data_again_and_again_fills_no_disk(tmp_path: Path) -> None:
    history = RunHistory(tmp_path)
    for number in range(100):
        history.joined(session_of(3, device=f"cuda:{number % 2}"))
    history.joined(session_of(4, device="cpu"))
    history.close()
    assert len(devices_in(tmp_path / CLIENTS_NAME)) == 8 + 1


def test_each_file_that_cannot_be_written_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in (ROUNDS_NAME, CLIENTS_NAME):
        (tmp_path / name).symlink_to("/dev/full")
    history = RunHistory(tmp_path)
    for number in range(2):
        history.joined(session_of(number, device="cpu"))
        history.opened(number)
        history.closed(number, aggregation_seconds=0.1, missing=())
    history.close()
    failure = "cannot be written: No space left on device; lines will be missing"
    assert caplog.messages == [f"{CLIENTS_NAME} {failure}", f"{ROUNDS_NAME} {failure}"]


def test_the_files_of_another_run_are_removed(tmp_path: Path) -> None:
    history = RunHistory(tmp_path)
    history.joined(session_of(0, device="cpu"))
    history.forget()
    assert not (tmp_path / CLIENTS_NAME).exists()
    history.joined(session_of(1, device="cuda:0"))
    history.close()
    assert devices_in(tmp_path / CLIENTS_NAME) == ["cuda:0"]


def test_a_watcher_that_does_not_read_is_sent_one_end_and_nothing_after_it() -> None:
    watcher = Watcher(room=2)
    for _ in range(100):
        watcher.offer(pb.RunEvent())
    watcher.offer(None)
    assert watcher.too_slow
    assert [watcher.queue.get_nowait() is None for _ in range(watcher.queue.qsize())] == [False, False, True]
