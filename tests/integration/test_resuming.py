"""Starts that fail, servers that are started again, and runs that are extended."""

from __future__ import annotations

from pathlib import Path

import pytest
from light_runs import Crowd, exits, start_server, status_when
from processes import Federation, federation, wait_until


def test_a_start_that_nobody_joined_does_not_occupy_the_directory(running_federation: Federation) -> None:
    server = running_federation.server("--seed", 3)
    server.interrupt()
    server.expect_exit(130)
    again = running_federation.server("--seed", 4)
    wait_until(lambda: "seed 4" in again.log, "the start of another run")


async def test_a_server_resumes_with_the_options_it_was_started_with(running_federation: Federation) -> None:
    options = ("--clients", 2, "--rounds", 3, "--local-epochs", 1, "--alpha", 5, "--feature-dim", 64, "--lease", "1s")
    server = await start_server(running_federation, *options, "--join-window", "forever", "--log-level", "debug")
    async with Crowd(running_federation.address, [0]):
        await status_when(running_federation.address, lambda status: len(status.clients) == 1, "a join")
    server.kill()
    server = await start_server(running_federation)
    async with Crowd(running_federation.address, [0, 1]) as crowd:
        await crowd.ended()
    await exits(server, 0)
    for expected in ("resuming the run: waiting", "2 clients, 3 rounds, seed 0"):
        assert expected in server.log
    assert running_federation.summary()["config"]["training"]["feature_dim"] == 64
    server = await start_server(running_federation, "--rounds", 4)
    async with Crowd(running_federation.address, [0, 1]) as crowd:
        await crowd.ended()
    await exits(server, 0)
    assert "the run finished after 3 of 3 rounds; it is extended to 4 rounds" in server.log
    assert running_federation.summary()["completed_rounds"] == 4
    server = await start_server(running_federation, "--linger", 0)
    await exits(server, 0)
    assert "finished after 4 rounds: all rounds are done; more --rounds extend it" in server.log


@pytest.mark.full
def test_an_extended_run_of_real_clients_has_the_bits_of_a_longer_one(
    running_federation: Federation, tmp_path: Path
) -> None:
    run = ("--clients", 2, "--alpha", 5.0, "--local-epochs", 1)

    def play(where: Federation, *options: object) -> None:
        for command in (where.server(*options), where.client("0-1")):
            command.expect_exit(0)

    play(running_federation, *run, "--rounds", 2)
    play(running_federation, "--rounds", 3)
    with federation(tmp_path / "straight") as straight:
        play(straight, *run, "--rounds", 3)
        assert running_federation.outcome() == straight.outcome()
