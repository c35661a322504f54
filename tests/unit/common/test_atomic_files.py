"""Files that are replaced as a whole, and lines that are appended as far as the disk allows."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import pytest

from feddbp_common.atomic_files import LineFile, append_line, replace_private


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_private_file_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    path.write_text("old")
    path.chmod(0o644)
    replace_private(path, b"new")
    assert (path.read_bytes(), mode_of(path)) == (b"new", 0o600)


def test_what_a_killed_process_left_does_not_widen_the_mode(tmp_path: Path) -> None:
    path, left = tmp_path / "session.json", tmp_path / "session.json.part"
    left.write_text("half of a")
    left.chmod(0o666)
    replace_private(path, b"new")
    assert (path.read_bytes(), mode_of(path)) == (b"new", 0o600)
    assert not left.exists()


class AlmostFull(io.FileIO):
    """A disk with room for a part of every line."""

    def write(self, content: Any) -> int:
        return super().write(bytes(content)[:5])


def test_a_line_is_in_the_file_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("first\n")
    with AlmostFull(str(path), "ab") as file, pytest.raises(OSError, match="No space left"):
        append_line(file, "second line")
    assert path.read_text() == "first\n"


def test_every_interruption_is_logged_once_and_its_lines_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rounds.jsonl"
    lines = LineFile(path, logging.getLogger("feddbp.server"))
    for interruption in range(2):
        lines.close()
        if path.exists():
            path.rename(tmp_path / "kept")
        path.symlink_to("/dev/full")
        assert [lines.append("lost") for _ in range(3)] == [0, 0, 0]
        path.unlink()
        if interruption:
            (tmp_path / "kept").rename(path)
        assert lines.append("written") > 0
    lines.close()
    assert path.read_text() == "written\nwritten\n"
    assert caplog.messages == 2 * [
        "rounds.jsonl cannot be written: No space left on device; lines will be missing",
        "rounds.jsonl can be written again; missing lines: 3",
    ]


def test_a_line_goes_to_the_file_that_is_in_place(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    lines = LineFile(path, logging.getLogger("feddbp.server"))
    lines.append("first")
    path.rename(tmp_path / "moved")
    lines.append("second")
    path.unlink()
    path.write_text("restored\n")
    lines.append("third")
    lines.close()
    assert (tmp_path / "moved").read_text() == "first\n"
    assert path.read_text() == "restored\nthird\n"


def test_a_line_after_a_torn_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"a": 1}\n{"b"')
    for _ in range(2):
        lines = LineFile(path, logging.getLogger("feddbp.server"))
        lines.append('{"c": 3}')
        lines.append('{"d": 4}')
        lines.close()
    assert path.read_text().splitlines() == ['{"a": 1}', '{"b"', *2 * ['{"c": 3}', '{"d": 4}']]
