"""The benchmark of bytes on the wire: its result, and its end when the server dies."""

from __future__ import annotations

import pytest
from benchmarks.wire_bytes import measure

from feddbp_client.daemon.connection import ServerUnavailableError
from feddbp_common.fault_injection import VARIABLE


def test_messages_have_little_overhead_over_their_tensors() -> None:
    assert [measurement.holds for measurement in measure()] == [True, True]


def test_a_server_that_dies_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "server.download.sending")
    with pytest.raises(ServerUnavailableError):
        measure()
