"""What an earlier version left on disk, kept under `tests/fixtures`."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

VERSION_0_1_0 = Path(__file__).resolve().parents[1] / "fixtures" / "v0.1.0"


def restore(kept: Path, directory: Path) -> None:
    """Copies what was kept to a place where it can be worked on, and unpacks the databases in it."""
    shutil.copytree(kept, directory, dirs_exist_ok=True)
    for packed in directory.rglob("*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def lines_by_round(path: Path) -> dict[tuple[int, int], str]:
    """The lines of a metrics file as they stand, by round and client, whatever their order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {(told["round"], told["client"]): line for line in lines for told in [json.loads(line)]}


def accepted_uploads(state_dir: Path) -> list[tuple[int, int]]:
    """By round and client, in order, as the server's audit log tells."""
    events = [json.loads(line) for line in (state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()]
    return sorted((event["round"], event["client"]) for event in events if event["what"] == "accepted")
