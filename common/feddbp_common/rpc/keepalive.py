"""Keepalive pings, by which both sides detect that the peer or the network failed without closing the connection."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from feddbp_common.wire import CHUNK_BYTES

DEFAULT_LEASE: Final = timedelta(seconds=30)
"""How long an id stays reserved without a connection; a lost connection must be detected within it."""
_SHORTEST_DETECTION: Final = timedelta(seconds=5)
"""Lower bound for short leases, because a busy machine may answer a ping late."""


def keepalive_options(lease: timedelta) -> list[tuple[str, int]]:
    """Returns channel options that close a dead connection within the lease."""
    detection = min(max(lease, _SHORTEST_DETECTION), DEFAULT_LEASE)
    milliseconds = int(detection.total_seconds() * 1000)
    # the larger part is for the answer: on a slow link a ping queues behind an upload
    until_ping = milliseconds // 3
    until_lost = milliseconds - until_ping
    return [
        ("grpc.keepalive_time_ms", until_ping),
        ("grpc.keepalive_timeout_ms", until_lost),
        # gRPC uses the larger of the two timeouts, and the default of this one is a minute
        ("grpc.http2.ping_timeout_ms", until_lost),
        ("grpc.keepalive_permit_without_calls", 1),
        # an event stream may be idle for hours: do not limit the number of pings without data
        ("grpc.http2.max_pings_without_data", 0),
        # a fixed flow-control window bounds the bytes a ping can queue behind; a window that grows with the measured
        # bandwidth would let megabytes of an upload queue on a slow link, and the ping would time out
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", CHUNK_BYTES),
    ]
