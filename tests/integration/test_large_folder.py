"""A client's memory does not grow with its image folder: the benchmark `large_folder` at a tenth of its size."""

from __future__ import annotations

from pathlib import Path

from benchmarks.large_folder import trained_apart, write_images

IMAGES, SIDE = 10_000, 96
DECODED = IMAGES * SIDE * SIDE * 3


def test_training_on_a_large_folder_takes_less_memory_than_its_images(tmp_path: Path) -> None:
    write_images(tmp_path / "images", IMAGES, side=SIDE)
    outcome = trained_apart(tmp_path / "images", tmp_path / "cache", side=SIDE)
    assert outcome.images == IMAGES
    (cached,) = (tmp_path / "cache").glob("*.rows")
    assert cached.stat().st_blocks * 512 >= DECODED
    # read whole, they would take three times as much: as read, split, and on the device
    assert outcome.peak_bytes - outcome.start_bytes < DECODED
