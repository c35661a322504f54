"""Differential privacy under secure sums: every client adds a share of the noise, and the server sees one sum."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from certificates import issue_certificates
from light_runs import exits, is_killed, start_client, start_server
from processes import Federation, wait_until

from feddbp_client.training.checkpoint import Checkpoint
from feddbp_common.artifacts import CHECKPOINT_NAME, RELEASE_NAME
from feddbp_common.differential_privacy.mechanism import Release
from feddbp_common.wire import PrototypeSet, decode

CLIENTS = 6
RUN = (
    "--dp",
    "frozen",
    "--epsilon",
    4,
    "--secure-sums",
    "--feature-dim",
    16,
    "--clients",
    CLIENTS,
    "--rounds",
    1,
    "--lease",
    "2s",
)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return issue_certificates(tmp_path_factory.mktemp("certs"), clients=CLIENTS)


def received_by(directory: Path) -> PrototypeSet:
    (checkpoint,) = directory.rglob(f"client-0/{CHECKPOINT_NAME}")
    received = Checkpoint.load(checkpoint).received
    assert received is not None
    prototypes = decode(received.manifest, received.body()).prototypes
    assert prototypes is not None
    return prototypes


async def test_the_sum_of_all_releases_is_what_clients_receive_also_after_a_kill(
    running_federation: Federation, certs: Path
) -> None:
    running = running_federation
    server = await start_server(running, *RUN, "--certs", certs)
    clients = [await start_client(running, client, "--certs", certs) for client in range(1, CLIENTS)]
    doomed = await start_client(running, 0, "--certs", certs, fault="client.release.recorded")
    await is_killed(doomed)  # with its release in the ledger and nothing sent
    clients.append(await start_client(running, 0, "--certs", certs))
    for command in (*clients, server):
        await exits(command, 0)
    releases = [Release.of(np.load(path), exact=True) for path in running.directory.rglob(RELEASE_NAME)]
    assert len(releases) == CLIENTS
    sums, counts = sum(release.sums for release in releases), sum(release.counts for release in releases)
    prototypes = received_by(running.directory)
    expected = np.asarray(sums)[prototypes.class_ids] / np.asarray(counts)[prototypes.class_ids, np.newaxis]
    np.testing.assert_allclose(prototypes.vectors, expected, rtol=1e-5, atol=1e-6)
    # the noise is shared by the five without whom there is no sum
    assert all(len(path.read_text().splitlines()) == 1 for path in running.directory.rglob("*.ledger.jsonl"))
    summary = running.summary()
    assert "of which only the sum over clients is seen, with epsilon 4" in summary["privacy"][0]
    assert summary["accuracy"]["last"]["weighted"] > 0.5


async def test_no_client_shares_its_noise_with_fewer_than_all(running_federation: Federation, certs: Path) -> None:
    running = running_federation
    server = await start_server(running, *RUN, "--certs", certs, "--min-clients", 5, "--join-window", "0s")
    clients = [await start_client(running, client, "--certs", certs) for client in range(CLIENTS - 1)]
    waits = "the run begins when 6 clients have joined"
    await asyncio.to_thread(wait_until, lambda: all(waits in client.log for client in clients), "clients that wait")
    assert "round 1" not in server.log
    assert not list(running.directory.rglob(RELEASE_NAME))
