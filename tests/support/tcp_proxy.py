"""A TCP proxy that injects network faults: resets, half-closes, packet loss, delay, throttling, an outage.

It runs in a thread of its own, so that tests may block, and handles bytes only: TLS passes through.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self

from processes import PATIENCE

_PIECE_BYTES = 16 << 10
_BUFFER_BYTES = 32 << 10


class Direction(Enum):
    """A direction of transfer."""

    UP = "upload"
    DOWN = "download"


class Fault(Enum):
    """What happens to a connection."""

    RESET = "reset"
    CLOSE = "close"
    HALF_CLOSE = "half-close"
    """One direction is closed; the other stays open."""
    SILENCE = "silence"
    """All bytes are dropped, and the connection stays open."""


@dataclass
class Trigger:
    """Applies a fault, once, to the first connection that has carried so many bytes one way."""

    fault: Fault
    direction: Direction
    after_bytes: int
    _fired: threading.Event = field(default_factory=threading.Event)

    def fires_at(self, direction: Direction, carried: int) -> bool:
        if self._fired.is_set() or direction is not self.direction or carried < self.after_bytes:
            return False
        self._fired.set()
        return True

    async def fired(self) -> None:
        fired = await asyncio.to_thread(self._fired.wait, 2 * PATIENCE)
        assert fired, f"no connection has carried {self.after_bytes} bytes"


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: TcpProxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._receivers = {Direction.UP: server, Direction.DOWN: client}
        self._carried = dict.fromkeys(Direction, 0)
        self.is_dropped = False

    async def carry(self, direction: Direction, reader: asyncio.StreamReader) -> None:
        """Forwards bytes until the sender ends or a trigger fires."""
        in_flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(
            _BUFFER_BYTES // _PIECE_BYTES if not self._proxy.delay else 0
        )
        delivery = asyncio.create_task(self._deliver(direction, in_flight))
        try:
            while not delivery.done():
                data = await reader.read(_PIECE_BYTES)
                await in_flight.put((time.monotonic() + self._proxy.delay, data))
                if not data:
                    await delivery
        except OSError:
            self.reset()
        finally:
            delivery.cancel()

    async def _deliver(self, direction: Direction, in_flight: asyncio.Queue[tuple[float, bytes]]) -> None:
        receiver, proxy = self._receivers[direction], self._proxy
        data = b"..."
        with suppress(OSError):
            while data:
                due, data = await in_flight.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await asyncio.sleep(len(data) / proxy.bytes_per_second if proxy.bytes_per_second else 0)
                self._carried[direction] += len(data)
                if proxy.trigger is not None and proxy.trigger.fires_at(direction, self._carried[direction]):
                    self._apply(proxy.trigger.fault)
                    if proxy.trigger.fault is Fault.HALF_CLOSE:
                        break
                if self.is_dropped:
                    await asyncio.Event().wait()
                receiver.write(data)
                await receiver.drain()
            receiver.write_eof()

    def _apply(self, fault: Fault) -> None:
        if fault is Fault.RESET:
            self.reset()
        elif fault is Fault.CLOSE:
            self.close()
        elif fault is Fault.SILENCE:
            self.is_dropped = True

    def close(self) -> None:
        for receiver in self._receivers.values():
            receiver.close()

    def reset(self) -> None:
        for receiver in self._receivers.values():
            connection = receiver.get_extra_info("socket")
            with suppress(OSError):  # it may be closed already
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            receiver.transport.abort()


class TcpProxy:
    """Listens on a port of its own and forwards to `target_port`, with the faults that are set."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.connections = 0
        """Number of connections accepted so far."""
        self.delay = 0.0
        """Seconds by which every byte is delayed, either way."""
        self.bytes_per_second: int | None = None
        self.trigger: Trigger | None = None
        self._target_port = target_port
        self._drops = False
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._command(self._cancel_everything())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def set_trigger(self, fault: Fault, direction: Direction, after_bytes: int) -> Trigger:
        self.trigger = Trigger(fault, direction, after_bytes)
        return self.trigger

    def start(self) -> None:
        """Listens; again on the same port after `stop`."""
        self._command(self._listen())

    def stop(self) -> None:
        """Resets all connections and stops listening, as when the proxy's process dies."""
        self._command(self._stop_listening())

    def drop_everything(self) -> None:
        """Drops all bytes of all connections; new ones are accepted and never served."""
        self._command(self._set_dropping(drops=True))

    def restore(self) -> None:
        """Serves new connections again, and resets those whose bytes were dropped."""
        self._command(self._set_dropping(drops=False))

    def _command(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _listen(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        # connections inherit it: loopback would buffer megabytes for the sender, a slow link does not
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._server = await asyncio.start_server(self._connected, sock=listener)
        self.port = listener.getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in list(self._links):
            link.reset()

    async def _set_dropping(self, *, drops: bool) -> None:
        self._drops = drops
        for link in list(self._links):
            if drops:
                link.is_dropped = True
            elif link.is_dropped:
                link.reset()

    async def _cancel_everything(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            to_client.close()
            return
        link = _Link(self, to_client, to_server)
        link.is_dropped = self._drops
        self._links.add(link)
        try:
            with suppress(asyncio.CancelledError):  # at the end of the test
                await asyncio.gather(link.carry(Direction.UP, from_client), link.carry(Direction.DOWN, from_server))
        finally:
            self._links.discard(link)
            link.close()
