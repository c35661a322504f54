"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Federation, federation


@pytest.fixture
def running_federation(tmp_path: Path) -> Iterator[Federation]:
    """An empty federation; a test starts what it needs."""
    with federation(tmp_path / "federation") as running:
        yield running
