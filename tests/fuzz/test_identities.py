"""What one identity can make the server hold, write or compute, however often it calls; others do not notice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from benchmarks.light_client import LightClient
from floods import NARROW
from light_runs import control_of, round_open, start_server
from processes import PATIENCE, Federation
from raw_calls import RawCall, RawChannel
from server_state import peak_resident_bytes, resident_bytes

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection
from feddbp_common.artifacts import AUDIT_NAME
from feddbp_common.config.features import supported_features
from feddbp_common.rpc.credentials import ClientCredentials
from feddbp_lab.control_client import call_control, get_status, watch_status

RUN = (
    *("--min-clients", 2, "--rounds", 2, "--round-deadline", 0),
    *("--dataset", "custom", "--classes", 5, "--feature-dim", 8, "--set", "k_top=2"),
)
UNKNOWN_FIELD = b"\xfa\x3e\xff\xff\x33"  # field 1007, of 851,967 bytes
FILLING = UNKNOWN_FIELD + bytes(851_967)


def join_request(run_id: str, client_id: int) -> pb.JoinRequest:
    return pb.JoinRequest(
        run_id=run_id,
        client_id=client_id,
        data=pb.DataSummary(label_counts=[1] * 5, test_samples=1),
        capabilities=pb.Capabilities(architecture="mini", device="cpu", software_version="0.2.0"),
        features=supported_features("feddbp"),
    )


# --- the status ---


@pytest.mark.parametrize("clients", [600, pytest.param(10_000, marks=[pytest.mark.full, pytest.mark.timeout(1800)])])
async def test_the_status_of_many_clients_is_complete_and_operators_can_act(
    clients: int, running_federation: Federation
) -> None:
    """Three of them fill what they may to its limits, and what they may not with unknown fields."""
    await start_server(running_federation, *RUN, "--clients", clients, "--min-clients", clients)
    address, channel = running_federation.address, RawChannel(running_federation.address)
    run_id = (await get_status(address)).run_id

    async def join(number: int) -> bytes:
        request = join_request(run_id, number)
        answer = await channel.ask(RawCall(method="Join", messages=[request.SerializeToString()]))
        assert answer.code is grpc.StatusCode.OK, answer
        return answer.message

    for first in range(0, clients, 100):
        answers = await asyncio.gather(*(join(number) for number in range(first, first + 100)))
    for number, answer in enumerate(answers[-3:]):
        session = pb.JoinResponse.FromString(answer).session
        names = [f"{number}{'名' * 250}{rule}" for rule in range(60)]
        metrics = pb.RoundMetrics(accuracies=[pb.Accuracy(rule=name) for name in names])
        report = pb.ReportRequest(session=session, metrics=metrics).SerializeToString()
        filled = await channel.ask(RawCall(method="Report", messages=[report]))
        assert filled.code is grpc.StatusCode.OK, filled
        refused = await channel.ask(RawCall(method="Report", messages=[report + FILLING]))
        assert refused.reason == "too_large" or refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    status = await get_status(address)
    assert [client.client_id for client in status.clients] == list(range(clients))
    assert not status.HasField("next_client")
    paused = await call_control(pb.PauseRequest(), address)
    assert (paused.phase, len(paused.clients)) == (pb.PHASE_PAUSED, clients)
    async with asyncio.timeout(PATIENCE):
        async for watched in watch_status(address, patience=timedelta(seconds=PATIENCE)):
            assert len(watched.clients) == clients
            break
    async with control_of(address) as control:  # as an earlier version asks
        first_page = await control.GetStatus(pb.GetStatusRequest())
    assert first_page.next_client == len(first_page.clients) == 500
    await channel.close()


async def test_unknown_fields_are_neither_stored_nor_shown(running_federation: Federation) -> None:
    await start_server(running_federation, *RUN, "--clients", 3)
    address, channel = running_federation.address, RawChannel(running_federation.address)
    request = join_request((await get_status(address)).run_id, 0)
    small = b"\xfa\x3e\x08" + b"stranger"
    capabilities = request.capabilities.SerializeToString() + small
    odd = request.SerializeToString() + b"\x2a" + bytes([len(capabilities)]) + capabilities + small
    answer = await channel.ask(RawCall(method="Join", messages=[odd]))
    assert answer.code is grpc.StatusCode.OK, answer
    (client,) = (await get_status(address)).clients
    assert b"stranger" not in client.SerializeToString()
    stored = b"".join(path.read_bytes() for path in running_federation.state_dir.iterdir() if path.is_file())
    assert b"stranger" not in stored
    await channel.close()


# --- memory ---


@pytest.mark.parametrize("joins", [200, pytest.param(800, marks=pytest.mark.full)])
async def test_many_large_joins_of_one_id_take_no_memory(joins: int, running_federation: Federation) -> None:
    server = await start_server(running_federation, *RUN, "--clients", 3, forked=False)
    address, channel = running_federation.address, RawChannel(running_federation.address)
    request = join_request((await get_status(address)).run_id, 0).SerializeToString() + FILLING
    before = resident_bytes(server.process.pid)
    calls = [channel.ask(RawCall(method="Join", messages=[request])) for _ in range(joins)]
    answers = Counter(answer.code for answer in await asyncio.gather(*calls))
    assert set(answers) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    grown = peak_resident_bytes(server.process.pid) - before
    print(f"\n{joins} joins of 0.85 MB at once: {grown / 1e6:.1f} MB more at most")
    assert grown < 64e6
    await LightClient(1, Connection(address)).join()
    await channel.close()


@asynccontextmanager
async def open_round(running: Federation, *options: object) -> AsyncIterator[tuple[Any, list[LightClient]]]:
    """A server in its first round, unforked so that its memory is its own, and its two clients."""
    server = await start_server(running, *RUN, "--clients", 2, *options, forked=False)
    connection = Connection(running.address)
    clients = [LightClient(number, connection) for number in range(2)]
    for client in clients:
        await client.join()
    await round_open(running.address, 0)
    try:
        yield server, clients
    finally:
        await connection.close()


async def test_unread_downloads_are_bounded_by_client_and_not_by_session(running_federation: Federation) -> None:
    """Joining again resets nothing, and the streams of superseded sessions end."""
    wide = ("--classes", 64, "--feature-dim", 8192)  # 2 MB of prototypes
    async with open_round(running_federation, *wide) as (server, clients):
        for client in clients:
            await client.upload(0, client.encoded_upload(0))
        await round_open(running_federation.address, 1)
        before = resident_bytes(server.process.pid)
        channels, first_parts = [], []
        for _ in range(10):
            channel = RawChannel(running_federation.address, options=NARROW)
            channels.append(channel)
            request = pb.DownloadRequest(session=clients[0].session, round=1).SerializeToString()
            for _ in range(4):
                call = channel.open_answers("Download", request)
                with suppress(grpc.aio.AioRpcError):  # too many downloads
                    async with asyncio.timeout(PATIENCE):
                        await call.read()
                    first_parts.append(call)
            await clients[0].join()
        grown = peak_resident_bytes(server.process.pid) - before
        print(f"\n40 unread downloads of 2 MB: {len(first_parts)} begun, {grown / 1e6:.1f} MB more at most")
        assert len(first_parts) == 4
        for channel in channels:
            await channel.close()
        received = await clients[1].download(1)
        assert received.payload.prototypes is not None


# --- the audit log ---


def audited(state_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (state_dir / AUDIT_NAME).read_text().splitlines()]


@pytest.mark.parametrize("flood", [2_000, pytest.param(20_000, marks=pytest.mark.full)])
async def test_a_flood_of_strangers_hides_nothing_that_a_known_caller_does(
    flood: int, running_federation: Federation, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("client-0 t0\nclient-1 t1\nclient-2 t2\noperator top-secret\n")
    token = tmp_path / "operator"
    token.write_text("top-secret\n")
    await start_server(running_federation, *RUN, "--clients", 3, "--token-file", tokens)
    channel = RawChannel(running_federation.address)
    operator = ClientCredentials(token_file=token)
    run_id = (await get_status(running_federation.address, operator)).run_id

    async def join(client_id: int, words: str) -> None:
        request = join_request(run_id, client_id).SerializeToString()
        metadata = (("authorization", words),) if words else ()
        answer = await channel.ask(RawCall(method="Join", messages=[request], metadata=metadata))
        assert answer.reason == "not_authorised"

    for _ in range(20):  # in the middle of a flood, with a stolen token
        await asyncio.gather(*(join(number % 3, "") for number in range(flood // 20)), join(1, "Bearer t2"))
    entries = [entry for entry in audited(running_federation.state_dir) if entry["what"] == "refused"]
    assert sum(entry.get("caller") == "client-2" for entry in entries) == 20
    assert sum("caller" not in entry for entry in entries) <= 200
    status = await get_status(running_federation.address, operator)
    assert status.refusals["not_authorised"] == flood + 20
    stolen = [incident for incident in status.incidents if "'client-1'" in incident.message]
    assert sum(incident.message.endswith("(20 times)") for incident in stolen) == 1
    await channel.close()


# --- time ---


async def test_one_client_that_downloads_without_end_delays_nobody(running_federation: Federation) -> None:
    """Personal states are computed beside the event loop, one at a time for each client, in turn."""
    large = ("--classes", 4000, "--feature-dim", 512)
    async with open_round(running_federation, *large) as (_, clients):
        for client in clients:
            await client.upload(0, client.encoded_upload(0))
        await round_open(running_federation.address, 1)
        running = True

        async def loop_downloads() -> int:
            rounds = 0
            while running:
                await clients[0].download(1)
                rounds += 1
            return rounds

        greedy = [asyncio.create_task(loop_downloads()) for _ in range(3)]
        answered = 0
        while not any(task.done() for task in greedy) and answered < 50:
            await get_status(running_federation.address)
            answered += 1
        received = await clients[1].download(1)
        running = False
        assert answered == 50
        assert received.payload.prototypes is not None
        assert sum(await asyncio.gather(*greedy)) >= 1
