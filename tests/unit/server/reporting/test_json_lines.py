"""Files of JSON lines are read as far as they are whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feddbp_server.reporting.json_lines import JsonLines


def number_in(entry: dict[str, Any]) -> int:
    return int(entry["number"])


def test_damaged_lines_are_counted_and_a_last_line_without_end_is_not(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    whole = [json.dumps({"number": number}) for number in range(3)]
    path.write_text(
        "\n".join([whole[0], '{"number": ', "[]", '{"other": 1}', '{"number": 1e999}', "", *whole[1:], '{"num'])
    )
    assert JsonLines.read(path, number_in) == JsonLines([0, 1, 2], damaged=5)
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
