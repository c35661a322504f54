"""Slow, late and lost clients: deadlines pass by the clock, and log and status name the clients that are missing."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest
from light_runs import Crowd, Gate, begun_together, exits, federation_of, start_server, status_when
from processes import Federation, GaveUpError, federation

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.transfers import upload_parts
from feddbp_common.errors import ExitCode
from feddbp_common.rpc.failures import refusal_in


def run_of(clients: int, *, rounds: int, quorum: int, deadline: str, extensions: int = 60) -> tuple[object, ...]:
    return (
        *("--clients", clients, "--rounds", rounds, "--min-clients", quorum, "--feature-dim", 64),
        *("--round-deadline", deadline, "--max-extensions", extensions),
    )


def rounds_of(client_id: int, running: Federation) -> set[int]:
    return {line["round"] for line in running.metrics() if line["client"] == client_id}


async def test_a_deadline_passes_without_any_traffic(running_federation: Federation) -> None:
    server = await start_server(running_federation, *run_of(3, rounds=2, quorum=2, deadline="1s"))
    stuck = Gate(at_round=0)
    async with begun_together(
        running_federation, Crowd(running_federation.address, range(3), on_event={2: stuck})
    ) as crowd:
        await exits(server, ExitCode.OK)
        stuck.opened.set()
        outcomes = await crowd.ended()
    assert [ended and ended.outcome for ended in outcomes.values()] == [pb.RUN_OUTCOME_FINISHED] * 3
    for number in (1, 2):
        assert f"round {number}/2: 2 of 3 clients uploaded, without client 2, in " in server.log
    assert re.search(r"no final results from clients? (\S+, |\d-)*2", server.log)
    assert running_federation.summary()["completed_rounds"] == 2


async def test_a_late_upload_is_refused_and_its_client_joins_later_rounds(running_federation: Federation) -> None:
    server = await start_server(running_federation, *run_of(2, rounds=3, quorum=1, deadline="3s"))
    refusals: list[grpc.aio.AioRpcError] = []
    ahead = Gate(at_round=1)

    async def upload_late(event: pb.RoundEvent) -> None:
        """Uploads to round 0 once round 1 is open."""
        if refusals or not event.HasField("round_opened"):
            return
        late = both.clients[0]
        await status_when(running_federation.address, lambda status: status.round == 1, "the deadline of round 0")
        async with federation_of(running_federation.address) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Upload(upload_parts(late.session, 0, late.encoded_upload(0)))
        refusals.append(refused.value)
        ahead.opened.set()

    both = Crowd(running_federation.address, [0, 1], on_event={0: upload_late, 1: ahead})
    async with begun_together(running_federation, both) as crowd:
        outcomes = await crowd.ended()
    await exits(server, ExitCode.OK)
    assert [ended and ended.outcome for ended in outcomes.values()] == [pb.RUN_OUTCOME_FINISHED] * 2
    assert refusals[0].code() is grpc.StatusCode.FAILED_PRECONDITION
    details = refusal_in(refusals[0])
    assert details == pb.Refusal(reason=pb.REFUSAL_REASON_WRONG_ROUND, field="round", current_round=1)
    assert {2, 3} <= rounds_of(0, running_federation)


def lacks_client_1(status: pb.RunStatus) -> bool:
    extended = "round 1/1 extended; missing: client 1"  # and from the second time on, how often
    return any(incident.message.startswith(extended) for incident in status.incidents)


async def test_a_round_without_quorum_is_extended_and_the_missing_are_named(running_federation: Federation) -> None:
    server = await start_server(running_federation, *run_of(2, rounds=1, quorum=2, deadline="1s"))
    slow = Gate(at_round=0)
    async with Crowd(running_federation.address, [0, 1], on_event={1: slow}) as crowd:
        status = await status_when(running_federation.address, lacks_client_1, "an extension of the deadline")
        assert status.phase == pb.PHASE_COLLECTING
        assert status.missing == [1]
        assert [client.activity for client in status.clients] == [
            pb.CLIENT_ACTIVITY_UPLOADED,
            pb.CLIENT_ACTIVITY_TRAINING,
        ]
        assert status.HasField("time_left")
        slow.opened.set()
        await crowd.ended()
    await exits(server, ExitCode.OK)
    assert re.search(r"round 1/1: extension \d+, waiting for client 1\n", server.log)
    assert {(line["client"], line["round"]) for line in running_federation.metrics()} >= {(0, 0), (1, 0)}


async def test_a_run_that_cannot_get_its_quorum_fails_with_the_names_of_the_missing(
    running_federation: Federation,
) -> None:
    server = await start_server(running_federation, *run_of(3, rounds=2, quorum=3, deadline="2s", extensions=1))
    stuck = Gate(at_round=0)
    async with Crowd(running_federation.address, range(3), on_event={2: stuck}) as crowd:
        await exits(server, ExitCode.RUN_FAILED)
        stuck.opened.set()
        outcomes = await crowd.ended()
    reason = "round 1 needs 3 uploads and has 2 after 1 extension; missing: client 2"
    assert list(outcomes.values()) == [pb.RunEnded(outcome=pb.RUN_OUTCOME_FAILED, reason=reason)] * 3
    assert running_federation.summary()["outcome"] == "failed"
    assert running_federation.summary()["reason"] == reason
    assert reason in server.log


async def test_a_deadline_starts_again_after_a_restart(running_federation: Federation) -> None:
    options = run_of(1, rounds=1, quorum=1, deadline="1s", extensions=0)
    server = await start_server(running_federation, *options)
    stuck = Gate(at_round=0)
    async with Crowd(running_federation.address, [0], on_event={0: stuck}):
        await stuck.reached.wait()
        server.kill()
    server = await start_server(running_federation, *options, "--linger", "0s")
    await exits(server, ExitCode.RUN_FAILED)  # by the clock alone: no client is connected
    assert "missing: client 0" in server.log


def test_a_lease_longer_than_a_round_is_refused(running_federation: Federation) -> None:
    with pytest.raises(GaveUpError, match="--lease is 40s and --round-deadline 30s"):
        running_federation.server("--lease", "40s", "--round-deadline", "30s")
    assert running_federation.commands[-1].process.returncode == ExitCode.USAGE


async def selections(directory: Path, *, seed: int) -> tuple[list[set[int]], list[set[int]]]:
    """The clients that trained and that reported, by round, where half of four clients are selected."""
    with federation(directory) as running:
        options = run_of(4, rounds=4, quorum=2, deadline="0")
        server = await start_server(running, *options, "--participation", 0.5, "--seed", seed)
        async with begun_together(running, Crowd(running.address, range(4))) as crowd:
            await crowd.ended()
        await exits(server, ExitCode.OK)
        lines = running.metrics()
        trained = [
            {line["client"] for line in lines if line["round"] == number and line["bytes_up"]} for number in range(4)
        ]
        reported = [{line["client"] for line in lines if line["round"] == number} for number in range(5)]
        return trained, reported


async def test_the_seed_decides_which_clients_train_and_all_evaluate(tmp_path: Path) -> None:
    trained, reported = await selections(tmp_path / "once", seed=3)
    assert [len(clients) for clients in trained] == [2] * 4
    assert reported == [{0, 1, 2, 3}] * 5
    assert await selections(tmp_path / "again", seed=3) == (trained, reported)
    assert (await selections(tmp_path / "otherwise", seed=4))[0] != trained
