"""kill -9 of either side at every step of a secure sum: the run ends with the same bits as without faults."""

from __future__ import annotations

import asyncio

import pytest
from certificates import issue_certificates
from light_runs import Crowd, Gate, exits, is_killed, start_client, start_server
from processes import PATIENCE, Federation, Outcome, federation
from sum_faults import CLIENT_SUM_FAULTS, SERVER_SUM_FAULTS

from feddbp_common.rpc.credentials import ClientCredentials

CLIENTS = 5
OTHERS = range(1, CLIENTS)
RUN = (
    *("--clients", CLIENTS, "--rounds", 3, "--alpha", 5.0, "--local-epochs", 1, "--feature-dim", 32),
    *("--min-clients", CLIENTS, "--lease", "6s", "--linger", f"{PATIENCE}s", "--fusion", "client"),
)
"""No step and no round goes on without a client, however long its return takes."""
PATIENT = ("--secure-sums", "--sum-wait", f"{PATIENCE}s")


def cases(faults: dict[str, tuple[str, ...]]) -> list[str]:
    return [point for points in faults.values() for point in points]


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> ClientCredentials:
    return ClientCredentials(certs=issue_certificates(tmp_path_factory.mktemp("certs"), clients=CLIENTS))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, access: ClientCredentials) -> Outcome:
    """Without faults and without masks."""
    with federation(tmp_path_factory.mktemp("undisturbed")) as running:
        return asyncio.run(finish(running, access, "--sums", "fixed"))


async def finish(running: Federation, access: ClientCredentials, *options: object) -> Outcome:
    server = await start_server(running, *RUN, "--certs", access.certs, *options)
    client = await start_client(running, "0", "--certs", access.certs)
    async with Crowd(running.address, OTHERS, access=access) as others:
        await others.ended()
    for command in (client, server):
        await exits(command, 0)
    return outcome(running)


def outcome(running: Federation) -> Outcome:
    """Without the bytes that were sent, and results on rare classes, which clients of a secure run do not tell."""
    digest, lines = running.outcome()
    return digest, [
        {key: value for key, value in line.items() if not key.startswith(("bytes_", "rare_"))} for line in lines
    ]


@pytest.mark.parametrize("fault", cases(SERVER_SUM_FAULTS))
async def test_a_server_killed_at_any_step_of_a_sum_loses_nothing(
    fault: str, running_federation: Federation, access: ClientCredentials, undisturbed: Outcome
) -> None:
    options = (*RUN, "--certs", access.certs, *PATIENT)
    doomed = await start_server(running_federation, *options, fault=fault)
    client = await start_client(running_federation, "0", "--certs", access.certs)
    async with Crowd(running_federation.address, OTHERS, access=access) as others:
        await is_killed(doomed)
        server = await start_server(running_federation, *options)
        await others.ended()
    for command in (client, server):
        await exits(command, 0)
    assert outcome(running_federation) == undisturbed


@pytest.mark.parametrize("fault", cases(CLIENT_SUM_FAULTS))
async def test_a_client_killed_at_any_step_of_a_sum_sends_the_same_bytes_again(
    fault: str, running_federation: Federation, access: ClientCredentials, undisturbed: Outcome
) -> None:
    server = await start_server(running_federation, *RUN, "--certs", access.certs, *PATIENT)
    doomed = await start_client(running_federation, "0", "--certs", access.certs, fault=fault)
    last_report = Gate(at_round=3)
    async with Crowd(running_federation.address, OTHERS, access=access, on_event={1: last_report}) as others:
        await is_killed(doomed)
        last_report.opened.set()
        back = await start_client(running_federation, "0", "--certs", access.certs)
        await others.ended()
    for command in (back, server):
        await exits(command, 0)
    assert outcome(running_federation) == undisturbed
