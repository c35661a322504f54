"""A real run in a tracker, followed from outside by `feddbp track` over a restart of its server."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import federation, wait_until

TRACKED = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="the extra `tensorboard` is not installed"
)
RUN = ("--clients", 2, "--rounds", 1000, "--local-epochs", 1, "--method", "fedproto")


def steps(directory: Path, name: str) -> list[int]:
    """Completed rounds for which the tracker has written a value."""
    events = TRACKED.EventAccumulator(str(next(directory.glob("tracked/*"))))
    events.Reload()
    return [event.step for event in events.Tensors(name)] if name in events.Tags()["tensors"] else []


def test_a_run_is_followed_over_a_restart_of_its_server_to_its_end(tmp_path: Path) -> None:
    with federation(tmp_path) as running:
        server = running.server(*RUN)
        tracker = running.start(
            "feddbp_lab.cli", "track", "--server", running.address, "--track", f"tensorboard:{tmp_path / 'tracked'}",
            name="track",
        )  # fmt: skip
        wait_until(lambda: list(tmp_path.glob("tracked/*/*")), "the tracker has seen the run")
        server.kill()
        running.server(*RUN)
        running.client("0-1")
        # it finds the server again after a while, and the rounds that it has missed by then
        wait_until(lambda: len(steps(tmp_path, "accuracy/all")) > 2, "the tracker has rounds of the restarted server")
        running.start("feddbp_lab.cli", "stop", "--yes", "--server", running.address, name="stop").expect_exit(0)
        tracker.expect_exit(0)
        accuracies, losses = steps(tmp_path, "accuracy/all"), steps(tmp_path, "loss/ce")
        assert accuracies == list(range(len(accuracies)))
        assert losses == list(range(1, len(losses) + 1))


def test_a_server_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    with federation(tmp_path) as running:
        tracker = running.start("feddbp_lab.cli", "track", "--server", "127.0.0.1:1", "--patience", "0s", name="track")
        tracker.expect_exit(3)
        assert "no server answers at 127.0.0.1:1" in tracker.log
        assert "Traceback" not in tracker.log
