"""Files that are replaced as a whole."""

from __future__ import annotations

from pathlib import Path

from feddbp_common.atomic_files import replace_private


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
