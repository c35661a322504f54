"""A federation of child processes that cannot be started, or not be stopped in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import processes_naming

from feddbp_common.config.run import RunConfig
from feddbp_lab.processes import local_federation
from feddbp_lab.processes.federation_options import FederationOptions
from feddbp_lab.processes.local_federation import LocalFederation, ProcessFailedError


class RecordedTracker:
    """A tracker that only records whether it was closed."""

    def __init__(self, *_: object) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalFederation:
    monkeypatch.setattr(local_federation, "Tracker", RecordedTracker)
    run = RunConfig(method="fedproto", clients=2, rounds=1)
    return LocalFederation(
        FederationOptions(run=run, directory=tmp_path, processes=1, threads=1, data_dir=tmp_path, track=("recorded",))
    )


async def test_the_tracker_of_a_federation_that_cannot_start_is_closed(
    federation: LocalFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_federation, "SERVER_MODULE", "no_such_module")
    with pytest.raises(ProcessFailedError, match="the server ended with exit code 1"):
        async with federation:
            pass
    tracker: Any = federation._tracker
    assert tracker.closed == 1


async def test_processes_are_stopped_although_their_tracker_cannot_be_closed(
    federation: LocalFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OSError("the tracker is gone")

    async def endpoint(*_: object) -> str:
        return "127.0.0.1:1"

    async def follow(*_: object) -> None:
        return

    (tmp_path / "waiting.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(RecordedTracker, "close", fail)
    for name, value in (("SERVER_MODULE", "waiting"), ("CLIENT_MODULE", "waiting"), ("follow", follow)):
        monkeypatch.setattr(local_federation, name, value)
    monkeypatch.setattr(LocalFederation, "_wait_for_endpoint", endpoint)
    federation._environment["PYTHONPATH"] = str(tmp_path)
    with pytest.raises(OSError, match="the tracker is gone"):
        async with federation:
            assert len(processes_naming(tmp_path)) >= 2
    assert processes_naming(tmp_path) == []
