"""Real clients in a federation with members that lie: admitted uploads end neither the run nor an honest client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from liars import Liar
from light_runs import exits, start_client, start_server
from processes import Federation

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection

RUN = ("--clients", 4, "--min-clients", 3, "--rounds", 3, "--local-epochs", 1, "--alpha", 1.0)


async def take_part(running: Federation, liars: Sequence[int], value: float) -> tuple[list[pb.RunEnded], str]:
    """How the run ended for the liars, and the server's log; clients whose ids are not among theirs are real."""
    server = await start_server(running, *RUN)
    connections = [Connection(running.address, client_id=number) for number in liars]
    lying = [
        asyncio.create_task(Liar(number, connection, value=value).run())
        for number, connection in zip(liars, connections, strict=True)
    ]
    honest = ",".join(str(number) for number in range(4) if number not in liars)
    client = await start_client(running, honest)
    try:
        await exits(client, 0)
        ended = [await each for each in lying]
        await exits(server, 0)
    finally:
        for task in lying:
            task.cancel()
        await asyncio.gather(*lying, return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in connections))
    return ended, server.log


@pytest.mark.parametrize("value", [1e6, 1e3, 50.0])
async def test_one_admitted_upload_ends_no_honest_client(running_federation: Federation, value: float) -> None:
    (ended,), log = await take_part(running_federation, [3], value)
    assert ended.outcome == pb.RUN_OUTCOME_FINISHED
    accuracies = [
        line["accuracy"] for line in running_federation.metrics() if line["round"] == 3 and line["client"] < 3
    ]
    assert len(accuracies) == 3
    assert "the upload of client 3 to round 1/3 was left out, the norm of its prototypes is" in log
    assert "skips" not in log


async def test_a_client_whose_training_diverges_skips_its_rounds_and_stays(running_federation: Federation) -> None:
    """A majority of liars decides what is usual: nothing is left out, and the honest client receives their values."""
    ended, log = await take_part(running_federation, [1, 2, 3], 1e6)
    assert {each.outcome for each in ended} == {pb.RUN_OUTCOME_FINISHED}
    assert "client 0 skips round 2/3: training diverged" in log
    assert "client 0 skips round 3/3: training diverged" in log
    assert "extension" not in log
