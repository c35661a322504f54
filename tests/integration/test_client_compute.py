"""Clients of one run that compute in different ways, as processes on this machine's CPU."""

from __future__ import annotations

from pathlib import Path

from processes import Federation, Outcome, federation

RUN = ("--clients", 3, "--rounds", 2, "--alpha", 1.0, "--local-epochs", 1, "--min-clients", 3, "--accumulate")


def test_clients_with_other_precision_threads_and_modes_take_part_in_a_run(running_federation: Federation) -> None:
    server = running_federation.server(*RUN)
    clients = {
        "exact": running_federation.client("0", "--deterministic"),
        "mixed": running_federation.client("1", "--amp", "--image-memory", "1GiB", "--jobs-per-gpu", 2),
        "fast": running_federation.client("2", "--fast", "--threads", "auto"),
    }
    for command in (*clients.values(), server):
        command.expect_exit(0)
    assert "cpu: client 0, float32, 1 CPU thread" in clients["exact"].log
    assert "cpu: client 1, bfloat16, 1 CPU thread" in clients["mixed"].log
    assert "on cpu" in clients["fast"].log
    assert running_federation.summary()["outcome"] == "finished"


def outcome_with(directory: Path, *options: object) -> Outcome:
    with federation(directory) as running:
        commands = [running.server("--clients", 1, "--rounds", 2, "--local-epochs", 1), running.client("0", *options)]
        for command in commands:
            command.expect_exit(0)
        return running.outcome()


def test_on_a_cpu_the_modes_change_no_bit(tmp_path: Path) -> None:
    expected = outcome_with(tmp_path / "default")
    assert outcome_with(tmp_path / "deterministic", "--deterministic") == expected
    assert outcome_with(tmp_path / "fast", "--fast") == expected
