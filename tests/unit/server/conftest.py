from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from coordinator_runs import Server, metrics_of, summary_of, whole_run

from feddbp_server.store import MemoryStore


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(MemoryStore(), tmp_path) as started:
        yield started


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and metrics of a run without incident."""
    directory = tmp_path_factory.mktemp("uninterrupted")

    async def run() -> None:
        async with Server(MemoryStore(), directory) as started:
            await whole_run(started)

    asyncio.run(run())
    return summary_of(directory), metrics_of(directory)
