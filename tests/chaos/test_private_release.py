"""kill -9 of a client between drawing its private release and sending it: it sends the same bytes, paid for once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from light_runs import exits, is_killed, start_client, start_server, status_when
from processes import Federation

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.training.checkpoint import Checkpoint
from feddbp_common.artifacts import CHECKPOINT_NAME, RELEASE_NAME
from feddbp_common.differential_privacy.mechanism import Release
from feddbp_common.wire import decode
from feddbp_lab.commands.privacy import command as audit

RUN = ("--dp", "frozen", "--epsilon", 4, "--feature-dim", 8, "--clients", 2, "--rounds", 2, "--lease", "1s")


def ledger_of(running: Federation) -> list[str]:
    (found,) = running.directory.rglob("client-0.ledger.jsonl")
    return found.read_text().splitlines()


def file_of(running: Federation, name: str, *, client: int = 0) -> Path:
    (found,) = running.directory.rglob(f"client-{client}/{name}")
    return found


def sums_and_counts(running: Federation) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Of the releases that both clients have stored, together."""
    releases = [Release.of(np.load(file_of(running, RELEASE_NAME, client=client))) for client in range(2)]
    sums = sum(release.sums.astype(np.float64) for release in releases)
    counts = sum(release.counts.astype(np.float64) for release in releases)
    return np.asarray(sums), np.asarray(counts)


@pytest.mark.parametrize("fault", ["client.release.stored", "client.release.recorded"])
async def test_a_killed_client_sends_the_release_that_it_has_drawn(fault: str, running_federation: Federation) -> None:
    running = running_federation
    server = await start_server(running, *RUN)
    other = await start_client(running, "1")
    doomed = await start_client(running, "0", fault=fault)
    await is_killed(doomed)
    drawn = file_of(running, RELEASE_NAME).read_bytes()
    back = await start_client(running, "0")
    for command in (back, other, server):
        await exits(command, 0)
    assert file_of(running, RELEASE_NAME).read_bytes() == drawn
    assert len(ledger_of(running)) == 1
    received = Checkpoint.load(file_of(running, CHECKPOINT_NAME)).received
    assert received is not None
    prototypes = decode(received.manifest, received.body()).prototypes
    assert prototypes is not None
    sums, counts = sums_and_counts(running)
    held = prototypes.class_ids
    expected = (sums[held] / counts[held, np.newaxis]).astype(np.float32)
    np.testing.assert_array_equal(prototypes.vectors, expected)  # made of what the clients have stored
    assert "has drawn its release" not in back.log
    assert "with epsilon 4 at delta 1e-05" in running.summary()["privacy"][0]
    assert {client["train_samples"] for client in running.summary()["per_client"]} == {0}


async def test_a_release_is_audited(running_federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    running = running_federation
    server = await start_server(running, *RUN)
    clients = await start_client(running, "0-1")
    for command in (clients, server):
        await exits(command, 0)
    assert audit(["audit", str(running.directory), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["labels_told"] == "counts with noise"
    assert 0.7 < found["auc_bound"] < 0.75
    assert found["baselines"]["a prototype of one image: must be 1"]["auc"] == 1


async def test_a_client_without_budget_stays_out(running_federation: Federation) -> None:
    running = running_federation
    server = await start_server(running, *RUN)
    client = await start_client(running, "0", "--epsilon-budget", 3)
    await exits(client, 2)
    assert "client 0 may spend 3 in all, but this run's release would make it 4.00" in client.log
    assert "joined run" not in client.log
    status = await status_when(running.address, lambda status: status.phase == pb.PHASE_WAITING, "a waiting run")
    assert "with epsilon 4 at delta 1e-05" in status.privacy[0]
    server.terminate()
