"""Fixtures of all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Before torch and numpy are imported, and for every process that a test starts: as many test processes run as there
# are cores, so threads of one would only wait for those of another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell has its background jobs ignore Ctrl-C, and the processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from processes import TEMPLATES, Federation, federation

# A deadline would be an assertion on time, which a busy machine fails.
hypothesis.settings.register_profile("feddbp", deadline=None)
hypothesis.settings.load_profile("feddbp")


@pytest.fixture(scope="session", autouse=True)
def templates() -> Iterator[None]:
    """Ends the template processes with the tests."""
    yield
    for template in TEMPLATES.values():
        template.close()


@pytest.fixture
def running_federation(tmp_path: Path) -> Iterator[Federation]:
    """A federation without processes; a test starts those it needs."""
    with federation(tmp_path / "federation") as running:
        yield running
