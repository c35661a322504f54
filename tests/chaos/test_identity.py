"""Authentication and authorisation: certificates, tokens, sessions and handshakes of legitimate and hostile callers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from benchmarks.light_client import LightClient
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from light_runs import LIGHT_RUN, Crowd, control_of, exits, federation_of, is_killed, start_server, status_when
from processes import Federation, GaveUpError, Outcome, federation

from feddbp.v1 import federation_pb2 as pb
from feddbp.v1 import federation_pb2_grpc as pb_grpc
from feddbp_client.daemon.connection import Connection, ServerUnavailableError
from feddbp_client.daemon.transfers import upload_parts
from feddbp_common.artifacts import TOKENS_NAME
from feddbp_common.errors import ConfigurationError
from feddbp_common.rpc.credentials import (
    OPERATOR,
    PROBE,
    SERVER,
    CertificateDirectory,
    ClientCredentials,
    client_subject,
)
from feddbp_common.rpc.failures import refusal_in
from feddbp_lab.pki.certificates import Authority, write_secret

PROBED = ("--clients", 3, "--min-clients", 3, "--feature-dim", 64)
"""A run that waits for a third client, so that one server can serve many tests."""
SECONDS = 30.0


async def error_of(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value


async def refused_with(call: Awaitable[object], code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    error = await error_of(call)
    assert error.code() is code, error.details()
    return error


async def refused_for(call: Awaitable[object], code: grpc.StatusCode, reason: pb.RefusalReason.ValueType) -> str:
    """The message of a refusal with this status and reason."""
    error = await refused_with(call, code)
    refusal = refusal_in(error)
    assert refusal is not None
    assert refusal.reason == reason
    return error.details() or ""


async def not_authorised(call: Awaitable[object]) -> str:
    return await refused_for(call, grpc.StatusCode.PERMISSION_DENIED, pb.REFUSAL_REASON_NOT_AUTHORISED)


async def stale(call: Awaitable[object]) -> str:
    return await refused_for(call, grpc.StatusCode.UNAUTHENTICATED, pb.REFUSAL_REASON_STALE_SESSION)


class Caller:
    """A party that makes calls, with any subject and credentials."""

    def __init__(self, stub: pb_grpc.FederationAsyncStub, access: ClientCredentials) -> None:
        self._stub = stub
        self._options: dict[str, Any] = {"timeout": SECONDS, "metadata": access.metadata()}

    async def get_run(self) -> pb.GetRunResponse:
        return await self._stub.GetRun(pb.GetRunRequest(), **self._options)

    async def join(self, client_id: int, *, run: pb.GetRunResponse, previous_session: str = "") -> pb.JoinResponse:
        request = pb.JoinRequest(
            run_id=run.run_id,
            client_id=client_id,
            previous_session=previous_session,
            data=pb.DataSummary(label_counts=[1] * run.config.data.classes, test_samples=1),
        )
        return await self._stub.Join(request, **self._options)

    async def follow(self, session: str) -> pb.RoundEvent:
        call = self._stub.Follow(pb.FollowRequest(session=session), **self._options)
        async for event in call:
            call.cancel()
            return event
        raise AssertionError("the stream ended without an event")

    async def download(self, session: str) -> None:
        async for _ in self._stub.Download(pb.DownloadRequest(session=session), **self._options):
            pass

    async def upload(self, session: str) -> None:
        header = pb.UploadPart(header=pb.UploadHeader(session=session))
        await self._stub.Upload(iter([header]), **self._options)

    async def report(self, session: str) -> None:
        request = pb.ReportRequest(session=session, failure=pb.Failure(cause="none"))
        await self._stub.Report(request, **self._options)

    async def leave(self, session: str) -> None:
        await self._stub.Leave(pb.LeaveRequest(session=session), **self._options)


@asynccontextmanager
async def caller(
    address: str,
    subject: str = client_subject(0),
    access: ClientCredentials = ClientCredentials(),  # noqa: B008 - frozen
) -> AsyncIterator[Caller]:
    async with federation_of(address, subject, access) as stub:
        yield Caller(stub, access)


def copied(certs: Path, directory: Path) -> Path:
    shutil.copytree(certs, directory)
    return directory


# --- certificates ---


@pytest.fixture(scope="module")
def secured(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server that requires certificates."""
    with federation(tmp_path_factory.mktemp("secured")) as running:
        running.server("--certs", certs, *PROBED)
        yield running


