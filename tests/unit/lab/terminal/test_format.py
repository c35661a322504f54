"""Numbers as people read them."""

from __future__ import annotations

import pytest

from feddbp_lab.terminal.format import human_bytes, human_seconds, id_ranges, percent, sparkline


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_940, "99.9 kB"),
        (99_960, "100 kB"),
        (999_600, "1.0 MB"),
        (22_000_000, "22.0 MB"),
        (3.2e12, "3.2 TB"),
    ],
)
def test_bytes(count: float, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3725, "1 h 02 min")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_a_missing_share_is_a_dash() -> None:
    assert percent(None) == "–"
    assert percent(0.8125) == "81.2 %"


def test_neighbouring_ids_are_drawn_together() -> None:
    assert id_ranges([7, 0, 1, 2, 9, 10]) == "0-2, 7, 9-10"
    assert id_ranges([]) == ""


def test_a_sparkline_keeps_the_newest() -> None:
    assert sparkline([0.0, 0.5, 1.0], 2) == "▅█"
