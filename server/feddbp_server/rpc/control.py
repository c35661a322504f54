"""The Control service: where the run stands, and holding, resuming or ending it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_server.rpc.auth import Context, Identity
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.run.coordinator import Coordinator
from feddbp_server.run.limits import Limits
from feddbp_server.run.refusals import RefusedError
from feddbp_server.run.state_machine import PauseRequested, ResumeRequested, StopRequested
from feddbp_server.run.validation import one_line


class ControlService(pb_grpc.ControlServicer):
    """What operators call."""

    def __init__(self, coordinator: Coordinator, *, identity: Identity, limits: Limits) -> None:
        self._coordinator = coordinator
        self._limits = limits
        self._identity = identity
        self._watchers = 0

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.RunStatus:
        self._identity.check_operator(context)
        return status_of(self._coordinator.view)

    async def WatchStatus(self, request: pb.WatchStatusRequest, context: Context) -> AsyncIterator[pb.RunStatus]:
        self._identity.check_operator(context)
        if self._watchers >= self._limits.status_watchers:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, f"the status is watched {self._watchers} times already")
        self._watchers += 1
        run = self._coordinator.view
        try:
            while True:
                changed = run.upcoming_change()
                yield status_of(run)
                if run.state.phase.is_final or run.draining:
                    return
                await changed.wait()
                await asyncio.sleep(self._limits.status_interval.total_seconds())
        finally:
            self._watchers -= 1

    async def Pause(self, request: pb.PauseRequest, context: Context) -> pb.RunStatus:
        self._identity.check_operator(context)
        await self._coordinator.operate(PauseRequested())
        return status_of(self._coordinator.view)

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.RunStatus:
        self._identity.check_operator(context)
        await self._coordinator.operate(ResumeRequested())
        return status_of(self._coordinator.view)

    async def Stop(self, request: pb.StopRequest, context: Context) -> pb.RunStatus:
        self._identity.check_operator(context)
        reason = one_line(request.reason, self._limits.text_characters)
        await self._coordinator.operate(StopRequested(reason or "stopped by an operator"))
        return status_of(self._coordinator.view)
