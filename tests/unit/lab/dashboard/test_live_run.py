"""A run on a server, as the dashboard follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import RunConfig, run_to_proto
from feddbp_common.rpc.credentials import ClientCredentials
from feddbp_lab.dashboard import live
from feddbp_lab.dashboard.live import LiveRun


async def test_a_run_that_this_version_does_not_know_says_why_it_has_no_history(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = run_to_proto(RunConfig())
    config.method = "unheard-of"

    async def events(*_: object, **__: object) -> AsyncIterator[pb.RunEvents]:
        yield pb.RunEvents(events=[pb.RunEvent(run_started=pb.RunStarted(run_id="1", config=config))])

    async def statuses(*_: object, **__: object) -> AsyncIterator[pb.RunStatus]:
        yield pb.RunStatus(phase=pb.PHASE_FINISHED)

    async def without_rest(*_: Any) -> None:
        raise AssertionError("it asks for the same events again")

    monkeypatch.setattr(live, "watch_run", events)
    monkeypatch.setattr(live, "watch_status", statuses)
    monkeypatch.setattr(asyncio, "sleep", without_rest)
    run = LiveRun("127.0.0.1:1", ClientCredentials())
    await run.follow()
    (note,) = run.model.status["notes"]
    assert "no method is called 'unheard-of'" in note
    assert run.model.status["phase"] == "finished"
