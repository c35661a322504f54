"""Files of lines: written as far as the disk allows, and read as far as they are whole."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from feddbp_common.atomic_files import append_line
from feddbp_server.reporting.json_lines import JsonLines, LineFile

FULL = "/dev/full"


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
    lines = LineFile(path)
    for interruption in range(2):
        lines.close()
        if path.exists():
            path.rename(tmp_path / "kept")
        path.symlink_to(FULL)
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


def number_in(entry: dict[str, Any]) -> int:
    return int(entry["number"])


def test_damaged_lines_are_counted_and_a_last_line_without_end_is_not(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    whole = [json.dumps({"number": number}) for number in range(3)]
    path.write_text("\n".join([whole[0], '{"number": ', "[]", '{"other": 1}', "", *whole[1:], '{"num']))
    assert JsonLines.read(path, number_in) == JsonLines([0, 1, 2], damaged=4)
    assert JsonLines.read(tmp_path / "none", number_in) == JsonLines([])
    with pytest.raises(IsADirectoryError):
        JsonLines.read(tmp_path, number_in)


def test_the_end_of_a_file_is_read_from_the_first_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = [json.dumps({"number": number}) + "\n" for number in range(4)]
    path.write_text("".join(lines))
    size = len(lines[0])
    found = {last: JsonLines.read(path, number_in, last_bytes=last) for last in (size, size + 1, 2 * size, 9 * size)}
    assert {last - size: read.entries for last, read in found.items()} == {
        0: [3],
        1: [3],
        size: [2, 3],
        8 * size: [0, 1, 2, 3],
    }
    assert not any(read.damaged for read in found.values())
