"""Full disks, unusable files, shutdowns and restarts of the server: what it has accepted is never lost."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from benchmarks.light_client import LightClient
from grpc_health.v1 import health_pb2, health_pb2_grpc
from light_runs import Crowd, Gate, exits, start_client, start_server, status_when, undisturbed_outcome
from metrics import scrape
from private_disks import needs_mounts, read_only_disk, small_disk
from processes import Command, Federation, GaveUpError, Outcome, wait_until
from raw_calls import RawChannel, serialised

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection, ServerUnavailableError
from feddbp_client.daemon.transfers import upload_parts
from feddbp_common.artifacts import AUDIT_NAME, DATABASE_NAME, ENDPOINT_NAME, METRICS_NAME, SERVER_LOCK_NAME
from feddbp_common.errors import ExitCode
from feddbp_common.wire import Encoded

CLIENTS = 3
RUN = ("--clients", CLIENTS, "--min-clients", CLIENTS, "--rounds", 4, "--round-deadline", 0, "--feature-dim", 8192)
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return undisturbed_outcome(tmp_path_factory.mktemp("undisturbed"), *RUN, clients=CLIENTS)


async def health_of(address: str, service: str) -> Any:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stubs leave the methods out
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        return answer.status


def accepted(state_dir: Path) -> set[tuple[int, int, str]]:
    """Accepted uploads according to the audit log: client, round, digest."""
    lines = map(json.loads, (state_dir / AUDIT_NAME).read_text().splitlines())
    return {(line["client"], line["round"], line["sha256"]) for line in lines if line["what"] == "accepted"}


# --- a full disk ---


@asynccontextmanager
async def stalled_run(running: Federation) -> AsyncIterator[tuple[Command, Crowd, Gate]]:
    """A run in which client 0 waits at the beginning of round 1 until the gate is opened."""
    server = await start_server(running, *RUN)
    gate = Gate(at_round=1)
    async with Crowd(running.address, range(CLIENTS), on_event={0: gate}) as crowd:
        await gate.reached.wait()
        yield server, crowd, gate


async def expect_storage_trouble(running: Federation, server: Command, words: str) -> None:
    """The server runs, reports the cause, and does not serve clients."""
    status = await status_when(running.address, lambda status: words in status.reason, "trouble with the disk")
    assert status.phase in (pb.PHASE_COLLECTING, pb.PHASE_AGGREGATING)
    assert any(words in incident.message for incident in status.incidents)
    assert await health_of(running.address, "feddbp.v1.Federation") == NOT_SERVING
    assert await health_of(running.address, "feddbp.v1.Control") == SERVING
    assert server.process.poll() is None


@needs_mounts
async def test_a_run_on_a_full_disk_resumes_when_there_is_room(
    running_federation: Federation, undisturbed: Outcome
) -> None:
    with small_disk(running_federation.state_dir, 24) as disk:
        running_federation.before_server, running_federation.state_dir = disk.words, disk.seen
        async with stalled_run(running_federation) as (server, crowd, gate):
            disk.fill()
            gate.opened.set()
            await expect_storage_trouble(running_federation, server, "database or disk is full")
            before = accepted(disk.seen)
            disk.make_room()
            await crowd.ended()
            await exits(server, 0)
        assert "Traceback" not in server.log
        assert "the state directory can be used again" in server.log
        assert before <= accepted(disk.seen)
        assert running_federation.outcome() == undisturbed


async def test_a_run_on_a_failing_disk_resumes_when_it_can_be_written(
    running_federation: Federation, undisturbed: Outcome
) -> None:
    """Needs no mounts: RLIMIT_FSIZE makes writes beyond a file's first kilobytes fail."""
    async with stalled_run(running_federation) as (server, crowd, gate):
        pid = server.process.pid
        no_limit = resource.prlimit(pid, resource.RLIMIT_FSIZE, (64 << 10, resource.RLIM_INFINITY))
        gate.opened.set()
        await expect_storage_trouble(running_federation, server, "disk I/O error")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, no_limit)
        await crowd.ended()
        await exits(server, 0)
    assert "Traceback" not in server.log
    assert "(storage): the state directory cannot be used: disk I/O error; try again later" in server.log
    assert running_federation.outcome() == undisturbed


@needs_mounts
async def test_a_server_killed_while_its_disk_is_full_loses_nothing(
    running_federation: Federation, undisturbed: Outcome
) -> None:
    with small_disk(running_federation.state_dir, 24) as disk:
        running_federation.before_server, running_federation.state_dir = disk.words, disk.seen
        async with stalled_run(running_federation) as (server, crowd, gate):
            disk.fill()
            gate.opened.set()
            await expect_storage_trouble(running_federation, server, "database or disk is full")
            server.kill()
            disk.make_room()
            server = await start_server(running_federation, *RUN)
            await crowd.ended()
            await exits(server, 0)
        assert running_federation.outcome() == undisturbed


