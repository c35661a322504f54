"""Malformed calls to a live server: it stays up, changes nothing, gives a reason, and the run ends as without them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fuzzed_server import CLIENTS, RUN, FuzzedServer, fuzzed_server, send_malformed_calls
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invalid_calls import invalid_calls
from light_runs import control_of, exits, start_server, undisturbed_outcome
from malformed_calls import OpenRound, skips_round, violation
from message_strategies import any_message
from processes import Federation, Outcome, federation
from raw_calls import METHODS, RawAnswer, RawCall, RawChannel, serialised
from server_state import resident_bytes

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import ExitCode
from feddbp_common.rpc.credentials import ClientCredentials

MEMORY_BOUND = 128e6
"""Resident bytes of the server, the interpreter and its libraries included."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return undisturbed_outcome(tmp_path_factory.mktemp("undisturbed"), *RUN, clients=CLIENTS)


@dataclass(frozen=True)
class SharedServer:
    """A server for tests that are not coroutines."""

    runner: asyncio.Runner
    target: FuzzedServer
    channel: RawChannel

    def ask(self, call: RawCall) -> RawAnswer:
        return self.runner.run(self.channel.ask(call))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    """One server for all tests that must not change its state, which is compared at the end."""
    with federation(tmp_path_factory.mktemp("shared")) as running, asyncio.Runner() as runner:
        context = fuzzed_server(running)
        target = runner.run(context.__aenter__())
        channel = RawChannel(running.address)
        before = runner.run(target.digest())
        yield SharedServer(runner, target, channel)
        assert runner.run(target.digest()) == before
        assert resident_bytes(target.pid) < MEMORY_BOUND
        runner.run(target.finish())
        runner.run(channel.close())
        runner.run(context.__aexit__(None, None, None))


# --- all at once ---


@pytest.mark.parametrize(
    "calls", [500, pytest.param(100_000, marks=[pytest.mark.full, pytest.mark.timeout(3600)])], ids=str
)
async def test_malformed_calls_change_nothing_and_the_run_ends_with_the_same_bits(
    calls: int, running_federation: Federation, undisturbed: Outcome
) -> None:
    async with fuzzed_server(running_federation) as target:
        before = await target.digest()
        tally = await send_malformed_calls(target, calls=calls, seed=20_251, show=calls > 10_000)
        print(f"\n{tally.table()}")
        assert tally.violations == []
        assert tally.calls >= calls
        assert target.server.process.poll() is None
        assert await target.digest() == before
        assert max(tally.memory) < MEMORY_BOUND
        assert "Traceback" not in target.server.log
        assert sum((await target.refusals()).values()) >= 0.8 * calls
        await target.finish()
    assert running_federation.outcome() == undisturbed


# --- one by one ---


def test_every_invalid_call_is_refused_with_its_reason_and_field(shared: SharedServer) -> None:
    for call, reason, field in invalid_calls(shared.target.open_round):
        answer = shared.ask(call)
        assert answer.refusal is not None, f"{call.method}, {call.what}: {answer}"
        refused = (pb.RefusalReason.Name(answer.refusal.reason), answer.refusal.field)
        assert refused == (pb.RefusalReason.Name(reason), field), f"{call.method}, {call.what}: {answer.details}"
        assert violation(call, answer) is None


