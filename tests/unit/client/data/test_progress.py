"""Log lines about long reads."""

from __future__ import annotations

import pytest

from feddbp_client.data.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(caplog: pytest.LogCaptureFixture) -> Clock:
    caplog.set_level("INFO")
    return Clock()


def test_a_line_every_few_seconds_says_how_much_is_done_and_left(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    progress = Progress("read", 100_000, clock=clock)
    for _ in range(10):
        clock.now += 1
        progress.advance(1_200)
    assert caplog.messages == [
        "read 6,000 of 100,000 images, 1 min 18 s left",
        "read 12,000 of 100,000 images, 1 min 13 s left",
    ]


def test_a_quick_read_is_silent(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress("read", 1_000, clock=clock)
    for _ in range(1_000):
        clock.now += 0.0049
        progress.advance()
    assert caplog.messages == []


def test_the_end_is_not_announced(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress("read", 2, clock=clock)
    clock.now += 9
    progress.advance(2)
    assert caplog.messages == []


def test_what_has_no_known_total_is_counted(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    progress = Progress("found", noun="files", clock=clock)
    clock.now += 6
    progress.advance(4_000)
    assert caplog.messages == ["found 4,000 files so far"]