async def handshake_fails(address: str, subject: str, access: ClientCredentials) -> str:
    async with caller(address, subject, access) as party:
        error = await refused_with(party.get_run(), grpc.StatusCode.UNAVAILABLE)
    return error.details() or ""


@pytest.mark.parametrize("subject", [client_subject(1), OPERATOR])
async def test_a_certificate_of_another_party_does_not_authorise_an_id(
    subject: str, secured: Federation, access: ClientCredentials
) -> None:
    async with caller(secured.address, subject, access) as impostor:
        message = await not_authorised(impostor.join(0, run=await impostor.get_run()))
    assert repr(subject) in message
    assert "may not act as 'client-0'" in message


async def test_a_certificate_of_an_unknown_authority_does_not_pass_the_handshake(
    secured: Federation, certs: Path, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    Authority.create(foreign).issue_party(client_subject(0))
    shutil.copy(certs / "ca.pem", foreign / "ca.pem")  # it trusts the server, but not the other way round
    await handshake_fails(secured.address, client_subject(0), ClientCredentials(certs=foreign))


async def test_a_server_of_an_unknown_authority_does_not_pass_the_handshake(
    secured: Federation, certs: Path, tmp_path: Path
) -> None:
    Authority.create(tmp_path / "other")
    mistrusting = copied(certs, tmp_path / "mine")
    shutil.copy(tmp_path / "other" / "ca.pem", mistrusting / "ca.pem")
    await handshake_fails(secured.address, client_subject(0), ClientCredentials(certs=mistrusting))


async def test_a_server_certified_for_another_host_does_not_pass_the_handshake(
    running_federation: Federation, certs: Path, access: ClientCredentials, tmp_path: Path
) -> None:
    elsewhere = copied(certs, tmp_path / "elsewhere")
    Authority.load(elsewhere).issue_server(["server.example"])
    await start_server(running_federation, "--certs", elsewhere, *PROBED)
    message = await handshake_fails(running_federation.address, client_subject(0), access)
    assert "Hostname Verification" in message


async def test_a_server_certificate_is_no_client_certificate(secured: Federation, access: ClientCredentials) -> None:
    await handshake_fails(secured.address, SERVER, access)


async def test_the_probe_certificate_is_valid_for_the_health_service_only(
    secured: Federation, certs: Path, tmp_path: Path
) -> None:
    probing = copied(certs, tmp_path / "probing")
    Authority.load(probing).issue_party(PROBE)
    access = ClientCredentials(certs=probing)
    async with access.channel(secured.address, PROBE) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # its type stubs leave the methods out
        healthy = await stub.Check(HealthCheckRequest(), timeout=SECONDS)
        assert healthy.status == HealthCheckResponse.SERVING
        await not_authorised(pb_grpc.ControlStub(channel).GetStatus(pb.GetStatusRequest(), timeout=SECONDS))
    async with caller(secured.address, PROBE, access) as party:
        message = await not_authorised(party.get_run())
        assert message == "the certificate of 'probe' names neither a client nor the operator"
        await not_authorised(party.join(0, run=pb.GetRunResponse()))


@pytest.mark.parametrize("subject", [client_subject(0), client_subject(2), OPERATOR])
async def test_clients_and_operator_may_read_the_run(
    subject: str, secured: Federation, access: ClientCredentials
) -> None:
    async with caller(secured.address, subject, access) as party:
        assert (await party.get_run()).run_id


async def test_tls_without_a_certificate_does_not_pass_the_handshake(
    secured: Federation, certs: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("whatever\n")
    await handshake_fails(
        secured.address, client_subject(0), ClientCredentials(certs=certs, token_file=tmp_path / "token")
    )


async def test_plaintext_to_a_tls_port_does_not_pass_the_handshake(secured: Federation) -> None:
    await handshake_fails(secured.address, client_subject(0), ClientCredentials())


async def test_tls_to_a_plaintext_port_does_not_pass_the_handshake(
    running_federation: Federation, access: ClientCredentials
) -> None:
    await start_server(running_federation, *PROBED)
    await handshake_fails(running_federation.address, client_subject(0), access)


async def test_a_closed_handshake_is_explained_to_the_client(secured: Federation, certs: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    Authority.create(foreign).issue_party(client_subject(0))
    shutil.copy(certs / "ca.pem", foreign / "ca.pem")
    connection = Connection(secured.address, credentials=ClientCredentials(certs=foreign))
    with pytest.raises(ServerUnavailableError, match="does not accept our certificate"):
        await connection.get_run()
    await connection.close()


# --- certificates that have expired ---


@pytest.fixture
def expired(certs: Path, tmp_path: Path) -> Path:
    """Expired certificates of the trusted authority."""
    directory = copied(certs, tmp_path / "expired")
    authority = Authority.load(directory)
    authority.issue_party(client_subject(0), lifetime=-timedelta(hours=1))
    authority.issue_server(["127.0.0.1"], lifetime=-timedelta(hours=1))
    return directory


def pair(certs: Path, subject: str) -> tuple[bytes, bytes]:
    """A key and its certificate from their files, expired or not."""
    return (certs / f"{subject}.key").read_bytes(), (certs / f"{subject}.pem").read_bytes()


async def test_an_expired_certificate_does_not_pass_the_handshake(
    secured: Federation, certs: Path, expired: Path
) -> None:
    credentials = grpc.ssl_channel_credentials((certs / "ca.pem").read_bytes(), *pair(expired, client_subject(0)))
    async with grpc.aio.secure_channel(secured.address, credentials) as channel:
        party = Caller(pb_grpc.FederationStub(channel), ClientCredentials())
        await refused_with(party.get_run(), grpc.StatusCode.UNAVAILABLE)


async def test_a_server_with_an_expired_certificate_is_refused_by_clients(
    expired: Path, access: ClientCredentials
) -> None:
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair(expired, SERVER)]))
    await server.start()
    connection = Connection(f"127.0.0.1:{port}", credentials=access)
    with pytest.raises(ServerUnavailableError, match="certificate has expired"):
        await connection.get_run()
    await connection.close()
    await server.stop(None)