@needs_mounts
def test_a_server_does_not_start_on_a_full_disk(running_federation: Federation) -> None:
    with small_disk(running_federation.state_dir, 1) as disk:
        running_federation.before_server, running_federation.state_dir = disk.words, disk.seen
        disk.fill()
        assert "disk is full" in refused_start(running_federation)


# --- an unusable state directory ---


def refused_start(running: Federation, *options: object, code: int = 1) -> str:
    """The error message of a server that did not start, which is one line."""
    with pytest.raises(GaveUpError):
        running.server(*RUN, *options)
    server = running.commands[-1]
    server.expect_exit(code)
    assert "Traceback" not in server.log
    last = server.log.splitlines()[-1]
    assert last.startswith("feddbp-server: error: ")
    return last


def _a_file(place: Path) -> None:
    place.write_text("not a directory")


def _below_a_file(place: Path) -> None:
    place.symlink_to("/proc/version/server")


def _nowhere(place: Path) -> None:
    place.symlink_to("/proc/no-such-place/server")


@pytest.mark.parametrize("make", [_a_file, _below_a_file, _nowhere])
def test_an_unusable_state_directory_is_named(make: Callable[[Path], None], running_federation: Federation) -> None:
    make(running_federation.state_dir)
    running_federation.state_dir = running_federation.directory  # where the test expects the endpoint
    assert f"the state directory {running_federation.directory / 'server'} cannot be used" in refused_start(
        running_federation, code=2
    )


@pytest.mark.parametrize("name", [AUDIT_NAME, METRICS_NAME, DATABASE_NAME, SERVER_LOCK_NAME])
def test_a_file_that_cannot_be_written_is_named(name: str, running_federation: Federation) -> None:
    (running_federation.state_dir / name).mkdir(parents=True)
    assert "cannot be" in refused_start(running_federation)


@needs_mounts
@pytest.mark.parametrize("used_before", [False, True], ids=["new", "used"])
async def test_a_read_only_state_directory_is_refused(used_before: bool, running_federation: Federation) -> None:
    if used_before:
        server = await start_server(running_federation, *RUN)
        server.terminate()
        await exits(server, ExitCode.INTERRUPTED)
        (running_federation.state_dir / ENDPOINT_NAME).unlink()
    with read_only_disk(running_federation.state_dir) as disk:
        running_federation.before_server = disk.words
        assert "Read-only file system" in refused_start(running_federation)


def test_a_missing_state_directory_is_created(running_federation: Federation) -> None:
    running_federation.server(*RUN)
    assert (running_federation.state_dir / DATABASE_NAME).exists()


# --- a foreign or damaged database ---


@pytest.fixture
def used(running_federation: Federation) -> Federation:
    """A state directory with an unfinished run."""
    server = running_federation.server(*RUN)
    server.terminate()
    server.expect_exit(ExitCode.INTERRUPTED)
    return running_federation


def test_a_file_that_is_no_database_is_not_overwritten(used: Federation) -> None:
    database = used.state_dir / DATABASE_NAME
    database.write_bytes(b"not a database, " * 10_000)
    assert "file is not a database" in refused_start(used)
    assert database.read_bytes().startswith(b"not a database")


def test_the_database_of_another_program_is_not_changed(running_federation: Federation) -> None:
    running_federation.state_dir.mkdir()
    database = running_federation.state_dir / DATABASE_NAME
    with sqlite3.connect(database) as foreign:
        foreign.execute("CREATE TABLE accounts (owner TEXT)")
    foreign.close()
    before = database.read_bytes()
    assert "is not a run of this server" in refused_start(running_federation)
    assert database.read_bytes() == before


def test_a_damaged_database_is_refused(used: Federation) -> None:
    database = used.state_dir / DATABASE_NAME
    with database.open("r+b") as file:
        file.seek(16_384)
        file.write(b"\xaa" * 65_536)
    assert "malformed" in refused_start(used)


async def test_a_changed_configuration_is_refused_with_the_difference(running_federation: Federation) -> None:
    server = await start_server(running_federation, *RUN)
    connection = Connection(running_federation.address)
    await LightClient(0, connection).join()  # a run that nobody joined gives way to another
    await connection.close()
    server.terminate()
    await exits(server, ExitCode.INTERRUPTED)
    reason = await asyncio.to_thread(refused_start, running_federation, "--rounds", 7, "--alpha", 0.7, code=2)
    assert "rounds is 4 there and 7 here" in reason
    assert "data.alpha is 0.1 there and 0.7 here" in reason
    server = await start_server(running_federation, *RUN)
    assert server.process.poll() is None  # the stored one still works