@pytest.mark.parametrize("examples", [40, pytest.param(2_000, marks=pytest.mark.full)], ids=str)
@pytest.mark.parametrize("method", ["Join", "Report", "Download", "Follow", "Leave", "Upload", "AdvanceSum"])
def test_any_message_is_answered_within_the_protocol(shared: SharedServer, method: str, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(messages=_messages(method, shared.target.open_round))
    def holds(messages: list[Any]) -> None:
        call = RawCall(method=method, messages=serialised(messages))
        answer = shared.ask(call)
        assert violation(call, answer) is None

    holds()


def _messages(method: str, open_round: OpenRound) -> st.SearchStrategy[list[Any]]:
    """Messages with the valid session or any other; a Leave never has the valid one, and no Report skips the round."""
    session = open_round.sessions[0]
    sessions = st.text(max_size=20) if method == "Leave" else st.just(session) | st.text(max_size=20)
    if method == "Join":
        return st.lists(any_message(pb.JoinRequest), min_size=1, max_size=1)
    if method == "Upload":
        header = any_message(pb.UploadHeader, session=sessions, round=st.integers(0, 2))
        return st.lists(any_message(pb.UploadPart, header=header), max_size=4)
    kind = getattr(pb, f"{method}Request")
    message = any_message(kind, session=sessions, round=st.integers(0, 2))
    if method == "Report":
        message = message.filter(lambda request: not skips_round(request, open_round))
    return st.lists(message, min_size=1, max_size=1)


# --- below and beside the protocol ---

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_NOT_OURS = (
    b"",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    bytes.fromhex("16030100c8010000c40303") + bytes(200),  # the beginning of a TLS handshake
    _PREFACE,
    _PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 2_000,  # settings, again and again
    _PREFACE + b"\xff\xff\xff\x01\x04\x00\x00\x00\x01",  # headers of sixteen megabytes
    _PREFACE + b"\x00\x40\x00\x01\x00\x00\x00\x00\x01" + bytes(16_384) + b"\x00\x40\x00\x09\x00\x00\x00\x00\x01",
)


@pytest.mark.parametrize("connections", [60, pytest.param(3_000, marks=pytest.mark.full)], ids=str)
def test_connections_of_other_protocols_change_nothing(shared: SharedServer, connections: int) -> None:
    random = Random(7)
    port = shared.target.federation.port
    for number in range(connections):
        noise = random.randbytes(random.randint(1, 4_000))
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(random.choice((*_NOT_OURS, noise, _PREFACE + noise)))
            if number % 2:  # half of them wait for an answer for a moment
                connection.settimeout(0.01)
                connection.recv(1_000)
    status = shared.ask(RawCall(method="GetStatus", messages=[b""]))
    assert pb.RunStatus.FromString(status.message).round == shared.target.open_round.round


@pytest.mark.parametrize("calls", [300, pytest.param(20_000, marks=pytest.mark.full)], ids=str)
def test_calls_cancelled_at_once_leave_nothing_behind(shared: SharedServer, calls: int) -> None:
    async def cancel_many() -> None:
        channel = RawChannel(shared.target.federation.address)
        open_round = shared.target.open_round
        for number in range(calls):
            client = number % CLIENTS
            header = pb.UploadHeader(
                session=open_round.sessions[client], round=1, manifest=open_round.contributions[client].manifest
            )
            call = channel.open_upload(pb.UploadPart(header=header).SerializeToString())
            if number % 3 == 0:
                await asyncio.sleep(0)
            call.cancel()
        await channel.close()

    shared.runner.run(cancel_many())
    follow = pb.FollowRequest(session=shared.target.open_round.sessions[0]).SerializeToString()
    for _ in range(20):  # a cancelled stream must not count against the limit
        answer = shared.ask(RawCall(method="Follow", messages=[follow]))
        assert violation(RawCall(method="Follow", messages=[follow]), answer) is None
    assert resident_bytes(shared.target.pid) < MEMORY_BOUND


# --- without credentials ---


async def test_calls_without_a_valid_token_are_refused(running_federation: Federation, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"client-{number} t{number}\n" for number in range(CLIENTS)) + "operator top-secret\n")
    token = tmp_path / "operator"
    token.write_text("top-secret\n")
    server = await start_server(running_federation, *RUN, "--token-file", tokens)
    channel = RawChannel(running_federation.address)
    run_id = (await _operator_asks(running_federation, token)).run_id
    join = pb.JoinRequest(run_id=run_id, client_id=3, data=pb.DataSummary(label_counts=[1] * 5))
    for method in METHODS:
        if method in ("Follow", "Download", "Upload", "AdvanceSum", "Report", "Leave"):
            continue  # they need a session, and so a join
        for words in (
            "",
            "Bearer ",
            "Bearer t4",
            "Bearer TOP-SECRET",
            "Basic dG9wLXNlY3JldA==",
            "Bearer " + "x" * 4_000,
        ):
            request = join.SerializeToString() if method == "Join" else b""
            call = RawCall(method=method, messages=[request], metadata=(("authorization", words),) if words else ())
            if method == "GetRun" and words == "Bearer t4":
                continue  # every party of the federation may read the run
            answer = await channel.ask(call)
            assert answer.reason == "not_authorised", f"{method} with {words[:20]!r}: {answer}"
            assert violation(call, answer) is None
    status = await _operator_asks(running_federation, token)
    assert (status.phase, list(status.clients)) == (pb.PHASE_WAITING, [])
    assert status.refusals["not_authorised"] >= 40
    await channel.close()
    server.terminate()
    await exits(server, ExitCode.INTERRUPTED)


async def _operator_asks(running: Federation, token: Path) -> pb.RunStatus:
    access = ClientCredentials(token_file=token)
    async with control_of(running.address, access) as control:
        status: pb.RunStatus = await control.GetStatus(pb.GetStatusRequest(), metadata=access.metadata())
    return status
