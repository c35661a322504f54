"""kill -9 of the server in a run with a lying member: what was left out stays so, and every bit is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from liars import Liar
from light_runs import Crowd, exits, is_killed, start_server
from processes import Federation, Outcome, federation

from feddbp_common.artifacts import AUDIT_NAME

RUN = (
    *("--clients", 4, "--min-clients", 4, "--rounds", 3, "--lease", "1s"),
    *("--dataset", "custom", "--classes", 4, "--feature-dim", 16, "--set", "k_top=3"),
)
LYING = 3
POINTS = (
    "server.close.committed",
    *(pytest.param(point, marks=pytest.mark.full) for point in ("server.close.begun@2", "server.close.aggregated@2")),
    *(pytest.param(point, marks=pytest.mark.full) for point in ("server.upload.committed@6", "server.close.announced")),
)


async def finish(running: Federation, *options: object, fault: str | None = None) -> Outcome:
    """Runs with a liar from start to end; a server that is killed at its fault point is started again."""
    server = await start_server(running, *RUN, *options, fault=fault)
    crowd = Crowd(running.address, range(4))
    crowd.clients[LYING] = Liar(LYING, crowd.connections[LYING], value=1e6)
    async with crowd:
        if fault is not None:
            await is_killed(server)
            server = await start_server(running, *RUN, *options)
        await crowd.ended()
    await exits(server, 0)
    return running.outcome()


def left_out(running: Federation) -> set[tuple[int, int]]:
    lines = [json.loads(line) for line in (running.state_dir / AUDIT_NAME).read_text().splitlines()]
    return {(line["client"], line["round"]) for line in lines if line["what"] == "left_out"}


@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_changes_nothing_of_what_is_left_out(
    point: str, running_federation: Federation, tmp_path: Path
) -> None:
    with federation(tmp_path / "undisturbed") as undisturbed:
        expected = await finish(undisturbed)
        assert await finish(running_federation, fault=point) == expected
        assert left_out(running_federation) == left_out(undisturbed) == {(LYING, number) for number in range(3)}