def test_neither_side_starts_with_an_expired_certificate(expired: Path, running_federation: Federation) -> None:
    with pytest.raises(GaveUpError, match=r"server.pem expired on .* --replace` makes a new one"):
        running_federation.server("--certs", expired, *PROBED)
    with pytest.raises(ConfigurationError, match=r"client-0.pem expired on .* --replace` makes a new one"):
        CertificateDirectory(expired).channel_credentials(client_subject(0))


# --- tokens ---


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's token file, and a token for each party."""
    directory = tmp_path_factory.mktemp("tokens")
    command_line(directory, "certs", "tokens", directory, "--ids", "0-2")
    return directory


@pytest.fixture(scope="module", params=[True, False], ids=["over TLS", "on loopback"])
def token_server(
    request: pytest.FixtureRequest, certs: Path, tokens: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Federation, Path | None]]:
    """A server that requires tokens, and the directory of its certificate if it has one."""
    with federation(tmp_path_factory.mktemp("tokens-server")) as running:
        secured = ("--certs", certs) if request.param else ()
        running.server("--token-file", tokens / TOKENS_NAME, *secured, *PROBED)
        yield running, certs if request.param else None


TokenServer = tuple[Federation, Path | None]


async def test_a_token_authorises_its_own_id_only(token_server: TokenServer, tokens: Path) -> None:
    running, certs = token_server
    access = ClientCredentials(certs=certs, token_file=tokens / "client-1.token")
    async with caller(running.address, access=access) as party:
        run = await party.get_run()
        assert await not_authorised(party.join(0, run=run)) == "the token is not that of 'client-0'"
        joined = await party.join(1, run=run)
        await party.leave(joined.session)


async def test_a_session_is_refused_under_another_token(token_server: TokenServer, tokens: Path) -> None:
    running, certs = token_server
    own, other = (ClientCredentials(certs=certs, token_file=tokens / f"client-{number}.token") for number in (0, 1))
    async with caller(running.address, access=own) as owner, caller(running.address, access=other) as thief:
        joined = await owner.join(0, run=await owner.get_run())
        await not_authorised(thief.report(joined.session))
        await owner.leave(joined.session)


@pytest.mark.parametrize("token", [None, "guessed"], ids=["none", "a guessed one"])
async def test_calls_without_a_valid_token_are_refused(
    token: str | None, token_server: TokenServer, tmp_path: Path
) -> None:
    running, certs = token_server
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    async with federation_of(running.address, access=ClientCredentials(certs=certs, token_file=file)) as stub:
        party = Caller(stub, ClientCredentials(token_file=file) if token else ClientCredentials())
        await not_authorised(party.get_run())
        await not_authorised(party.join(0, run=pb.GetRunResponse()))
        await stale(party.follow("no session"))


# --- operators ---


