"""The table of docs/benchmarks.md has the bars that the benchmarks use."""

from __future__ import annotations

import re
from itertools import takewhile

import pytest
from benchmarks import bars
from deploy_files import CHECKOUT

BARS = [
    ("FedDBP training step against cross-entropy", [bars.TRAINING_STEP]),
    ("the same with two of the small networks", [bars.SMALL_TRAINING_STEP]),
    ("training step with flip-crop", [bars.FLIP_CROP, bars.SMALL_FLIP_CROP]),
    ("training step with RandAugment", [bars.RANDAUGMENT, bars.SMALL_RANDAUGMENT]),
    ("prototypes and Fisher scores", [bars.FISHER_PASS]),
    ("bytes of messages", [bars.WIRE_BYTES]),
    ("start of the server", [bars.STARTUP_SECONDS]),
    ("last receipt of a round", [bars.ROUND_GAP_MILLISECONDS]),
    ("closing a round of 1,000 clients", [bars.CLOSING]),
    ("1,000 connected clients, resident memory", [bars.FLAT_MEMORY]),
    ("a round without training", [bars.ROUND_TIME]),
    ("the same: server CPU", [bars.ROUND_CPU]),
    ("the same: server memory", [bars.ROUND_MEMORY_MB]),
    ("server CPU of a client and round", [bars.CPU_GROWTH]),
    ("10,000 clients at C=10: errors; time", [0, bars.JOIN_SECONDS]),
    ("the same: memory in the last third", [bars.FLAT_MEMORY]),
    ("1,000 clients at C=100: peak memory", [bars.PEAK_MEMORY_MB]),
    ("ingest of C=100 uploads", [bars.INGEST]),
]


def rows() -> list[tuple[str, list[float]]]:
    """What is measured, and the numbers in its cell of the column `bar`."""
    _, table = (CHECKOUT / "docs" / "benchmarks.md").read_text().split("| what | bar | measured | |\n", 1)
    cells = [line.split("|")[1:3] for line in takewhile(lambda line: line.startswith("|"), table.splitlines()[1:])]
    return [(what.strip(), numbers(bar)) for what, bar in cells]


def numbers(bar: str) -> list[float]:
    flat = re.search(r"flat within (\d+) %", bar)
    return [1 + int(flat[1]) / 100] if flat else [float(number) for number in re.findall(r"\b\d+(?:\.\d+)?", bar)]


def test_the_page_states_the_bars_of_the_benchmarks() -> None:
    found = rows()
    assert len(found) == len(BARS)
    for (what, stated), (begins, used) in zip(found, BARS, strict=True):
        assert what.startswith(begins)
        assert stated == pytest.approx(used), what
