"""The newest status on a screen that is drawn again and again: time goes on in it, and silence is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from rich.console import Group, RenderableType
from rich.text import Text

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import FedDBPError
from feddbp_lab.terminal.format import human_seconds
from feddbp_lab.terminal.status_table import StatusView


class WatchedStatus:
    """What was heard last, and since when nothing is."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._status: pb.RunStatus | None = None
        self._heard = clock()
        self._trouble: FedDBPError | None = None

    def show(self, status: pb.RunStatus) -> None:
        self._status, self._heard, self._trouble = status, self._clock(), None

    def lose(self, trouble: FedDBPError) -> None:
        self._trouble = trouble

    def __rich__(self) -> RenderableType:
        if self._status is None:
            return Text()
        silent = self._clock() - self._heard
        status = pb.RunStatus()
        status.CopyFrom(self._status)
        if status.HasField("time_left"):
            left = status.time_left.ToTimedelta() - timedelta(seconds=silent)
            status.time_left.FromTimedelta(max(left, timedelta(0)))
        # as of when it was heard: clients that were there then have not been heard of since
        view = StatusView(status=status, now=self._heard)
        if self._trouble is None:
            return view
        told = f"no answer for {human_seconds(silent)}, trying again: {self._trouble}"
        return Group(view, Text(told, style="bold red"))
