"""Secure sums over real sockets and certificates: the same bits as plain sums, whoever is lost, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.light_client import LightClient
from certificates import issue_certificates
from light_runs import Crowd, Gate, exits, start_client, start_server
from processes import Command, Federation, federation

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import CallRefusedError
from feddbp_common.rpc.credentials import ClientCredentials
from feddbp_common.secure_sums.fixed_point import to_fixed

CLIENTS = 6
"""Five of them are enough to open a sum."""
RUN = ("--clients", CLIENTS, "--rounds", 3, "--feature-dim", 32, "--fusion", "client", "--lease", "2s")
SECURE, PLAIN = ("--secure-sums",), ("--sums", "fixed")
LOSSES = ("--sum-wait", "1s", "--round-deadline", "4s", "--min-clients", 4)
"""Options under which a round does not wait for lost clients for long."""
LOST_IN = 1
"""The round in which clients are lost: the first in which prototypes are summed."""


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return issue_certificates(tmp_path_factory.mktemp("certs"), clients=CLIENTS)


@pytest.fixture(scope="module")
def access(certs: Path) -> ClientCredentials:
    return ClientCredentials(certs=certs)


async def finished(running: Federation, access: ClientCredentials, *options: object, lost: Losses | None = None) -> str:
    """Runs light clients to the end; returns the digest of the prototypes."""
    server = await start_server(running, *RUN, "--certs", access.certs, *options)
    gone_on = asyncio.Event()

    async def go_on(event: pb.RoundEvent) -> None:
        if event.round_opened.round > LOST_IN:
            gone_on.set()

    crowd = Crowd(running.address, range(CLIENTS), access=access, on_event={0: go_on})
    for client_id, step in (lost or {}).items():
        lose_at(step, crowd.clients[client_id], until=gone_on)
    async with crowd:
        await crowd.ended()
    await exits(server, 0)
    return str(running.summary()["prototypes_sha256"])


Losses = dict[int, str]
"""Clients that are lost, and the step that they do not get to."""


def lose_at(step: str, client: LightClient, *, until: asyncio.Event) -> None:
    """Lets a client hang at a step of one round, until the others have gone on without it."""
    connection = client._connection
    advance, upload = connection.advance_sum, connection.upload

    async def hang(round_number: int, at: str | None) -> None:
        if (round_number, at) == (LOST_IN, step):
            await until.wait()
            raise CallRefusedError("the others have gone on", pb.Refusal(reason=pb.REFUSAL_REASON_WRONG_ROUND))

    async def advance_sum(request: pb.AdvanceSumRequest) -> pb.AdvanceSumResponse:
        await hang(request.round, request.WhichOneof("step"))
        return await advance(request)

    async def upload_term(session: str, round_number: int, *rest: Any) -> pb.UploadReceipt:
        await hang(round_number, "upload")
        return await upload(session, round_number, *rest)

    connection.advance_sum, connection.upload = advance_sum, upload_term  # type: ignore[method-assign,assignment]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, access: ClientCredentials) -> str:
    with federation(tmp_path_factory.mktemp("plain")) as running:
        return asyncio.run(finished(running, access, *PLAIN))


@pytest.fixture(scope="module")
def plain_without_one(tmp_path_factory: pytest.TempPathFactory, access: ClientCredentials) -> str:
    """Client 5 is lost before it uploads in one round."""
    with federation(tmp_path_factory.mktemp("plain")) as running:
        return asyncio.run(finished(running, access, *PLAIN, *LOSSES, lost={5: "upload"}))


async def test_a_secure_run_has_the_bits_of_a_plain_one(
    running_federation: Federation, access: ClientCredentials, plain: str
) -> None:
    assert await finished(running_federation, access, *SECURE) == plain


async def test_clients_that_come_in_another_order_give_the_same_bits(
    running_federation: Federation, access: ClientCredentials, plain: str
) -> None:
    server = await start_server(running_federation, *RUN, "--certs", access.certs, *SECURE)
    before = {number: asyncio.Event() for number in range(CLIENTS + 1)}
    before[CLIENTS].set()

    def after_the_next(number: int) -> Callable[[pb.RoundEvent], Awaitable[None]]:
        """The client with the highest id comes first, and each one lets the one below it go on."""

        async def wait(event: pb.RoundEvent) -> None:
            if event.HasField("round_opened"):
                await before[number + 1].wait()
                before[number].set()

        return wait

    on_event = {number: after_the_next(number) for number in range(CLIENTS)}
    async with Crowd(running_federation.address, range(CLIENTS), access=access, on_event=on_event) as crowd:
        await crowd.ended()
    await exits(server, 0)
    assert running_federation.summary()["prototypes_sha256"] == plain


@pytest.mark.parametrize("step", ["keys", "shares", "upload"])
async def test_a_client_that_is_lost_before_its_upload_is_left_out(
    step: str, running_federation: Federation, access: ClientCredentials, plain_without_one: str
) -> None:
    assert await finished(running_federation, access, *SECURE, *LOSSES, lost={5: step}) == plain_without_one


@pytest.mark.parametrize("step", ["uploaded", "signature", "reveal"])
async def test_the_others_open_a_sum_with_a_client_that_is_lost_after_its_upload(
    step: str, running_federation: Federation, access: ClientCredentials, plain: str
) -> None:
    assert await finished(running_federation, access, *SECURE, *LOSSES, lost={5: step}) == plain


@pytest.mark.parametrize(
    ("step", "reason"),
    [("upload", "4 clients have uploaded; 5 have to"), ("reveal", "4 clients gave their reveal; 5 have to")],
)
async def test_a_round_with_one_client_too_few_keeps_the_old_prototypes_and_says_so(
    step: str, reason: str, running_federation: Federation, access: ClientCredentials, plain: str
) -> None:
    ended_with = await finished(running_federation, access, *SECURE, *LOSSES, lost={4: step, 5: step})
    assert ended_with == plain  # the next round sums what all clients have in it
    assert reason in running_federation.commands[-1].log


async def test_a_round_that_too_many_have_left_is_given_up_without_a_deadline(
    running_federation: Federation, access: ClientCredentials, plain: str
) -> None:
    server = await start_server(
        running_federation, *RUN, "--certs", access.certs, *SECURE, "--round-deadline", "0", "--sum-wait", "1h"
    )
    leaving = {4, 5}

    async def leave(number: int, event: pb.RoundEvent) -> None:
        if event.round_opened.round == LOST_IN and number in leaving:
            leaving.remove(number)
            # it joins again when its session is refused, and is not in this round
            await crowd.connections[number].leave(crowd.clients[number].session, "")

    on_event = {number: partial(leave, number) for number in leaving}
    crowd = Crowd(running_federation.address, range(CLIENTS), access=access, on_event=on_event)
    async with crowd:
        await crowd.ended()
    await exits(server, 0)
    assert "a sum needs 5 clients, and 4 are left in the round" in server.log
    assert running_federation.summary()["prototypes_sha256"] == plain  # the next round sums what all have in it


# --- what the server holds ---


async def test_no_value_of_a_single_client_is_in_the_memory_or_the_files_of_the_server(
    running_federation: Federation, access: ClientCredentials
) -> None:
    found = await found_in_server(running_federation, access, *SECURE)
    assert found == []


async def test_a_plain_sum_leaves_them_there(running_federation: Federation, access: ClientCredentials) -> None:
    assert {"memory", "run.sqlite3-uploads"} <= set(await found_in_server(running_federation, access, *PLAIN))


async def found_in_server(running: Federation, access: ClientCredentials, *options: object) -> list[str]:
    """Where the prototypes of a client are found in the server, when their round is closed and the run is not over."""
    server = await start_server(running, *RUN, "--certs", access.certs, *options)
    gate = Gate(at_round=2)
    async with Crowd(running.address, range(CLIENTS), access=access, on_event={0: gate}) as crowd:
        await gate.reached.wait()
        rows = [crowd.clients[1].own_prototypes(number).vectors[3] for number in (1, 2)]  # its next upload may be there
        words = [to_fixed(row.astype(np.float64), parties=CLIENTS) for row in rows]
        patterns = [row.tobytes() for row in (*rows, *words)]
        places = await asyncio.to_thread(lambda: list(places_of(patterns, server, running.state_dir)))
        gate.opened.set()
        await crowd.ended()
    await exits(server, 0)
    return places


def places_of(patterns: list[bytes], server: Command, state_dir: Path) -> Iterator[str]:
    if any(pattern in chunk for chunk in memory_of(server.process.pid) for pattern in patterns):
        yield "memory"
    for path in [*state_dir.iterdir(), server.log_path]:
        if path.is_file() and any(pattern in path.read_bytes() for pattern in patterns):
            yield path.name


def memory_of(pid: int) -> Iterator[bytes]:
    """The writable memory of a process, area by area."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            area, rights, *_ = line.split()
            if rights.startswith("rw"):
                start, end = (int(bound, 16) for bound in area.split("-"))
                memory.seek(start)
                yield memory.read(end - start)


# --- every method ---

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


QUICK = ("feddbp", "fedkd")


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.full]) for name in METHODS]
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
    for name, sums in (("plain", PLAIN), ("secure", SECURE)):
        with federation(tmp_path / name) as running:
            server = await start_server(running, "--method", method, *options, *METHODS[method], *sums)
            clients = await start_client(running, "0-4", "--certs", certs)
            for command in (clients, server):
                await exits(command, 0)
            outcomes.append(outcome(running))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) == 64
