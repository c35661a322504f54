"""Serves metrics over HTTP from threads of its own, so that a slow scraper does not block the event loop.

Values are collected on the event loop, where they change; formatting and compression happen in the thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from feddbp_common.errors import ConfigurationError
from feddbp_server.metrics.scrape_tls import ScrapeCredentials
from feddbp_server.run.admission.limits import DEFAULT_LIMITS, Limits

log = logging.getLogger("feddbp.server")

PATH: Final = "/metrics"
_STOP_SECONDS: Final = 0.1
"""Interval at which the HTTP server checks whether to stop."""


class LoopIsBusyError(Exception):
    """The event loop did not answer in time, or is closed."""


class OnLoop(Collector):
    """Collects on the event loop for another thread."""

    def __init__(
        self,
        families: Callable[[], Iterable[Metric]],
        loop: asyncio.AbstractEventLoop,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._families = families
        self._loop = loop
        self._wait = limits.collect_wait.total_seconds()

    def collect(self) -> list[Metric]:
        answer: Future[list[Metric]] = Future()

        def take() -> None:
            try:
                answer.set_result(list(self._families()))
            except BaseException as error:
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(take)
        except RuntimeError as error:
            raise LoopIsBusyError("the event loop is closed") from error
        try:
            return answer.result(self._wait)
        except TimeoutError as error:
            raise LoopIsBusyError from error


class _Scrape(MetricsHandler):
    """One request."""

    server_version = "feddbp"
    sys_version = ""

    def do_GET(self) -> None:
        if urlsplit(self.path).path != PATH:
            self.send_error(404, f"metrics are at {PATH}")
            return
        try:
            super().do_GET()
        except LoopIsBusyError:
            self.send_error(503, "the server is too busy to answer")
        except OSError:  # the scraper disconnected
            self.close_connection = True
        except Exception:
            log.exception("a scrape failed")
            self.send_error(500, "the metrics could not be collected; the server's log says why")


class _Listener(ThreadingHTTPServer):
    """A daemon thread per request, up to a limit; beyond it the oldest has to go, unless it is new itself.

    A scrape takes milliseconds: the oldest is one that reads slowly, or not at all.
    """

    request_queue_size = 64
    """The default is 5: beyond it a scraper's connection is tried again only after a second."""

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[MetricsHandler],
        limits: Limits,
        tls: ScrapeCredentials | None = None,
    ) -> None:
        self._tls = tls
        self._scrape_seconds = limits.scrape_wait.total_seconds()
        family, _, _, _, found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        self._limits = limits
        self._lock = threading.Lock()
        self._began: dict[socket.socket, float] = {}
        """When each request began, oldest first."""
        super().__init__((str(found[0]), int(found[1])), handler)

    def server_bind(self) -> None:
        # not HTTPServer's, which resolves the host's name and may wait for that
        socketserver.TCPServer.server_bind(self)

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        # what is counted and ended is the socket that the thread uses: encryption leaves the other one closed
        return (connection if self._tls is None else self._tls.encrypted(connection)), address

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._make_room(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _make_room(self, request: socket.socket) -> bool:
        now = time.monotonic()
        with self._lock:
            if len(self._began) >= self._limits.scrapes:
                oldest = next(iter(self._began))
                if now - self._began[oldest] < self._limits.scrape_turn.total_seconds():
                    return False
                del self._began[oldest]
                with suppress(OSError):
                    # its thread, which reads or writes, fails at once; SSLSocket's own would let it go on unencrypted
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)
            self._began[request] = now
        return True

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._began.pop(request, None)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Handles a request in its thread, in which the handshake of TLS may take its time, too."""
        if self._tls is not None:
            request.settimeout(self._scrape_seconds)
            self._tls.authenticate(request)
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broken connection is not worth a traceback on the server's terminal."""
        log.debug("a scrape was aborted", exc_info=True)


class Exporter:
    """The HTTP endpoint; listens until `close`, on a free port if `port` is 0."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        host: str,
        port: int,
        limits: Limits = DEFAULT_LIMITS,
        tls: ScrapeCredentials | None = None,
    ) -> None:
        handler: Any = _Scrape.factory(registry)
        handler.timeout = limits.scrape_wait.total_seconds()
        try:
            self._http = _Listener((host, port), handler, limits, tls)
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            cause = getattr(error, "strerror", None) or "not a valid host name"
            raise ConfigurationError(f"cannot serve metrics on {host}:{port}: {cause}") from None
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_STOP_SECONDS,), name="metrics", daemon=True
        )
        self._thread.start()

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
