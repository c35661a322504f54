"""How both sides notice that the other's machine or network went away without a word: pings on a silent connection."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from feddbp_common.wire import CHUNK_BYTES

DEFAULT_LEASE: Final = timedelta(seconds=30)
"""How long an id stays reserved without a connection, and so how long a lost connection may go unnoticed."""
_SHORTEST: Final = timedelta(seconds=5)
"""No lease makes pings more impatient than this: a busy machine is not a lost one."""


def keepalive_options(lease: timedelta) -> list[tuple[str, int]]:
    """Channel options under which a dead connection is given up within the lease."""
    noticed = min(max(lease, _SHORTEST), DEFAULT_LEASE)
    milliseconds = int(noticed.total_seconds() * 1000)
    # the answer gets the larger part: on a slow link a ping waits behind whatever is being uploaded
    until_ping = milliseconds // 3
    until_lost = milliseconds - until_ping
    return [
        ("grpc.keepalive_time_ms", until_ping),
        ("grpc.keepalive_timeout_ms", until_lost),
        # gRPC waits for the longer of the two, and for a minute unless it is told otherwise
        ("grpc.http2.ping_timeout_ms", until_lost),
        ("grpc.keepalive_permit_without_calls", 1),
        # an event stream may be silent for hours: pings must not run out because no data is sent between them
        ("grpc.http2.max_pings_without_data", 0),
        # a window of fixed size: what it lets through is all a ping can ever wait behind. A window that grows with the
        # link would let an upload of megabytes onto a slow one, and the ping that measures it would be the first lost
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", CHUNK_BYTES),
    ]
