"""A run on a server: its status and its events, followed until it has ended, and an operator's requests to it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import ClassVar, Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import ConfigurationError, FedDBPError
from feddbp_common.rpc.credentials import ClientCredentials
from feddbp_common.wire import PrototypeSet
from feddbp_lab.control_client import FINAL_PHASES, Request, RequestRefusedError, call_control, watch_status
from feddbp_lab.dashboard import messages
from feddbp_lab.dashboard.model import Json
from feddbp_lab.dashboard.source import RunSource
from feddbp_lab.results.run_files import RunFiles, client_prototype
from feddbp_lab.run_events import fetch_client_prototypes, fetch_prototypes, watch_run

_PATIENCE: Final = timedelta(days=3650)
"""A page stays open for as long as its process runs, and a server may be restarted at any time."""
_RETRY_SECONDS: Final = 1.0
_SAVE_SECONDS: Final = 0.1
"""For the server to write the prototypes of a round that has just closed."""


class LiveRun(RunSource):
    """Follows a server, reconnecting whenever it has to."""

    is_live: ClassVar[bool] = True

    def __init__(self, address: str, credentials: ClientCredentials, files: RunFiles | None = None) -> None:
        super().__init__()
        self.address = address
        self._credentials = credentials
        self._files = files
        """Of the server, where this machine has them: they remain when the server has exited."""
        self._status = pb.RunStatus()
        self._trouble = ""
        self._notes: list[str] = []
        """Why the history is not shown, if it never will be."""
        self._fetching: asyncio.Task[None] | None = None

    async def follow(self) -> None:
        """Returns once the run has ended and all of its history has arrived."""
        await asyncio.gather(self._follow_status(), self._follow_events())

    async def _follow_status(self) -> None:
        stream = watch_status(self.address, self._credentials, patience=_PATIENCE, on_error=self._lost)
        try:
            async with aclosing(stream) as statuses:
                async for status in statuses:
                    self._show(status)
        except FedDBPError as error:  # a refusal, such as of an operator's credentials that were replaced
            self._lost(error)

    async def _follow_events(self) -> None:
        while True:
            try:
                stream = watch_run(self.address, self._credentials, from_round=max(0, self.model.newest_round - 1))
                async with aclosing(stream) as pages:
                    async for page in pages:
                        for event in page.events:
                            self._apply(event)
                        if page.events and page.events[-1].HasField("run_ended"):
                            return
            except RequestRefusedError as error:
                if not error.transient:  # a server before 0.2.0 has no events
                    self._lost(error)
                    return
            except ConfigurationError as error:  # of a later version, whose options this one does not know
                self._notes = [str(error)]
                self._publish()
                return
            except FedDBPError:
                pass
            if self._status.phase in FINAL_PHASES:  # and its server has exited: nothing more will come
                return
            await asyncio.sleep(_RETRY_SECONDS)

    def _apply(self, event: pb.RunEvent) -> None:
        model = self.model
        match event.WhichOneof("event"):
            case "run_started":
                model.start(messages.started(event.run_started))
            case "client_joined":
                model.join(messages.joined(event.client_joined))
            case "client_reported":
                model.report(messages.reported(event.client_reported))
            case "round_closed":
                model.close_round(messages.closed(event.round_closed))
                if model.complete:
                    self._fetch_soon()
            case "history_complete":
                model.set_complete()
                self._fetch_soon()

    def _fetch_soon(self) -> None:
        """Fetches prototypes while the server is there to be asked; it exits soon after the last round."""
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch())

    async def _fetch(self) -> None:
        await asyncio.sleep(_SAVE_SECONDS)
        self._snapshots = await self.load_prototypes()

    def _show(self, status: pb.RunStatus) -> None:
        self._status, self._trouble = status, ""
        self._publish()

    def _lost(self, error: FedDBPError) -> None:
        if self._trouble != str(error) and self._status.phase not in FINAL_PHASES:
            self._trouble = str(error)
            self._publish()

    def _publish(self) -> None:
        shown = messages.status(self._status)
        shown |= {"trouble": self._trouble, "notes": self._notes}
        self.model.set_status(shown, messages.activities(self._status))

    # --- what the page asks for ---

    async def load_prototypes(self) -> dict[int, PrototypeSet]:
        if not self.model.run.get("shares_prototypes"):
            return {}
        newest = max(self._snapshots, default=0)
        try:
            found = await fetch_prototypes(self.address, self._credentials, from_round=newest + 1)
        except FedDBPError:  # it is being restarted, or has exited
            found = {} if self._files is None else self._files.snapshots()
        return {**self._snapshots, **found}

    async def client_prototypes(self, client_id: int) -> list[Json]:
        if not self.model.run.get("shares_prototypes"):
            return []
        try:
            rows = await fetch_client_prototypes(self.address, self._credentials, client_id)
        except FedDBPError:
            return [] if self._files is None else self._files.client_prototypes(client_id)
        return [
            client_prototype(
                class_id=row.class_id,
                samples=row.samples,
                distance=row.distance,
                cosine=row.cosine,
                channels=row.channels,
                kept=list(row.kept_channels),
            )
            for row in rows
        ]

    async def operate(self, action: str, reason: str = "") -> None:
        """Pauses, resumes or stops the run; raises the error of a call that fails."""
        requests: dict[str, Request] = {
            "pause": pb.PauseRequest(),
            "resume": pb.ResumeRequest(),
            "stop": pb.StopRequest(reason=reason or "stopped from the dashboard"),
        }
        self._show(await call_control(requests[action], self.address, self._credentials))
