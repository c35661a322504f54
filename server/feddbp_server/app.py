"""The server process: opens the store, resumes the run, listens, and serves until the run ends or a signal arrives."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_health.v1.health_pb2 import HealthCheckResponse

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_common.artifacts import ENDPOINT_NAME
from feddbp_common.atomic_files import replace_text
from feddbp_common.config.privacy_text import privacy_sentences
from feddbp_common.errors import ConfigurationError, ExitCode
from feddbp_common.given_paths import is_there
from feddbp_common.humanize import join_address, quantity
from feddbp_common.rpc.credentials import CA, CertificateDirectory, is_loopback, listening_warning
from feddbp_common.rpc.keepalive import keepalive_options
from feddbp_server.config import ListenConfig, ServerConfig
from feddbp_server.process import NewFiles, settle_heap, tighten
from feddbp_server.reporting.audit import Audit
from feddbp_server.reporting.event_command import EventCommand, command_words
from feddbp_server.reporting.history import RunHistory
from feddbp_server.reporting.metrics_log import MetricsLog
from feddbp_server.reporting.prototype_snapshots import PrototypeSnapshots
from feddbp_server.reporting.records import RunRecords
from feddbp_server.rpc.auth import CertificateAuth, Identity, NoAuth, TokenAuth
from feddbp_server.rpc.control import ControlService
from feddbp_server.rpc.federation import FederationService
from feddbp_server.rpc.interceptors import CallGuard
from feddbp_server.rpc.run_events import RunEventStreams
from feddbp_server.rpc.upload import Uploads
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.coordinator import Coordinator
from feddbp_server.run.engine import RunEngine
from feddbp_server.run.state_machine.state import Phase
from feddbp_server.store import SqliteStore, StoreError, StoreWriter
from feddbp_server.stored_options import options_json

if TYPE_CHECKING:
    from feddbp_server.metrics import Monitor

log = logging.getLogger("feddbp.server")

FEDERATION: Final = pb.DESCRIPTOR.services_by_name["Federation"].full_name
CONTROL: Final = pb.DESCRIPTOR.services_by_name["Control"].full_name
_GRACE: Final = timedelta(seconds=5)


class Server:
    """Owns the parts of a server and their life cycle."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._limits = replace(config.limits.in_force, lost_after=config.operations.lost_after)
        self._stopping = asyncio.Event()
        self._identity = _identity(config.listen)
        authority = _authority(config)
        self._new_files = NewFiles(config.listen.state_dir)
        self._has_failed_to_start = False
        self._store = StoreWriter(SqliteStore(config.listen.state_dir))
        tighten(config.listen.state_dir)
        self._records = self._open_records()
        self.engine = RunEngine(
            config=config.run,
            policy=config.policy,
            store=self._store,
            records=self._records,
            lease=config.rounds.lease_in_force,
            limits=self._limits,
            authority=authority,
        )
        self.coordinator = Coordinator(self.engine, self._limits)
        self._health = health_aio.HealthServicer()
        self._monitor = self._make_monitor()
        classes = config.run.classes
        guard = CallGuard(self.engine.event_log, limits=self._limits, identity=self._identity, classes=classes)
        self._grpc = grpc.aio.server(
            interceptors=[guard] if self._monitor is None else [self._monitor.meter, guard],
            options=server_options(
                config.rounds.lease_in_force, self._limits, classes=classes, clients=config.run.clients
            ),
        )
        self.port = 0
        self.metrics_port: int | None = None

    async def serve(self) -> ExitCode:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, number)
        try:
            await self._start()
            await self._until_over()
            await self.coordinator.save_end_received()
            if not self._stopping.is_set():
                self.engine.event_log.exiting(self.coordinator.not_notified)
            return self._exit_code()
        finally:
            await self._shut_down()

    async def _start(self) -> None:
        self._has_failed_to_start = True  # until it listens
        try:
            await self.engine.start(reopen=self._config.listen.reopen, options_json=options_json(self._config))
            await self._listen()
        except OSError as error:
            file = error.filename2 or error.filename or self._config.listen.state_dir
            raise StoreError(f"{file} cannot be written: {error.strerror}") from error
        self._has_failed_to_start = False

    async def _listen(self) -> None:
        identity = self._identity
        uploads = Uploads(self.engine, self._limits)
        federation = FederationService(self.coordinator, identity=identity, uploads=uploads)
        events = RunEventStreams(self.engine, self._limits)
        control = ControlService(self.coordinator, identity=identity, limits=self._limits, events=events)
        pb_grpc.add_FederationServicer_to_server(federation, self._grpc)
        pb_grpc.add_ControlServicer_to_server(control, self._grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        if self._config.listen.reflection:
            self._add_reflection()
        address = join_address(self._config.listen.host, self._config.listen.port)
        try:
            self.port = self._add_port(address)
        except RuntimeError:
            raise ConfigurationError(
                f"cannot listen on {address}: {_bind_problem(self._config.listen.host, self._config.listen.port)}"
            ) from None
        self._serve_metrics()
        await self._grpc.start()
        await self._set_health()
        settle_heap()
        self._write_endpoint()
        self._log_start()

    def _log_start(self) -> None:
        run, listen = self._config.run, self._config.listen
        log.info(
            "run %s: %s on %s, %s, %s, seed %d; state directory %s",
            self.engine.run_id,
            run.method_spec.title,
            run.data.dataset,
            quantity(run.clients, "client"),
            quantity(run.rounds, "round"),
            run.seed,
            listen.state_dir,
        )
        for sentence in privacy_sentences(run):
            log.info("%s", sentence)
        self._log_address()

    def _log_address(self) -> None:
        listen = self._config.listen
        tls = "without" if listen.certs is None else "with"
        log.info("listening on %s %s TLS", join_address(listen.host, self.port), tls)
        if warning := listening_warning(listen.host, certs=listen.certs, token_file=listen.token_file):
            log.warning("%s", warning)

    def _open_records(self) -> RunRecords:
        listen = self._config.listen
        return RunRecords(
            audit=Audit(listen.state_dir, limits=self._limits),
            metrics_log=MetricsLog(listen.state_dir),
            history=RunHistory(listen.state_dir),
            snapshots=PrototypeSnapshots(listen.state_dir) if listen.share_prototypes_with_operators else None,
            command=EventCommand(command_words(self._config.operations.on_event)),
        )

    def _make_monitor(self) -> Monitor | None:
        if self._config.listen.metrics_port is None:
            return None
        from feddbp_server.metrics import Monitor  # imports an HTTP server, which most runs do not need

        return Monitor(self.coordinator.view, self._limits)

    def _serve_metrics(self) -> None:
        host, port = self._config.listen.metrics_host, self._config.listen.metrics_port
        if self._monitor is None or port is None:
            return
        listen = self._config.listen
        self.metrics_port = self._monitor.listen(host, port, certs=listen.certs if listen.metrics_tls else None)
        scheme = "https" if listen.metrics_tls else "http"
        log.info("metrics are at %s://%s/metrics", scheme, join_address(host, self.metrics_port))
        if not (is_loopback(host) or listen.metrics_tls):
            log.warning("metrics are readable, unencrypted, by any host that reaches %s", host)

    def _add_port(self, address: str) -> int:
        listen = self._config.listen
        if listen.certs is None:
            return self._grpc.add_insecure_port(address)
        credentials = CertificateDirectory(listen.certs).server_credentials(
            clients_have_certificates=listen.token_file is None
        )
        return self._grpc.add_secure_port(address, credentials)

    def _write_endpoint(self) -> None:
        """Writes where the server listens, for processes that started it with port 0."""
        endpoint: dict[str, str | int] = {"host": self._config.listen.host, "port": self.port, "pid": os.getpid()}
        if self.metrics_port is not None:
            endpoint |= {"metrics_host": self._config.listen.metrics_host, "metrics_port": self.metrics_port}
        replace_text(self._config.listen.state_dir / ENDPOINT_NAME, json.dumps(endpoint) + "\n")

    async def _until_over(self) -> None:
        health = asyncio.create_task(self._update_health())
        over = asyncio.create_task(self.coordinator.ended(linger=self._config.listen.linger))
        stopped = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((over, stopped), return_when=asyncio.FIRST_COMPLETED)
        for task in (health, over, stopped):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _stop(self, number: int) -> None:
        self._stopping.set()
        over = self.engine.state.phase.is_final
        what = "the run is over" if over else "the run resumes when the server is started again"
        log.info("%s: stopping; %s", signal.Signals(number).name, what)

    async def _update_health(self) -> None:
        while True:
            changed = self.engine.run_changed.upcoming()
            await self._set_health()
            await changed.wait()

    async def _set_health(self) -> None:
        """Clients are served while the run can accept uploads, operators as long as the process runs."""
        serving, not_serving = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
        accepting = not (self.engine.state.phase.is_final or self.engine.draining or self.engine.storage_trouble)
        await self._health.set(FEDERATION, serving if accepting else not_serving)
        await self._health.set(CONTROL, serving)
        await self._health.set("", serving)

    async def _shut_down(self) -> None:
        await self._health.enter_graceful_shutdown()
        await self.engine.drain()
        await self._grpc.stop(_GRACE.total_seconds())
        await self.engine.drain()  # streams that ended in the grace period have applied events
        await self._records.command.close()
        if self._monitor is not None:
            await self._monitor.close()
        if self._has_failed_to_start:
            self._new_files.remove()
        await self._store.close()
        self._records.close()

    def _exit_code(self) -> ExitCode:
        if self.engine.state.phase is Phase.FINISHED:
            return ExitCode.OK
        if self.engine.state.phase.is_final:
            return ExitCode.RUN_FAILED
        return ExitCode.INTERRUPTED

    def _add_reflection(self) -> None:
        from grpc_reflection.v1alpha import reflection

        reflection.enable_server_reflection((FEDERATION, CONTROL, reflection.SERVICE_NAME), self._grpc)


def server_options(lease: timedelta, limits: Limits, *, classes: int, clients: int) -> list[tuple[str, int]]:
    """Options of the gRPC server: pings that notice a lost client before its lease ends, and limits on messages."""
    pending = max(limits.pending_calls, limits.pending_calls_per_client * clients)
    return [
        *keepalive_options(lease),
        # clients ping as often as they need to: that is no reason to close their connection
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_receive_message_length", limits.message_bytes + limits.bytes_per_class * classes),
        ("grpc.max_metadata_size", limits.metadata_bytes),
        ("grpc.max_concurrent_streams", limits.streams_per_connection),
        # beyond these gRPC drops calls at random, before any interceptor sees them; its default of 1,000 is fewer than
        # many clients make at once when a round opens
        ("grpc.server.max_pending_requests", pending),
        ("grpc.server.max_pending_requests_hard_limit", 2 * pending),
        # never share a port with a second server: a bind error has to be an error
        ("grpc.so_reuseport", 0),
    ]


def _authority(config: ServerConfig) -> bytes:
    """The certificate of the authority that clients of a secure sum have theirs from."""
    certs = config.listen.certs
    if certs is None or not config.run.privacy.secure_sums:
        return b""
    if is_there(certs / f"{CA}.key"):
        log.warning(
            "%s has the authority's key: who has it can make up clients, and secure sums promise nothing against that; "
            "keep %s.key on another machine",
            certs,
            CA,
        )
    return CertificateDirectory(certs).authority()


def _identity(listen: ListenConfig) -> Identity:
    if listen.token_file is not None:
        return TokenAuth.from_file(listen.token_file)
    return CertificateAuth() if listen.certs is not None else NoAuth()


def _bind_problem(host: str, port: int) -> str:
    """Why an address cannot be listened on: gRPC does not say."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return f"{error.strerror}; another --port or --host may be free"
    return "it was in use a moment ago; try again"