@pytest.mark.parametrize("call", ["GetStatus", "Pause", "Resume", "Stop"])
async def test_clients_are_refused_by_the_control_service(
    call: str, token_server: TokenServer, secured: Federation, tokens: Path, access: ClientCredentials
) -> None:
    running, certs = token_server
    request = {"GetStatus": pb.GetStatusRequest, "Pause": pb.PauseRequest, "Resume": pb.ResumeRequest}.get(
        call, pb.StopRequest
    )()
    by_token = ClientCredentials(certs=certs, token_file=tokens / "client-0.token")
    for address, subject, credentials in (
        (secured.address, client_subject(0), access),
        (running.address, client_subject(0), by_token),
    ):
        async with credentials.channel(address, subject) as channel:
            method = getattr(pb_grpc.ControlStub(channel), call)
            message = await not_authorised(method(request, timeout=SECONDS, metadata=credentials.metadata()))
        assert OPERATOR in message


async def test_an_operator_may_use_the_control_service(
    token_server: TokenServer, secured: Federation, tokens: Path, access: ClientCredentials
) -> None:
    running, certs = token_server
    by_token = ClientCredentials(certs=certs, token_file=tokens / f"{OPERATOR}.token")
    for address, credentials in ((secured.address, access), (running.address, by_token)):
        async with control_of(address, credentials) as control:
            status = await control.GetStatus(pb.GetStatusRequest(), metadata=credentials.metadata())
        assert status.phase == pb.PHASE_WAITING


# --- sessions ---


async def test_a_stolen_session_is_refused_under_another_certificate(
    secured: Federation, access: ClientCredentials
) -> None:
    async with (
        caller(secured.address, client_subject(0), access) as owner,
        caller(secured.address, client_subject(1), access) as thief,
    ):
        run = await owner.get_run()
        stolen = (await owner.join(0, run=run)).session
        for theft in (thief.follow, thief.download, thief.upload, thief.report, thief.leave):
            await not_authorised(theft(stolen))
        await not_authorised(thief.join(0, run=run, previous_session=stolen))
        assert (await owner.follow(stolen)).HasField("waiting")
        await owner.leave(stolen)


async def test_a_second_live_daemon_is_refused_and_the_first_continues(
    secured: Federation, access: ClientCredentials
) -> None:
    connection = Connection(secured.address, client_id=2, credentials=access)
    first = LightClient(2, connection)
    async with caller(secured.address, client_subject(2), access) as second:
        staying = asyncio.create_task(first.run_reconnecting())
        await status_when(secured.address, lambda status: is_idle(2, status), "the join of the first daemon", access)
        message = await refused_for(
            second.join(2, run=await second.get_run()),
            grpc.StatusCode.ALREADY_EXISTS,
            pb.REFUSAL_REASON_ID_IN_USE,
        )
        assert "client 2 is in use by another daemon" in message
        assert not staying.done()
        staying.cancel()
        await second.leave(first.session)
    await connection.close()


def is_idle(client_id: int, status: pb.RunStatus) -> bool:
    return any(
        client.client_id == client_id and client.activity == pb.CLIENT_ACTIVITY_IDLE for client in status.clients
    )


class Zombie:
    """A daemon whose session is superseded in the middle of its upload."""

    def __init__(self, stub: pb_grpc.FederationAsyncStub, client: LightClient) -> None:
        self.client = client
        self._stub = stub
        self._resumed = asyncio.Event()
        self._upload: asyncio.Task[pb.UploadReceipt] | None = None

    async def begin_upload(self) -> None:
        """Sends the header and the first chunk; returns once the server is waiting for more."""
        parts = list(
            upload_parts(self.client.session, 0, self.client.encoded_upload(1))
        )  # the successor's is of round 0

        async def stalled() -> AsyncIterator[pb.UploadPart]:
            for part in parts[:2]:
                yield part
            await self._resumed.wait()
            for part in parts[2:]:
                yield part

        async with asyncio.timeout(SECONDS):
            while not await self._is_second_upload(parts[0]):
                if self._upload is None or self._upload.done():  # refused, if the probe above was still being handled
                    self._upload = asyncio.ensure_future(self._stub.Upload(stalled(), timeout=SECONDS))

    async def _is_second_upload(self, header: pb.UploadPart) -> bool:
        """Whether an upload without a body is refused because another is in progress, and not for being empty."""
        error = await error_of(self._stub.Upload(iter([header]), timeout=SECONDS))
        return "is uploading already" in (error.details() or "")

    async def finish_upload(self) -> pb.UploadReceipt:
        assert self._upload is not None
        self._resumed.set()
        return await self._upload


