"""The cache of decoded images: what it serves after crashes and damage, between processes, and within its bound."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import cache_writer
import numpy as np
import pytest
from cache_writer import KEY, ROW_BYTES, ROWS, row_content

from feddbp_client.data.row_cache import CacheSpace, RowCache, open_cache

FILE_BYTES = ROWS * (ROW_BYTES + 16)


def opened(directory: Path, *, key: str = KEY, size: int = 10**9) -> RowCache:
    cache = open_cache(CacheSpace(directory=directory, size=size), key, rows=ROWS, row_bytes=ROW_BYTES)
    assert cache is not None
    return cache


def read(cache: RowCache, row: int) -> np.ndarray | None:
    out = np.empty((cache_writer.SIDE, cache_writer.SIDE, 3), dtype=np.uint8)
    return out if cache.read(row, out) else None


def write(cache: RowCache, *rows: int) -> None:
    for row in rows:
        cache.write(row, row_content(row), (row, row + 0.5))


def served(cache: RowCache) -> list[int]:
    """The rows that the cache has, all of which are as they were written."""
    found = {row: read(cache, row) for row in range(ROWS)}
    for row, pixels in found.items():
        assert pixels is None or np.array_equal(pixels, row_content(row))
    return [row for row, pixels in found.items() if pixels is not None]


def file_of(directory: Path, key: str = KEY) -> Path:
    return directory / f"{key}.rows"


def writer(directory: Path, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, cache_writer.__file__, str(directory), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_rows_outlive_the_cache_object_with_their_extremes(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    assert served(cache) == []
    write(cache, 5, 0, 39)
    del cache
    again = opened(tmp_path)
    assert served(again) == [0, 5, 39]
    assert np.flatnonzero(again.written()).tolist() == [0, 5, 39]
    assert again.extremes()[[0, 5, 39]].tolist() == [[0, 0.5], [5, 5.5], [39, 39.5]]


def test_a_row_that_another_user_of_the_file_has_written_is_found(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    write(first, 7)
    assert served(second) == [7]


@pytest.mark.parametrize("killed_at", [0, 1, ROW_BYTES // 2, ROW_BYTES - 1, -1])
def test_a_row_in_whose_midst_the_process_was_killed_is_not_served(killed_at: int, tmp_path: Path) -> None:
    process = writer(tmp_path, 0, killed_at)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    cache = opened(tmp_path)
    assert served(cache) == [0, 1, 2]
    write(cache, 3)
    assert served(cache) == [0, 1, 2, 3]


def test_processes_that_share_a_cache_read_only_complete_rows(tmp_path: Path) -> None:
    processes = [writer(tmp_path, seed) for seed in range(3)]
    assert [process.communicate()[0] for process in processes] == ["", "", ""]
    assert {process.returncode for process in processes} == {0}
    assert served(opened(tmp_path)) == list(range(ROWS))


def test_a_row_that_lost_bytes_on_the_disk_is_not_served(tmp_path: Path) -> None:
    """As after a power failure: the record reached the disk, a part of the row did not."""
    cache = opened(tmp_path)
    write(cache, 1, 2)
    with file_of(tmp_path).open("r+b") as file:
        file.seek(ROWS * 16 + 2 * ROW_BYTES + 100)
        file.write(bytes(500))
    assert served(cache) == [1]
    assert served(opened(tmp_path)) == [1]


def test_a_row_in_the_place_of_another_is_not_served(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    write(cache, 1)
    content = bytearray(file_of(tmp_path).read_bytes())
    content[2 * 16 : 3 * 16] = content[16:32]
    content[ROWS * 16 + 2 * ROW_BYTES : ROWS * 16 + 3 * ROW_BYTES] = row_content(1).tobytes()
    file_of(tmp_path).write_bytes(content)
    assert served(opened(tmp_path)) == [1]


def test_the_file_grows_only_with_what_is_written(tmp_path: Path) -> None:
    write(opened(tmp_path), 39)
    status = file_of(tmp_path).stat()
    assert status.st_size == FILE_BYTES
    assert status.st_blocks * 512 < FILE_BYTES / 4


def test_a_cache_beyond_the_bound_keeps_the_first_rows_alone(tmp_path: Path) -> None:
    cache = opened(tmp_path, size=FILE_BYTES // 2)
    write(cache, *range(ROWS))
    assert 15 <= cache.capacity < 20
    assert served(cache) == list(range(cache.capacity))
    assert file_of(tmp_path).stat().st_size <= FILE_BYTES // 2


def test_a_larger_bound_keeps_what_is_there_and_a_smaller_one_gives_space_back(tmp_path: Path) -> None:
    write(opened(tmp_path, size=FILE_BYTES // 2), *range(ROWS))
    larger = opened(tmp_path)
    assert (larger.capacity, len(served(larger))) == (ROWS, 19)
    write(larger, *range(ROWS))
    del larger
    smaller = opened(tmp_path, size=FILE_BYTES // 4)
    assert len(served(smaller)) == smaller.capacity < 10
    assert file_of(tmp_path).stat().st_size <= FILE_BYTES // 4
    del smaller
    assert len(served(opened(tmp_path))) < 10


def test_a_cache_in_use_is_not_cut_by_another_client(tmp_path: Path) -> None:
    used = opened(tmp_path)
    write(used, *range(ROWS))
    assert opened(tmp_path, size=FILE_BYTES // 4).capacity == ROWS
    assert len(served(used)) == ROWS


def test_unused_caches_make_room_the_longest_unused_first(tmp_path: Path) -> None:
    keys = [digit * 64 for digit in "123"]
    for age, key in zip((300, 100, 200), keys, strict=True):
        write(opened(tmp_path, key=key), 0)
        os.utime(file_of(tmp_path, key), (10**9 - age, 10**9 - age))
    (tmp_path / "notes.rows").write_bytes(bytes(10**6))
    in_use = opened(tmp_path, key=keys[0], size=4 * FILE_BYTES)
    os.utime(file_of(tmp_path, keys[0]), (10**9 - 300, 10**9 - 300))
    opened(tmp_path, size=3 * FILE_BYTES)
    left = {path.name for path in tmp_path.glob("*.rows")}
    assert left == {file_of(tmp_path, keys[0]).name, file_of(tmp_path, keys[1]).name, f"{KEY}.rows", "notes.rows"}
    assert served(in_use) == [0]


def test_others_can_read_neither_the_folder_nor_the_rows(tmp_path: Path) -> None:
    opened(tmp_path / "cache")
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert file_of(tmp_path / "cache").stat().st_mode & 0o777 == 0o600


def test_without_a_usable_folder_there_is_no_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    space = CacheSpace(directory=tmp_path / "file", size=10**9)
    assert open_cache(space, KEY, rows=ROWS, row_bytes=ROW_BYTES) is None
    assert "file: cannot be used as a cache: File exists" in caplog.text


def test_without_room_there_is_no_cache(tmp_path: Path) -> None:
    for size in (0, 100):
        space = CacheSpace(directory=tmp_path / str(size), size=size)
        assert open_cache(space, KEY, rows=ROWS, row_bytes=ROW_BYTES) is None
    assert not (tmp_path / "0").exists()


def test_a_full_disk_is_reported_once_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = opened(tmp_path)
    write(cache, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _no_space)
        write(cache, 2, 3)
    assert served(cache) == [0, 1]
    assert caplog.text.count("cannot be written ([Errno 28] No space left on device)") == 1


def _no_space(*_: object) -> int:
    raise OSError(28, "No space left on device")
