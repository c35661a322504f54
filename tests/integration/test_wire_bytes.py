"""The benchmark of bytes on the wire: what it measures, and that it ends when its server does."""

from __future__ import annotations

import pytest
from benchmarks.wire_bytes import measure

from feddbp_client.daemon.connection import ServerUnavailableError
from feddbp_common.fault_injection import VARIABLE


def test_messages_are_hardly_larger_than_the_tensors_in_them() -> None:
    assert [measurement.holds for measurement in measure()] == [True, True]


def test_a_server_that_dies_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "server.download.sending")
    with pytest.raises(ServerUnavailableError):
        measure()
