"""The two commands as processes: they finish a run, agree bit for bit, and survive being killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from light_runs import Crowd, Gate, begun_together, exits, start_client, start_server, status_when
from processes import Federation, federation, wait_until

from feddbp_common.fault_injection import VARIABLE

SMALL_RUN = ("--clients", 3, "--rounds", 3, "--alpha", 1.0, "--local-epochs", 1, "--min-clients", 3)


def finish_small_run(running: Federation, *client_ids: object) -> None:
    server = running.server(*SMALL_RUN)
    clients = [running.client(ids) for ids in client_ids]
    for command in (*clients, server):
        command.expect_exit(0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """A run without interruption, to compare with."""
    with federation(tmp_path_factory.mktemp("undisturbed")) as running:
        finish_small_run(running, "0-2")
        return running


def test_a_run_writes_its_results(undisturbed: Federation) -> None:
    summary = undisturbed.summary()
    assert summary["outcome"] == "finished"
    assert summary["completed_rounds"] == 3
    assert len(summary["prototypes_sha256"]) == 64
    lines = undisturbed.metrics()
    assert {(line["round"], line["client"]) for line in lines} == {(r, c) for r in range(4) for c in range(3)}
    trained = [line for line in lines if line["round"] < 3]
    assert all({"ce_shared", "ce_decision", "total"} <= line["losses"].keys() for line in trained)
    assert all({"l_s", "l_d"} <= line["losses"].keys() for line in trained if line["round"] > 0)
    assert all(line["accuracies"].keys() == {"prototype_normalized", "prototype", "head"} for line in lines)
    assert summary["bytes_up"] == sum(line["bytes_up"] for line in lines) > 0


def test_clients_start_in_any_order_and_number_of_processes(
    undisturbed: Federation, running_federation: Federation
) -> None:
    finish_small_run(running_federation, "2", "0,1")
    assert running_federation.outcome() == undisturbed.outcome()


async def test_the_server_process_never_loads_torch(running_federation: Federation) -> None:
    server = await start_server(running_federation, *SMALL_RUN, forked=False)
    gate = Gate(at_round=2)
    async with Crowd(running_federation.address, range(3), on_event={0: gate}) as crowd:
        await gate.reached.wait()
        maps = await asyncio.to_thread(Path(f"/proc/{server.process.pid}/maps").read_text)
        gate.opened.set()
        await crowd.ended()
    assert "numpy" in maps
    assert "libtorch" not in maps
    await exits(server, 0)


async def test_a_client_that_starts_late_joins_at_the_next_round(running_federation: Federation) -> None:
    run = ("--clients", 2, "--rounds", 4, "--alpha", 1.0, "--local-epochs", 1, "--join-window", 0)
    server = await start_server(running_federation, *run)
    gate = Gate(at_round=1)
    async with Crowd(running_federation.address, [0], on_event={0: gate}) as early:
        await gate.reached.wait()
        late = await start_client(running_federation, "1")
        await status_when(running_federation.address, lambda status: len(status.clients) == 2, "the late client's join")
        gate.opened.set()
        await early.ended()
    for command in (late, server):
        await exits(command, 0)
    assert {line["round"] for line in running_federation.metrics() if line["client"] == 1} == {2, 3, 4}
    assert "training alone: client 0 is the only one that takes part" in server.log
    participants = running_federation.summary()["participants"]
    assert participants == {"began_with": 1, "joined": 2, "never_joined": [], "trained_alone": False}


@pytest.mark.parametrize("victim", ["server", "client"])
def test_killing_a_process_changes_no_bit(victim: str, undisturbed: Federation, running_federation: Federation) -> None:
    fault = {"server": "server.upload.committed@4", "client": "client.upload.receipt@2"}  # in round 1
    server = running_federation.server(*SMALL_RUN, env={VARIABLE: fault["server"]} if victim == "server" else None)
    clients = [
        running_federation.client("0", env={VARIABLE: fault["client"]} if victim == "client" else None),
        running_federation.client("1,2"),
    ]
    if victim == "server":
        server.expect_killed()
        server = running_federation.server(*SMALL_RUN)
    else:
        clients[0].expect_killed()
        clients[0] = running_federation.client("0")
    for command in (*clients, server):
        command.expect_exit(0)
    assert running_federation.outcome() == undisturbed.outcome()


def test_a_second_live_client_with_the_same_id_is_refused(running_federation: Federation, tmp_path: Path) -> None:
    running_federation.server("--clients", 2, "--min-clients", 2)
    first = running_federation.client("0")
    wait_until(lambda: "waits:" in first.log, "the first client's join")
    second = running_federation.client("0", "--state-dir", tmp_path / "elsewhere", "--patience", "1s")
    second.expect_exit(4)
    assert "client 0 is in use by another daemon" in second.log
    assert "Traceback" not in second.log
    assert first.process.poll() is None


async def test_ctrl_c_on_a_client_takes_it_out_of_the_run(running_federation: Federation) -> None:
    server = await start_server(running_federation, "--clients", 2, "--rounds", 3, "--local-epochs", 1)
    gate = Gate(at_round=1)
    leaver = await start_client(running_federation, "0")
    crowd = Crowd(running_federation.address, [1], on_event={1: gate})
    async with begun_together(running_federation, crowd, others=1) as stayer:
        await gate.reached.wait()
        leaver.interrupt()
        await exits(leaver, 130)
        gate.opened.set()
        await stayer.ended()
    await exits(server, 0)
    assert "client 0 left" in server.log
