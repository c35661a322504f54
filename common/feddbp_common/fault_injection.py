"""Fault points at which a test can kill the process; they do nothing unless FEDDBP_FAULT names one.

`FEDDBP_FAULT=server.upload.committed@3` kills the process with SIGKILL the third time it reaches that point: no handler
runs and no buffer is flushed.
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "FEDDBP_FAULT"

_point, _, _count = os.environ.get(VARIABLE, "").partition("@")
_left = int(_count) if _count.isdecimal() else 1


def fault_point(point: str) -> None:
    """Marks a point at which a test can kill the process."""
    global _left
    if point != _point:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
