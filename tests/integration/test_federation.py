"""The two commands as processes: they finish a run, agree bit for bit, and survive being killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import Federation, federation, wait_until

SMALL_RUN = ("--clients", 3, "--rounds", 3, "--alpha", 1.0, "--local-epochs", 1, "--min-clients", 3)


def finish_small_run(running: Federation, *client_ids: object) -> None:
    server = running.server(*SMALL_RUN)
    clients = [running.client(ids) for ids in client_ids]
    for command in (*clients, server):
        command.expect_exit(0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """A run that nobody touched, to compare with."""
    with federation(tmp_path_factory.mktemp("undisturbed")) as running:
        finish_small_run(running, "0-2")
        return running


def test_a_run_leaves_its_results_behind(undisturbed: Federation) -> None:
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


def test_the_server_process_never_loads_torch(running_federation: Federation) -> None:
    server = running_federation.server(*SMALL_RUN)
    client = running_federation.client("0-2")
    wait_until(running_federation.metrics, "the first report")
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    client.expect_exit(0)
    server.expect_exit(0)


def test_a_client_that_starts_late_joins_at_the_next_round(running_federation: Federation) -> None:
    server = running_federation.server(
        "--clients", 2, "--rounds", 200, "--alpha", 1.0, "--local-epochs", 1, "--min-clients", 1
    )
    early = running_federation.client("0")
    wait_until(lambda: any(line["round"] >= 1 for line in running_federation.metrics()), "round 1")
    late = running_federation.client("1")
    for command in (early, late, server):
        command.expect_exit(0)
    rounds_of_late = {line["round"] for line in running_federation.metrics() if line["client"] == 1}
    assert min(rounds_of_late) > 1
    assert rounds_of_late == set(range(min(rounds_of_late), 201))


@pytest.mark.parametrize("victim", ["server", "client"])
def test_killing_a_process_changes_no_bit(victim: str, undisturbed: Federation, running_federation: Federation) -> None:
    server = running_federation.server(*SMALL_RUN)
    clients = [running_federation.client("0"), running_federation.client("1,2")]
    wait_until(lambda: any(line["round"] == 1 for line in running_federation.metrics()), "round 1")
    if victim == "server":
        server.kill()
        server = running_federation.server(*SMALL_RUN)
    else:
        clients[0].kill()
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


def test_ctrl_c_on_a_client_leaves_the_run_to_the_others(running_federation: Federation) -> None:
    server = running_federation.server("--clients", 2, "--min-clients", 1, "--rounds", 60, "--local-epochs", 1)
    leaver, stayer = running_federation.client("0"), running_federation.client("1")
    wait_until(lambda: {line["client"] for line in running_federation.metrics()} == {0, 1}, "both clients' reports")
    leaver.interrupt()
    leaver.expect_exit(130)
    stayer.expect_exit(0)
    server.expect_exit(0)
    assert "client 0 left" in server.log
