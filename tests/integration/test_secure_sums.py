"""Secure sums over real sockets and certificates: the same bits as plain sums, whoever is lost, and nothing else."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from light_runs import Crowd, exits, start_client, start_server
from processes import Command, Federation, federation, summary_in

from benchmarks.light_client import LightClient
from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection
from feddbp_common.artifacts import DATABASE_NAME
from feddbp_common.rpc.credentials import ClientCredentials, client_subject
from feddbp_lab.pki.certificates import Authority

CLIENTS, THRESHOLD = 6, 5
RUN = ("--clients", CLIENTS, "--rounds", 3, "--feature-dim", 32, "--fusion", "client", "--lease", "2s")
SECURE, PLAIN = "--secure-sums", ("--sums", "fixed")


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    authority = Authority.create(directory)
    authority.issue_server(["127.0.0.1"])
    for client_id in range(CLIENTS):
        authority.issue_party(client_subject(client_id))
    return directory


@pytest.fixture(scope="module")
def access(certs: Path) -> ClientCredentials:
    return ClientCredentials(certs=certs)


async def finished(running: Federation, access: ClientCredentials, *options: object) -> str:
    """Runs light clients to the end; returns the digest of the prototypes."""
    server = await start_server(running, *RUN, "--certs", access.certs, *options)
    async with Crowd(running.address, range(CLIENTS), access=access) as crowd:
        await crowd.ended()
    await exits(server, 0)
    return str(running.summary()["prototypes_sha256"])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, access: ClientCredentials) -> str:
    with federation(tmp_path_factory.mktemp("plain")) as running:
        return asyncio.run(finished(running, access, *PLAIN))


async def test_a_secure_run_has_the_bits_of_a_plain_one(
    running_federation: Federation, access: ClientCredentials, plain: str
) -> None:
    assert await finished(running_federation, access, SECURE) == plain


async def test_clients_that_arrive_one_after_the_other_give_the_same_bits(
    running_federation: Federation, access: ClientCredentials, plain: str
) -> None:
    server = await start_server(running_federation, *RUN, "--certs", access.certs, SECURE)
    order: list[int] = []

    def in_turn(number: int) -> Callable[[pb.RoundEvent], Awaitable[None]]:
        async def wait(event: pb.RoundEvent) -> None:
            if event.HasField("round_opened"):
                order.append(number)
                await asyncio.sleep(0.05 * (CLIENTS - number))  # the last client comes first

        return wait

    on_event = {number: in_turn(number) for number in range(CLIENTS)}
    async with Crowd(running_federation.address, range(CLIENTS), access=access, on_event=on_event) as crowd:
        await crowd.ended()
    await exits(server, 0)
    assert running_federation.summary()["prototypes_sha256"] == plain


METHODS = {
    "feddbp": ("--fusion", "client"),
    "feddbp:guided": ("--fusion", "client", "--guide", "guide_small"),
    "fedproto": (),
    "fedproc": (),
    "fd": (),
    "lg-fedavg": (),
    "fedmrl": ("--set", "small_dim=16"),
    "fedkd": (),
    "fedavg": ("--guide", "guide_small"),
}


def outcome(running: Federation) -> tuple[Any, list[Any]]:
    lines = sorted(running.metrics(), key=lambda line: (line["round"], line["client"]))
    return running.summary()["prototypes_sha256"], [line["accuracies"] for line in lines]


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name in ("feddbp", "fedkd") else [pytest.mark.full]) for name in METHODS]
)
async def test_real_clients_of_every_summed_method_train_to_the_same_bits(
    method: str, tmp_path: Path, certs: Path
) -> None:
    options = (
        "--clients",
        5,
        "--rounds",
        2,
        "--alpha",
        5.0,
        "--local-epochs",
        1,
        "--feature-dim",
        32,
        "--certs",
        certs,
    )
    outcomes = []
    for name, sums in (("plain", PLAIN), ("secure", (SECURE,))):
        with federation(tmp_path / name) as running:
            server = await start_server(running, "--method", method, *options, *METHODS[method], *sums)
            clients = await start_client(running, "0-4", "--certs", certs)
            for command in (clients, server):
                await exits(command, 0)
            outcomes.append(outcome(running))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) == 64
