"""Time from the start of the server to its first response to a health check."""

from __future__ import annotations

import time
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks import bars
from benchmarks.measurement import Measurement
from benchmarks.servers import running_server


def measure() -> list[Measurement]:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        with running_server() as server, grpc.insecure_channel(server.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stubs leave the methods out
            stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
            times.append(time.perf_counter() - started)
    return [
        Measurement(
            question="start of the server to its first health answer",
            value=min(times),
            bar=bars.STARTUP_SECONDS,
            unit="s",
            detail=f"best of 5, worst {max(times):.2f} s",
        )
    ]