@asynccontextmanager
async def superseded(running: Federation) -> AsyncIterator[tuple[Zombie, LightClient]]:
    """A zombie inside an upload to round 0, and the daemon that superseded it; the other two clients have uploaded."""
    connection = Connection(running.address)
    async with federation_of(running.address) as stub:
        zombie = Zombie(stub, LightClient(0, connection))
        await zombie.client.join()
        await status_when(running.address, lambda status: status.missing == [0], "the others' uploads")
        await zombie.begin_upload()
        successor = LightClient(0, connection)
        successor.session = zombie.client.session
        await successor.join()
        yield zombie, successor
    await connection.close()


async def test_the_upload_of_a_zombie_is_refused_and_changes_nothing(
    running_federation: Federation, undisturbed_light: Outcome
) -> None:
    server = await start_server(running_federation, *LIGHT_RUN)
    async with (
        Crowd(running_federation.address, [1, 2]) as others,
        superseded(running_federation) as (zombie, successor),
    ):
        assert "superseded" in await stale(zombie.finish_upload())
        status = await status_when(running_federation.address, lambda status: True, "a status")
        assert status.round == 0
        assert status.missing == [0]
        await asyncio.gather(successor.run_reconnecting(), others.ended())
    await exits(server, 0)
    assert running_federation.outcome() == undisturbed_light


async def test_a_zombie_that_stalls_inside_its_upload_blocks_no_other_upload(
    running_federation: Federation, undisturbed_light: Outcome
) -> None:
    server = await start_server(running_federation, *LIGHT_RUN)
    async with (
        Crowd(running_federation.address, [1, 2]) as others,
        superseded(running_federation) as (zombie, successor),
    ):
        await asyncio.gather(successor.run_reconnecting(), others.ended())
        await error_of(zombie.finish_upload())
    await exits(server, 0)
    assert running_federation.outcome() == undisturbed_light
    assert "client 0 is uploading already" not in server.log.partition("(session 2)")[2]


# --- secrets on disk, and the commands that make them ---


def command_line(directory: Path, *arguments: object) -> str:
    """Runs `feddbp` in a directory; returns its standard output alone."""
    with federation(directory) as running:
        command = running.start("feddbp_lab.cli", *arguments, name="feddbp", separate_stdout=True)
        command.expect_exit(0)
        assert command.stdout_path is not None
        return command.stdout_path.read_text()


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_and_tokens_are_readable_by_their_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        command_line(tmp_path, "certs", "init", tmp_path)
        command_line(tmp_path, "certs", "client", tmp_path, "--id", 3)
        command_line(tmp_path, "certs", "tokens", tmp_path, "--ids", "0-1")
        exposed = tmp_path / "exposed.key"
        exposed.touch(mode=0o666)
        write_secret(exposed, b"secret")
    finally:
        os.umask(before)
    secrets = [path for path in tmp_path.iterdir() if path.suffix in (".key", ".token", ".txt")]
    assert {path.name for path in secrets} == {
        *("ca.key", "client-3.key", "exposed.key", TOKENS_NAME),
        *("client-0.token", "client-1.token", "operator.token"),
    }
    assert {permissions(path) for path in secrets} == {0o600}


async def test_a_federation_with_certificates_of_the_command_line_survives_a_restart(
    running_federation: Federation, undisturbed_light: Outcome, tmp_path: Path
) -> None:
    """The commands of the manual; under TLS, clients reconnect to the restarted server."""
    certs = tmp_path / "certs"
    command_line(tmp_path, "certs", "init", certs)
    command_line(tmp_path, "certs", "server", certs, "--host", "127.0.0.1")
    command_line(tmp_path, "certs", "client", certs, "--ids", "0-2")
    command_line(tmp_path, "certs", "operator", certs)
    access = ClientCredentials(certs=certs)
    doomed = await start_server(running_federation, "--certs", certs, *LIGHT_RUN, fault="server.upload.committed@4")
    # before clients join: with them the run may be over before the command has started
    shown = await asyncio.to_thread(
        command_line, tmp_path, "status", "--server", running_federation.address, "--certs", certs, "--json"
    )
    async with Crowd(running_federation.address, range(3), access=access) as crowd:
        await is_killed(doomed)
        server = await start_server(running_federation, "--certs", certs, *LIGHT_RUN)
        await crowd.ended()
    await exits(server, 0)
    assert json.loads(shown)["round"] == 0
    assert running_federation.outcome() == undisturbed_light
