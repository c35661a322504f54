"""A process that reads and writes the rows of a cache: `python cache_writer.py DIRECTORY SEED [KILLED_AT]`.

It prints the rows that it read with other content than they were written with. KILLED_AT bytes into a row, or with -1
between a row and its record, it is killed.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np

ROWS, SIDE = 40, 60
KEY = "0" * 64
ROW_BYTES = SIDE * SIDE * 3

_LOADED_ALONE = Path(__file__).parents[2] / "client/feddbp_client/data/row_cache.py"
"""Without its package, which imports torch."""


def row_content(row: int) -> np.ndarray:
    return np.random.default_rng(row).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def main(directory: str, seed: str, killed_at: str | None = None) -> None:
    spec = importlib.util.spec_from_file_location("row_cache", _LOADED_ALONE)
    assert spec is not None
    assert spec.loader is not None
    row_cache = sys.modules["row_cache"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(row_cache)
    space = row_cache.CacheSpace(directory=Path(directory), size=10**9)
    cache = row_cache.open_cache(space, KEY, rows=ROWS, row_bytes=ROW_BYTES)
    if killed_at is not None:
        _arrange_kill(int(killed_at), rows_before=3)
    out = np.empty((SIDE, SIDE, 3), dtype=np.uint8)
    order = list(range(ROWS))
    random.Random(seed).shuffle(order)
    for row in [*order, *order] if killed_at is None else range(ROWS):
        if not cache.read(row, out):
            cache.write(row, row_content(row), (0.0, 0.0))
        elif not np.array_equal(out, row_content(row)):
            print(row)


def _arrange_kill(killed_at: int, *, rows_before: int) -> None:
    """Kills the process in the midst of a write, with so many rows complete."""
    write, calls = os.pwrite, 0

    def interrupted(descriptor: int, content: memoryview, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls > 2 * rows_before:  # a row and a record each
            write(descriptor, content if killed_at < 0 else content[:killed_at], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, content, offset)

    os.pwrite = interrupted  # type: ignore[assignment]


if __name__ == "__main__":
    main(*sys.argv[1:])
