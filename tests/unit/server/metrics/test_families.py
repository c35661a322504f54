"""The metric families, against what the status says."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from coordinator_runs import CLIENTS, Daemon, Server, join_all

from feddbp_server.metrics.families import run_families
from feddbp_server.rpc.status_reply import status_of
from feddbp_server.store import MemoryStore


def value_of(server: Server, name: str) -> float:
    (family,) = (family for family in run_families(server.view) if family.name == name)
    (sample,) = family.samples
    return float(sample.value)


async def test_a_run_that_waits_for_clients_has_as_many_missing_as_its_status_names(tmp_path: Path) -> None:
    async with Server(MemoryStore(), tmp_path, clients=CLIENTS, join_window=timedelta(days=1)) as server:
        await Daemon.join(server, 0)
        assert value_of(server, "feddbp_clients_missing") == len(status_of(server.view).missing) == CLIENTS - 1


async def test_an_open_round_misses_the_clients_that_have_not_uploaded(server: Server) -> None:
    first, *_ = await join_all(server)
    await first.work(0)
    assert value_of(server, "feddbp_clients_missing") == CLIENTS - 1
