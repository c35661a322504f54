"""Files of a server are readable by its user alone, also those that an earlier version left readable."""

from __future__ import annotations

import stat
from pathlib import Path

from light_runs import Crowd, exits, start_server
from processes import Federation

from feddbp_common.artifacts import AUDIT_NAME, DATABASE_NAME, METRICS_NAME, SUMMARY_NAME

RUN = ("--clients", 2, "--rounds", 1, "--round-deadline", 0, "--feature-dim", 16, "--set", "k_top=2")


def readable_by_others(directory: Path) -> list[str]:
    return sorted(
        path.name for path in directory.rglob("*") if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077
    )


async def test_files_of_a_run_are_private(running_federation: Federation) -> None:
    state_dir = running_federation.state_dir
    server = await start_server(running_federation, *RUN)
    server.terminate()
    await exits(server, 130)
    for path in state_dir.iterdir():  # as version 0.1.0 left them
        path.chmod(0o644)
    server = await start_server(running_federation, *RUN)
    assert readable_by_others(state_dir) == []
    async with Crowd(running_federation.address, range(2)) as crowd:
        await crowd.ended()
    await exits(server, 0)
    names = {path.name for path in state_dir.iterdir()}
    assert names >= {DATABASE_NAME, AUDIT_NAME, METRICS_NAME, SUMMARY_NAME}
    assert readable_by_others(state_dir) == []
