"""The Control service: where the run stands, and holding, resuming or ending it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_server.rpc.auth import Identity, operator_may
from feddbp_server.rpc.status_codes import answers, streams
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.run.coordinator import Coordinator
from feddbp_server.run.refusals import RefusedError
from feddbp_server.run.state_machine import PauseRequested, ResumeRequested, StopRequested
from feddbp_server.run.validation import one_line

Context = grpc.aio.ServicerContext[Any, Any]
_MAX_REASON: Final = 500
_MAX_WATCHERS: Final = 64
"""Each of them is sent everything known of every client, again and again."""
_LEAST_INTERVAL: Final = 0.1
"""Seconds between two pushes of the status; changes in between are told together."""


class ControlService(pb_grpc.ControlServicer):
    """What operators call."""

    def __init__(self, coordinator: Coordinator, *, identity: Identity) -> None:
        self.coordinator = coordinator
        self._identity = identity
        self._watchers = 0

    @answers
    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.RunStatus:
        operator_may(self._identity, context)
        return status_of(self.coordinator.view)

    @streams
    async def WatchStatus(self, request: pb.WatchStatusRequest, context: Context) -> AsyncIterator[pb.RunStatus]:
        operator_may(self._identity, context)
        if self._watchers >= _MAX_WATCHERS:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, f"the status is watched {self._watchers} times already")
        self._watchers += 1
        run = self.coordinator.view
        try:
            while True:
                changed = run.upcoming_change()
                yield status_of(run)
                if run.state.phase.is_final or run.draining:
                    return
                await changed.wait()
                await asyncio.sleep(_LEAST_INTERVAL)
        finally:
            self._watchers -= 1

    @answers
    async def Pause(self, request: pb.PauseRequest, context: Context) -> pb.RunStatus:
        operator_may(self._identity, context)
        await self.coordinator.operate(PauseRequested())
        return status_of(self.coordinator.view)

    @answers
    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.RunStatus:
        operator_may(self._identity, context)
        await self.coordinator.operate(ResumeRequested())
        return status_of(self.coordinator.view)

    @answers
    async def Stop(self, request: pb.StopRequest, context: Context) -> pb.RunStatus:
        operator_may(self._identity, context)
        await self.coordinator.operate(StopRequested(one_line(request.reason, _MAX_REASON) or "stopped by an operator"))
        return status_of(self.coordinator.view)
