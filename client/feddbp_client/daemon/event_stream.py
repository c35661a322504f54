"""The newest event of a Follow stream: an event replaces older ones that were not acted on yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import CallRefusedError, ServerUnavailableError

T = TypeVar("T")
_END_OF_STREAM_SECONDS: Final = 5.0


class EventStream:
    """Reads the stream in the background, so that a lost connection is noticed during an action."""

    def __init__(self, events: AsyncIterator[pb.RoundEvent]) -> None:
        self._events = events
        self._newest: pb.RoundEvent | None = None
        self._arrived = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._reader is not None
        if self._run_has_ended():
            # the server ends the stream; cancelled first, it could not know whether the last event arrived
            await asyncio.wait([self._reader], timeout=_END_OF_STREAM_SECONDS)
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def act_on_newest(self, act: Callable[[pb.RoundEvent], Awaitable[T]]) -> T:
        """Waits for an event and acts on it; the end of the stream cancels the action.

        After `run_ended` the server may shut down: an action that fails then is dropped, and `run_ended` acted on.
        """
        try:
            await self._unless_stream_ends(self._arrived.wait())
            event = self._newest
            assert event is not None
            self._arrived.clear()
            return await self._unless_stream_ends(act(event))
        except (ServerUnavailableError, CallRefusedError):
            if self._newest is None or not self._run_has_ended():
                raise
            return await act(self._newest)

    async def _unless_stream_ends(self, work: Awaitable[T]) -> T:
        assert self._reader is not None
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._reader), return_when=asyncio.FIRST_COMPLETED)
            if task.done() or self._run_has_finished():
                return await task
        finally:  # also of a caller that was cancelled: nobody else would retrieve the action's error
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._reader.result()  # raises what ended the stream
        raise ServerUnavailableError("the server ended the event stream")

    def _run_has_ended(self) -> bool:
        """A stream that ends after `run_ended` was not lost."""
        return self._newest is not None and self._newest.HasField("run_ended")

    def _run_has_finished(self) -> bool:
        """In a finished run the final evaluation is worth completing; after another outcome no action is."""
        return self._newest is not None and self._newest.run_ended.outcome == pb.RUN_OUTCOME_FINISHED

    async def _read(self) -> None:
        async for event in self._events:
            self._newest = event
            self._arrived.set()
