"""The page on operations against the code."""

from __future__ import annotations

import re

from pages import DOCS

from feddbp_common.version import VERSION
from feddbp_server.rpc.status_reply import ACTIVITY_NAMES
from feddbp_server.store.migrations import FORMAT

PAGE = (DOCS / "operations.md").read_text()


def test_the_page_shows_the_database_format_of_this_version() -> None:
    assert f"(format {FORMAT + 1}); this is feddbp {VERSION}, which reads formats up to {FORMAT}:" in PAGE


def test_the_page_lists_every_activity_of_a_client() -> None:
    listed = re.search(r"by activity: (.*?) \|", PAGE)
    assert listed is not None
    assert re.findall(r"`(\w+)`", listed[1]) == list(ACTIVITY_NAMES.values())
