"""The modules an upload runs through, traced on a server that listens on a socket, against docs/architecture.md."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest
from coordinator_runs import CLIENTS, Server, join_request, listening, trained_upload
from run_machine import ids

from feddbp_client.daemon.connection import Connection
from feddbp_common.wire import Payload
from feddbp_server.store import SqliteStore

T = TypeVar("T")

ARCHITECTURE = Path(__file__).parents[4] / "docs" / "architecture.md"
MOST = 26
IN_CLIENT = ContextVar("IN_CLIENT", default=False)
"""True in tasks of the client, which shares the event loop with the server."""


class Trace:
    """Collects the modules of this project whose functions run in the server.

    Covers every thread started while it is installed.
    """

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.threads: set[str] = set()
        self._recording = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if self._recording and event == "call" and module.startswith("feddbp") and not IN_CLIENT.get():
            self.modules.add(module)
            self.threads.add(threading.current_thread().name)

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._recording = True
        try:
            yield
        finally:
            self._recording = False


@pytest.fixture
def trace() -> Iterator[Trace]:
    made = Trace()
    with made.installed():
        yield made


async def in_client(work: Coroutine[Any, Any, T]) -> T:
    """Runs work in a task that is not traced."""
    token = IN_CLIENT.set(True)
    try:
        task = asyncio.create_task(work)  # copies the context
    finally:
        IN_CLIENT.reset(token)
    return await task


def documented_modules() -> list[str]:
    section = ARCHITECTURE.read_text().partition("## The life of one upload\n")[2].partition("\n## ")[0]
    fenced = re.search(r"^```\w*\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    assert fenced is not None
    return [line.split()[0] for line in fenced[1].splitlines()]


@pytest.mark.parametrize("admission", [True, False], ids=["body after admission", "everything at once"])
async def test_an_upload_runs_through_the_documented_modules_and_no_other(
    trace: Trace, tmp_path: Path, admission: bool
) -> None:
    async with Server(SqliteStore(tmp_path), tmp_path) as server, listening(server) as address:
        connection = Connection(address)
        if admission:
            await connection.get_run()  # lists the feature; a client of 0.1.0 does not know it
        assert connection.awaits_admission == admission
        sessions = [
            (await connection.join(join_request(server.coordinator, client_id))).session for client_id in range(CLIENTS)
        ]
        with trace.recording():
            receipt = await in_client(connection.upload(sessions[0], 0, trained_upload(0, 0, Payload())))
        assert not receipt.duplicate
        assert server.engine.state.uploaded == ids(0)
        await connection.close()
    documented = documented_modules()
    assert len(documented) <= MOST
    assert trace.modules == set(documented)
    assert trace.threads == {"MainThread", "store"}
