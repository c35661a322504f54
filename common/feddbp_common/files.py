"""Files that are either the old one or the new one, never a half."""

from __future__ import annotations

from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
