"""A backup of the database that is made during a run can take its place."""

from __future__ import annotations

import asyncio
from pathlib import Path

from light_runs import LIGHT_RUN, Crowd, Gate, exits, start_server, undisturbed_outcome
from processes import Federation

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import DATABASE_NAME
from feddbp_server.store.backup import write_backup

RUN = (*LIGHT_RUN, "--rounds", 4)


async def test_a_server_resumes_from_a_backup_that_is_rounds_old(
    running_federation: Federation, tmp_path: Path
) -> None:
    database, copy = running_federation.state_dir / DATABASE_NAME, tmp_path / "backup.sqlite3"
    server = await start_server(running_federation, *RUN)
    early, late = Gate(at_round=1), Gate(at_round=3)

    async def both(event: pb.RoundEvent) -> None:
        await early(event)
        await late(event)

    async with Crowd(running_federation.address, range(3), on_event={0: both}) as crowd:
        await early.reached.wait()
        await asyncio.to_thread(write_backup, running_federation.state_dir, copy)
        early.opened.set()
        await late.reached.wait()
        server.kill()
        for file in running_federation.state_dir.glob(f"{DATABASE_NAME}*"):
            file.unlink()
        copy.rename(database)
        restored = await start_server(running_federation, *RUN)
        assert "resuming the run: collecting, round 2/" in restored.log
        late.opened.set()
        await crowd.ended()
        await exits(restored, 0)
    undisturbed = await asyncio.to_thread(undisturbed_outcome, tmp_path / "undisturbed", *RUN)
    assert running_federation.outcome() == undisturbed
