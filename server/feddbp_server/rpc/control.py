"""The Control service: status and events of the run; pausing, resuming, stopping it; dropping and blocking clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_server.rpc.auth import Context, Identity
from feddbp_server.rpc.run_events import RunEventStreams
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.coordinator import Coordinator

_REST_FACTOR: Final = 10.0
"""Between two statuses of a stream pass this many times what the last one took."""
_LONGEST_REST: Final = 5.0


class ControlService(pb_grpc.ControlServicer):
    """Owns the status streams of operators, and leaves every decision to the coordinator."""

    def __init__(
        self, coordinator: Coordinator, *, identity: Identity, limits: Limits, events: RunEventStreams
    ) -> None:
        self._coordinator = coordinator
        self._identity = identity
        self._limits = limits
        self._watchers = 0
        self._events = events

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.RunStatus:
        self._identity.check_operator(context)
        return self._status(request.clients_from)

    async def WatchStatus(self, request: pb.WatchStatusRequest, context: Context) -> AsyncIterator[pb.RunStatus]:
        self._identity.check_operator(context)
        if self._watchers >= self._limits.status_watchers:
            raise RefusedError(pb.REFUSAL_REASON_BUSY, f"the status is watched {self._watchers} times already")
        run = self._coordinator.view
        self._watchers += 1
        try:
            while True:
                changed = run.upcoming_change()
                over = run.state.phase.is_final or run.draining
                begun = time.monotonic()
                async with aclosing(self._pages(all_of_them=request.paged)) as pages:
                    async for page in pages:
                        yield page
                if over:
                    return
                # a status of many clients takes its time, of which the rest of the server keeps the larger share
                rest = _REST_FACTOR * (time.monotonic() - begun)
                await changed.wait()
                await asyncio.sleep(min(max(self._limits.status_interval.total_seconds(), rest), _LONGEST_REST))
        finally:
            self._watchers -= 1

    async def Pause(self, request: pb.PauseRequest, context: Context) -> pb.RunStatus:
        self._identity.check_operator(context)
        await self._coordinator.pause()
        return self._status()

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.RunStatus:
        self._identity.check_operator(context)
        await self._coordinator.resume()
        return self._status()

    async def Stop(self, request: pb.StopRequest, context: Context) -> pb.RunStatus:
        self._identity.check_operator(context)
        await self._coordinator.stop(request.reason)
        return self._status()

    async def DropClient(self, request: pb.DropClientRequest, context: Context) -> pb.RunStatus:
        self._identity.check_operator(context)
        return self._answer(changed=await self._coordinator.drop(request.client_id, request.reason))

    async def BlockClient(self, request: pb.BlockClientRequest, context: Context) -> pb.RunStatus:
        self._identity.check_operator(context)
        return self._answer(changed=await self._coordinator.block(request.client_id, request.reason))

    async def AllowClient(self, request: pb.AllowClientRequest, context: Context) -> pb.RunStatus:
        self._identity.check_operator(context)
        return self._answer(changed=await self._coordinator.allow(request.client_id))

    async def WatchRun(self, request: pb.WatchRunRequest, context: Context) -> AsyncIterator[pb.RunEvents]:
        self._identity.check_operator(context)
        async with aclosing(self._events.watch(request)) as pages:
            async for page in pages:
                yield page

    async def GetPrototypes(
        self, request: pb.GetPrototypesRequest, context: Context
    ) -> AsyncIterator[pb.PrototypesPart]:
        self._identity.check_operator(context)
        async with aclosing(self._events.prototypes(request)) as parts:
            async for part in parts:
                yield part

    async def GetClientPrototypes(
        self, request: pb.GetClientPrototypesRequest, context: Context
    ) -> AsyncIterator[pb.ClientPrototype]:
        self._identity.check_operator(context)
        async with aclosing(self._events.client_prototypes(request)) as rows:
            async for row in rows:
                yield row

    async def _pages(self, *, all_of_them: bool) -> AsyncGenerator[pb.RunStatus, None]:
        page = self._status()
        yield page
        while all_of_them and page.HasField("next_client"):
            await asyncio.sleep(0)  # other calls are answered between two pages
            page = self._status(page.next_client)
            yield page

    def _answer(self, *, changed: bool) -> pb.RunStatus:
        status = self._status()
        status.unchanged = not changed
        return status

    def _status(self, clients_from: int = 0) -> pb.RunStatus:
        return status_of(self._coordinator.view, clients_from=clients_from)
