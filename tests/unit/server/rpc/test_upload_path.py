"""The modules an upload runs through, traced on a server that listens on a socket, against docs/architecture.md."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import pytest
from coordinator_runs import CLIENTS, CONFIG, join_request, parts, trained_upload
from run_machine import ids

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.wire import Payload
from feddbp_server.app import Server
from feddbp_server.config import ListenConfig, RoundsConfig, ServerConfig

ARCHITECTURE = Path(__file__).parents[4] / "docs" / "architecture.md"
MOST = 16


class Trace:
    """Collects the modules of this project whose functions run, in every thread started while it is installed."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.threads: set[str] = set()
        self._recording = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if self._recording and event == "call" and module.startswith("feddbp"):
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


@asynccontextmanager
async def listening(directory: Path) -> AsyncIterator[Server]:
    server = Server(
        ServerConfig(
            listen=ListenConfig(port=0, state_dir=directory), rounds=RoundsConfig(min_clients=CLIENTS), run=CONFIG
        )
    )
    try:
        await server.engine.start()
        await server._listen()
        yield server
    finally:
        await server._shut_down()


def documented_modules() -> list[str]:
    section = ARCHITECTURE.read_text().partition("## The life of one upload\n")[2].partition("\n## ")[0]
    fenced = re.search(r"^```\w*\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    assert fenced is not None
    return [line.split()[0] for line in fenced[1].splitlines()]


async def test_an_upload_runs_through_the_documented_modules_and_no_other(trace: Trace, tmp_path: Path) -> None:
    async with listening(tmp_path) as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        federation = pb_grpc.FederationStub(channel)
        sessions = [
            (await federation.Join(join_request(server.coordinator, client_id))).session for client_id in range(CLIENTS)
        ]
        sent = [part async for part in parts(sessions[0], 0, trained_upload(0, 0, Payload()))]
        with trace.recording():
            receipt: pb.UploadReceipt = await federation.Upload(iter(sent))
        assert not receipt.duplicate
        assert server.engine.state.uploaded == ids(0)
    documented = documented_modules()
    assert len(documented) <= MOST
    assert trace.modules == set(documented)
    assert trace.threads == {"MainThread", "store"}
