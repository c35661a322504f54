"""The audit log and the counters of a server process: joins, leaves, failures, uploads, refusals and their reasons."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.light_client import LightClient
from light_runs import Crowd, control_of, exits, start_server
from processes import Federation
from raw_calls import RawCall, RawChannel

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection
from feddbp_common.artifacts import AUDIT_NAME
from feddbp_common.errors import ExitCode

RUN = (
    "--clients",
    3,
    "--min-clients",
    2,
    "--join-window",
    0,
    "--rounds",
    2,
    "--round-deadline",
    0,
    "--feature-dim",
    16,
    "--set",
    "k_top=2",
)


def audit(running: Federation, what: str | None = None) -> list[dict[str, Any]]:
    lines = (running.state_dir / AUDIT_NAME).read_text().splitlines()
    entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [entry for entry in entries if what in (None, entry["what"])]


async def refusals_of(running: Federation) -> dict[str, int]:
    async with control_of(running.address) as control:
        return dict((await control.GetStatus(pb.GetStatusRequest())).refusals)


async def test_a_run_is_logged_from_the_first_join_to_the_end(running_federation: Federation) -> None:
    server = await start_server(running_federation, *RUN)
    async with Crowd(running_federation.address, range(2)) as crowd:
        await crowd.ended()
        secrets = [client.session for client in crowd.clients.values()]
    await exits(server, 0)
    entries = audit(running_federation)
    assert [entry["what"] for entry in entries] == ["joined"] * 2 + ["began_without"] + ["accepted"] * 4 + ["ended"]
    assert {(entry["client"], entry["epoch"]) for entry in entries[:2]} == {(0, 1), (1, 1)}
    assert entries[2]["clients"] == [2]
    assert {(entry["client"], entry["round"]) for entry in entries[3:7]} == {(0, 0), (1, 0), (0, 1), (1, 1)}
    assert all(len(entry["sha256"]) == 64 and entry["bytes"] > 0 for entry in entries[3:7])
    assert (entries[-1]["phase"], entries[-1]["reason"]) == ("finished", "all rounds are done")
    moments = [datetime.fromisoformat(entry["at"]) for entry in entries]
    assert moments == sorted(moments)
    assert all(moment.tzinfo is not None for moment in moments)
    written = b"".join(path.read_bytes() for path in _files_of(running_federation))
    assert not any(secret.encode() in written for secret in secrets)  # a reader of the log cannot act for a client


def _files_of(running: Federation) -> list[Path]:
    return [*running.state_dir.iterdir(), *running.directory.glob("*.log")]


async def test_a_refusal_is_logged_with_call_client_and_reason_and_counted(
    running_federation: Federation,
) -> None:
    server = await start_server(running_federation, *RUN)
    connection, channel = Connection(running_federation.address), RawChannel(running_federation.address)
    clients = [LightClient(number, connection) for number in range(2)]
    for client in clients:
        await client.join()
    broken = clients[1].encoded_upload(0)
    broken.manifest.prototypes.counts[0] = 9
    calls = [
        pb.JoinRequest(run_id="another"),
        pb.JoinRequest(run_id=(await connection.get_run()).run_id, client_id=7),
        pb.ReportRequest(session=clients[1].session, round=1, metrics=pb.RoundMetrics()),
        pb.ReportRequest(session="unknown", round=0, metrics=pb.RoundMetrics()),
        pb.UploadPart(header=pb.UploadHeader(session=clients[1].session, round=0, manifest=broken.manifest)),
    ]
    for call in calls:
        method = type(call).__name__.removesuffix("Request").removesuffix("Part")
        await channel.ask(RawCall(method=method, messages=[call.SerializeToString()]))
    refused = audit(running_federation, "refused")
    assert [(entry["call"], entry["client"], entry["reason"], entry["field"]) for entry in refused] == [
        ("Join", 0, "other_run", "run_id"),
        ("Join", None, "unknown_client", "client_id"),
        ("Report", 1, "wrong_round", "round"),
        ("Report", None, "stale_session", "session"),
        ("Upload", 1, "invalid_payload", "counts"),
    ]
    assert all(entry["peer"].startswith("ipv4:127.0.0.1:") for entry in refused)
    assert refused[-1]["message"] == "counts: class 0 has 9 samples, but 1 were declared at join"
    expected = {"other_run": 1, "unknown_client": 1, "wrong_round": 1, "stale_session": 1, "invalid_payload": 1}
    assert await refusals_of(running_federation) == expected
    await connection.close()
    await channel.close()
    server.terminate()
    await exits(server, ExitCode.INTERRUPTED)


async def test_leaves_and_failures_are_logged_with_the_clients_reason(running_federation: Federation) -> None:
    await start_server(running_federation, *RUN)
    connection = Connection(running_federation.address)
    client = LightClient(0, connection)
    await client.join()
    failure = pb.Failure(cause="out of memory\non the second\tline " + "x" * 1000)
    await connection.report(pb.ReportRequest(session=client.session, round=0, failure=failure))
    await connection.leave(client.session, "maintenance")
    (failed,), (left,) = audit(running_federation, "failed"), audit(running_federation, "left")
    assert (failed["client"], failed["round"]) == (0, 0)
    assert failed["cause"].startswith(r"out of memory\non the second\tline xxx")
    assert len(failed["cause"]) == 500
    assert (left["client"], left["reason"]) == (0, "maintenance")
    await connection.close()


async def test_a_client_that_fails_in_a_loop_does_not_fill_the_disk(running_federation: Federation) -> None:
    server = await start_server(running_federation, *RUN)
    connection = Connection(running_federation.address)
    client = LightClient(0, connection)
    for _ in range(60):
        await client.join()
        failure = pb.Failure(cause="again")
        await connection.report(pb.ReportRequest(session=client.session, round=0, failure=failure))
    await connection.leave(client.session, "done")
    await connection.close()
    server.terminate()
    await exits(server, ExitCode.INTERRUPTED)
    floods = audit(running_federation, "flood")
    for what in ("joined", "failed"):
        written = len(audit(running_federation, what))
        assert 20 <= written < 40
        assert written + sum(entry.get(what, 0) for entry in floods) == 60
    assert server.log.count("failed in round 1/") == len(audit(running_federation, "failed"))
    assert len(audit(running_federation, "left")) == 1


async def test_after_a_restart_the_log_is_continued_and_counters_are_zero(
    running_federation: Federation,
) -> None:
    for start in (1, 2):
        server = await start_server(running_federation, *RUN)
        channel = RawChannel(running_federation.address)
        await channel.ask(RawCall(method="Join", messages=[b""]))
        assert await refusals_of(running_federation) == {"other_run": 1}
        await channel.close()
        server.kill()
        assert len(audit(running_federation, "refused")) == start


async def test_a_flood_of_refusals_is_counted_but_does_not_fill_the_disk(running_federation: Federation) -> None:
    server = await start_server(running_federation, *RUN)
    channel = RawChannel(running_federation.address)
    sent = 0
    # the rate limit admits more of them on a slow machine
    while len(audit(running_federation, "refused")) == sent:
        await asyncio.gather(*(channel.ask(RawCall(method="Join", messages=[b""])) for _ in range(100)))
        sent += 100
    assert await refusals_of(running_federation) == {"other_run": sent}
    await channel.close()
    server.terminate()
    await exits(server, ExitCode.INTERRUPTED)
    written = len(audit(running_federation, "refused"))
    assert 100 <= written < sent
    assert written + sum(entry["refusals"] for entry in audit(running_federation, "flood")) == sent
    assert server.log.count("refused Join") == written
