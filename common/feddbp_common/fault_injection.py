"""Places where a test may have the process killed; inert unless FEDDBP_FAULT names one of them.

`FEDDBP_FAULT=server.upload.committed@3` kills the process with SIGKILL the third time it gets there: no handler runs,
nothing is flushed, as when the machine loses power.
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "FEDDBP_FAULT"

_point, _, _count = os.environ.get(VARIABLE, "").partition("@")
_left = int(_count) if _count.isdecimal() else 1


def fault_point(point: str) -> None:
    """Says that the process is at a point where a crash would be interesting."""
    global _left
    if point != _point:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
