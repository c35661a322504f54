"""Writes requirements.lock: every version of constraints.txt with the SHA-256 of its file.

lock.py CONSTRAINTS LOCK

`make lock` calls it. Hashes are those of the files that pip chooses here, for Python 3.11 on Linux x86-64. torch and
torchvision are left out: under one version their wheels differ between indexes, by the CUDA they are built for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

UNLOCKED: Final = ("torch", "torchvision")


def pins(constraints: str) -> list[str]:
    """The pinned requirements that are locked."""
    lines = [line.split("#")[0].strip() for line in constraints.splitlines()]
    return [line for line in lines if line and line.partition("==")[0].lower() not in UNLOCKED]


def lock_of(report: dict[str, Any]) -> str:
    """The lock file, from what pip reports that it would install."""
    lines = ["# Written by `make lock` from constraints.txt, for Python 3.11 on Linux x86-64; not edited by hand."]
    for item in sorted(report["install"], key=lambda item: item["metadata"]["name"].lower()):
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} --hash=sha256:{sha256}")
    return "\n".join(lines) + "\n"


def main(constraints: Path, lock: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        wanted, report = Path(scratch) / "pins.txt", Path(scratch) / "report.json"
        wanted.write_text("\n".join(pins(constraints.read_text(encoding="utf-8"))), encoding="utf-8")
        command = ["install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([sys.executable, "-m", "pip", *command, "--report", str(report), "-r", str(wanted)], check=True)
        lock.write_text(lock_of(json.loads(report.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
