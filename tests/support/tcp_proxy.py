"""A TCP proxy that misbehaves on request: it cuts, half-closes, falls silent, delays, throttles and goes away.

It runs in a thread of its own, so that a test may wait for whatever it likes, and sees bytes only: TLS goes through.
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
_COMMAND_SECONDS = 10.0


class Way(Enum):
    """A direction of the bytes."""

    UP = "upload"
    DOWN = "download"


class Fate(Enum):
    """What becomes of a connection."""

    RESET = "reset"
    CLOSE = "close"
    HALF_CLOSE = "half-close"
    """Nothing more passes in one direction, and its receiver is told so; the other direction goes on."""
    SILENCE = "silence"
    """Nothing passes any more, and nobody is told."""


@dataclass
class Trap:
    """Waits for a connection that has carried so many bytes one way, and springs once."""

    fate: Fate
    way: Way
    after_bytes: int
    _sprung: threading.Event = field(default_factory=threading.Event)

    def catches(self, way: Way, carried: int) -> bool:
        if self._sprung.is_set() or way is not self.way or carried < self.after_bytes:
            return False
        self._sprung.set()
        return True

    async def sprung(self) -> None:
        sprung = await asyncio.to_thread(self._sprung.wait, 2 * PATIENCE)
        assert sprung, f"no connection has carried {self.after_bytes} bytes"


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: TcpProxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._receivers = {Way.UP: server, Way.DOWN: client}
        self._carried = dict.fromkeys(Way, 0)
        self.is_silent = False

    async def carry(self, way: Way, reader: asyncio.StreamReader) -> None:
        """Moves bytes until their sender ends or a trap springs."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(
            _BUFFER_BYTES // _PIECE_BYTES if not self._proxy.delay else 0
        )
        delivery = asyncio.create_task(self._deliver(way, under_way))
        try:
            while not delivery.done():
                data = await reader.read(_PIECE_BYTES)
                await under_way.put((time.monotonic() + self._proxy.delay, data))
                if not data:
                    await delivery
        except OSError:
            self.reset()
        finally:
            delivery.cancel()

    async def _deliver(self, way: Way, under_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        receiver, proxy = self._receivers[way], self._proxy
        data = b"..."
        with suppress(OSError):
            while data:
                due, data = await under_way.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await asyncio.sleep(len(data) / proxy.bytes_per_second if proxy.bytes_per_second else 0)
                self._carried[way] += len(data)
                if proxy.trap is not None and proxy.trap.catches(way, self._carried[way]):
                    self._meet(proxy.trap.fate)
                    if proxy.trap.fate is Fate.HALF_CLOSE:
                        break
                if self.is_silent:
                    await asyncio.Event().wait()
                receiver.write(data)
                await receiver.drain()
            receiver.write_eof()

    def _meet(self, fate: Fate) -> None:
        if fate is Fate.RESET:
            self.reset()
        elif fate is Fate.CLOSE:
            self.close()
        elif fate is Fate.SILENCE:
            self.is_silent = True

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
    """Listens on a port of its own and passes everything on to `target_port`, as long as it behaves."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.connections = 0
        """Accepted so far."""
        self.delay = 0.0
        """Seconds every byte is late, either way."""
        self.bytes_per_second: int | None = None
        self.trap: Trap | None = None
        self._target_port = target_port
        self._swallows = False
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

    def set_trap(self, fate: Fate, way: Way, after_bytes: int) -> Trap:
        self.trap = Trap(fate, way, after_bytes)
        return self.trap

    def start(self) -> None:
        """Listens; again on the same port after `stop`."""
        self._command(self._listen())

    def stop(self) -> None:
        """As when the proxy's process dies: connections are reset, nobody listens."""
        self._command(self._go_away())

    def swallow(self) -> None:
        """A black hole: connections fall silent, new ones are accepted and never served."""
        self._command(self._set_swallowing(swallows=True))

    def restore(self) -> None:
        """Serves new connections again, and resets those that fell silent: a network forgets what it swallowed."""
        self._command(self._set_swallowing(swallows=False))

    def _command(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_COMMAND_SECONDS)

    async def _listen(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        # connections inherit it: loopback would take megabytes off the sender's hands, a slow link does not
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._server = await asyncio.start_server(self._connected, sock=listener)
        self.port = listener.getsockname()[1]

    async def _go_away(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in list(self._links):
            link.reset()

    async def _set_swallowing(self, *, swallows: bool) -> None:
        self._swallows = swallows
        for link in list(self._links):
            if swallows:
                link.is_silent = True
            elif link.is_silent:
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
        link.is_silent = self._swallows
        self._links.add(link)
        try:
            with suppress(asyncio.CancelledError):  # at the end of the test
                await asyncio.gather(link.carry(Way.UP, from_client), link.carry(Way.DOWN, from_server))
        finally:
            self._links.discard(link)
            link.close()