def test_a_second_server_on_the_same_state_directory_is_refused(running_federation: Federation) -> None:
    first = running_federation.server(*RUN)
    (running_federation.state_dir / ENDPOINT_NAME).unlink()
    running_federation.port = 0
    assert "another server is using the state directory" in refused_start(running_federation)
    assert first.process.poll() is None


def test_a_second_server_on_the_same_port_is_refused(running_federation: Federation, tmp_path: Path) -> None:
    running_federation.server(*RUN)
    second = Federation(tmp_path)
    second.port = running_federation.port
    assert "cannot listen on" in refused_start(second, code=2)


# --- shutdown and restart ---


class SlowUpload:
    """An upload that sends its chunks when the test lets it."""

    def __init__(self, channel: RawChannel, client: LightClient, contribution: Encoded) -> None:
        self._parts = serialised(upload_parts(client.session, 0, contribution))
        self._resumed = asyncio.Event()
        self.call = channel.upload_of(self._sent())

    async def _sent(self) -> AsyncIterator[bytes]:
        yield self._parts[0]
        await self._resumed.wait()
        for part in self._parts[1:]:
            yield part

    def resume(self) -> None:
        self._resumed.set()


def uploads_begun(running: Federation) -> float | None:
    """Uploads that have reached the server: it refuses those that arrive after the signal."""
    return scrape(running.state_dir).value("feddbp_grpc_calls_started_total", method="Upload")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_a_server_that_shuts_down_accepts_an_upload_whole_or_not_at_all(
    number: signal.Signals, running_federation: Federation, undisturbed: Outcome
) -> None:
    server = await start_server(running_federation, *RUN, "--metrics-port", 0)
    connection, channel = Connection(running_federation.address), RawChannel(running_federation.address)
    clients = [LightClient(client_id, connection) for client_id in range(CLIENTS)]
    for client in clients:
        await client.join()
    finished, stalled = (SlowUpload(channel, client, client.encoded_upload(0)) for client in clients[:2])
    await asyncio.to_thread(wait_until, lambda: uploads_begun(running_federation) == 2, "the beginning of two uploads")
    server.process.send_signal(number)
    finished.resume()
    receipt = pb.UploadReceipt.FromString(await finished.call)
    with pytest.raises(grpc.aio.AioRpcError):
        await stalled.call
    await exits(server, ExitCode.INTERRUPTED)
    assert accepted(running_federation.state_dir) == {(0, 0, receipt.sha256.hex())}
    await channel.close()

    server = await start_server(running_federation, *RUN)
    again = await clients[0].upload(0, clients[0].encoded_upload(0))
    assert (again.sha256, again.duplicate) == (receipt.sha256, True)
    assert not (await clients[1].upload(0, clients[1].encoded_upload(0))).duplicate
    await connection.close()


async def test_clients_reconnect_to_a_restarted_server(running_federation: Federation, undisturbed: Outcome) -> None:
    async with stalled_run(running_federation) as (server, crowd, gate):
        for _ in range(3):
            server.terminate()
            await exits(server, ExitCode.INTERRUPTED)
            server = await start_server(running_federation, *RUN)
        gate.opened.set()
        await crowd.ended()
        await exits(server, 0)
    assert running_federation.outcome() == undisturbed


async def test_a_real_client_reconnects_to_a_restarted_server(running_federation: Federation) -> None:
    run = ("--clients", 2, "--rounds", 3, "--alpha", 1.0, "--local-epochs", 1, "--min-clients", 2)
    server = await start_server(running_federation, *run)
    client = await start_client(running_federation, "0")
    gate = Gate(at_round=1)
    async with Crowd(running_federation.address, [1], on_event={1: gate}) as crowd:
        await gate.reached.wait()
        server.terminate()
        await exits(server, ExitCode.INTERRUPTED)
        server = await start_server(running_federation, *run)
        gate.opened.set()
        await crowd.ended()
    for command in (client, server):
        await exits(command, 0)
    assert running_federation.summary()["outcome"] == "finished"
    assert "trying again" in client.log
    assert "Traceback" not in client.log + server.log


async def test_a_server_that_shuts_down_notifies_its_clients(running_federation: Federation) -> None:
    server = await start_server(running_federation, *RUN)
    connection = Connection(running_federation.address)
    client = LightClient(0, connection)
    await client.join()
    events = connection.follow(client.session)
    first = await anext(events)
    assert first.HasField("waiting")
    server.terminate()
    assert (await anext(events)).HasField("server_draining")
    with pytest.raises((StopAsyncIteration, ServerUnavailableError)):
        await anext(events)
    await exits(server, ExitCode.INTERRUPTED)
    await connection.close()
