"""Code blocks of the documentation, for tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def files_on(page: str) -> dict[str, str]:
    """Code blocks by the file their first line names."""
    text = (DOCS / page).read_text()
    return dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL))
