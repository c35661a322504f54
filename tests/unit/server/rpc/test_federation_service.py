"""Whose call is refused: the id that every refusal of the Federation service carries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from coordinator_runs import Daemon, Server, join_all, join_request, parts, trained_upload

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.wire import Payload
from feddbp_server.app import server_options
from feddbp_server.rpc.auth import NoAuth
from feddbp_server.rpc.control import ControlService
from feddbp_server.rpc.federation import FederationService
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.run.admission.refusals import RefusedError

CONTEXT: Any = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:5")  # without authentication, no more of it is used
Call = Callable[[FederationService, Daemon], Awaitable[object]]


class RefusingAuth:
    """Authenticates no caller."""

    def check_client(self, context: object, client_id: int) -> None:
        raise RefusedError(pb.REFUSAL_REASON_NOT_AUTHORISED, f"not client {client_id}")

    def is_client(self, context: Any, client_id: int) -> bool:
        return False

    def check_operator(self, context: object) -> None: ...

    def check_party(self, context: object) -> None: ...

    def name_of(self, context: object) -> str | None:
        return ""


async def first_of(stream: AsyncIterator[object]) -> object:
    return await anext(stream)


async def refused_client(call: Awaitable[object]) -> int | None:
    with pytest.raises(RefusedError) as refusal:
        await call
    return refusal.value.client_id


CALLS: dict[str, Call] = {
    "Follow": lambda service, daemon: first_of(service.Follow(pb.FollowRequest(session=daemon.secret), CONTEXT)),
    "Download": lambda service, daemon: first_of(
        service.Download(pb.DownloadRequest(session=daemon.secret, round=0), CONTEXT)
    ),
    "Upload": lambda service, daemon: service.Upload(
        parts(daemon.secret, 0, trained_upload(daemon.client_id, 0, Payload())), CONTEXT
    ),
    "Report": lambda service, daemon: service.Report(pb.ReportRequest(session=daemon.secret), CONTEXT),
    "Leave": lambda service, daemon: service.Leave(pb.LeaveRequest(session=daemon.secret), CONTEXT),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_the_refusal_of_an_unauthenticated_caller_names_the_client_it_acts_as(call: Call, server: Server) -> None:
    daemon = (await join_all(server))[2]
    service = FederationService(server.coordinator, identity=RefusingAuth(), uploads=server.uploads)
    assert await refused_client(call(service, daemon)) == 2


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_the_refusal_of_an_unknown_session_names_no_client(call: Call, server: Server) -> None:
    daemon = await Daemon.join(server, 2)
    server.engine.sessions.leave(daemon.session)
    assert await refused_client(call(server.federation, daemon)) is None


async def test_the_refusal_of_a_join_names_the_client_that_asked(server: Server) -> None:
    await Daemon.join(server, 1)
    request = join_request(server.coordinator, 1)
    assert await refused_client(server.federation.Join(request, CONTEXT)) == 1


async def test_the_refusal_of_a_join_under_an_id_outside_of_the_run_names_no_client(server: Server) -> None:
    request = join_request(server.coordinator, 1)
    request.client_id = 4_000_000_000
    assert await refused_client(server.federation.Join(request, CONTEXT)) is None


async def test_a_stream_that_ends_because_its_session_was_superseded_names_its_client(server: Server) -> None:
    daemon = await Daemon.join(server, 1)
    events = server.federation.Follow(pb.FollowRequest(session=daemon.secret), CONTEXT)
    await anext(events)
    await Daemon.join(server, 1, previous=daemon.secret)
    assert await refused_client(first_of(events)) == 1


async def test_a_stream_that_is_closed_has_ended_for_the_coordinator_too(server: Server) -> None:
    """Not only once the garbage collector has found it: a server that stops waits for what follows from it."""
    daemon = (await join_all(server))[1]
    events: Any = server.federation.Follow(pb.FollowRequest(session=daemon.secret), CONTEXT)
    await anext(events)
    await events.aclose()
    assert daemon.session.streams == 0
    parts_sent: Any = server.federation.Download(pb.DownloadRequest(session=daemon.secret, round=0), CONTEXT)
    await anext(parts_sent)
    await parts_sent.aclose()
    assert not server.coordinator._downloads._open


async def test_a_watch_that_is_closed_is_no_longer_counted(server: Server) -> None:
    control = ControlService(server.coordinator, identity=NoAuth(), limits=DEFAULT_LIMITS, events=server.events)
    pages: Any = control.WatchRun(pb.WatchRunRequest(), CONTEXT)
    await anext(pages)
    await pages.aclose()
    assert server.engine.history.watchers == 0


async def test_a_report_without_content_names_its_client(server: Server) -> None:
    daemon = await Daemon.join(server, 1)
    report = server.federation.Report(pb.ReportRequest(session=daemon.secret), CONTEXT)
    assert await refused_client(report) == 1


def test_every_client_may_call_at_once() -> None:
    for clients, pending in ((4, 1000), (10_000, 40_000)):
        options = dict(server_options(timedelta(seconds=30), DEFAULT_LIMITS, classes=10, clients=clients))
        assert options["grpc.server.max_pending_requests"] == pending
        assert options["grpc.server.max_pending_requests_hard_limit"] == 2 * pending
