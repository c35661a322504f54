"""A real run in a tracker, followed from outside by `feddbp track` over a restart of its server."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import federation, wait_until

TRACKED = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="the extra `tensorboard` is not installed"
)
RUN = ("--clients", 2, "--rounds", 2, "--local-epochs", 1, "--method", "fedproto", "--linger", "5s")


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
        tracker.expect_exit(0)
        events = TRACKED.EventAccumulator(str(next(tmp_path.glob("tracked/*"))))
        events.Reload()
        assert [event.step for event in events.Tensors("accuracy/all")] == [0, 1, 2]
        assert [event.step for event in events.Tensors("loss/ce")] == [1, 2]


def test_a_server_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    with federation(tmp_path) as running:
        tracker = running.start("feddbp_lab.cli", "track", "--server", "127.0.0.1:1", "--patience", "0s", name="track")
        tracker.expect_exit(3)
        assert "no server answers at 127.0.0.1:1" in tracker.log
        assert "Traceback" not in tracker.log
