"""kill -9 of either side at every fault point: the run ends with the same bits as without faults.

FEDDBP_FAULT names the point and the number of passes, so a kill happens there and nowhere else.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from light_runs import (
    LIGHT_RUN,
    Crowd,
    Gate,
    control_of,
    exits,
    finish,
    is_killed,
    start_client,
    start_server,
    status_when,
)
from pages import DOCS
from processes import PATIENCE, Command, Federation, GaveUpError, Outcome, federation, wait_until
from sum_faults import CLIENT_SUM_FAULTS, SERVER_SUM_FAULTS

import feddbp_client
import feddbp_server
from feddbp.v1 import federation_pb2 as pb

BEFORE_LISTENING = "server.start.opened"
SERVER_FAULTS = {
    "before the first join": (BEFORE_LISTENING,),
    "a join is stored but not answered": ("server.join.committed", "server.join.committed@3"),
    "waiting": ("server.follow.notified",),
    "a report is stored but not answered": ("server.report.committed@2",),
    "inside an upload stream": ("server.upload.receiving", "server.upload.receiving@5"),
    "an upload is received but not stored": ("server.upload.received@2",),
    "a body is written but not on the disk": ("server.body.written", "server.body.written@5"),
    "a body is on the disk, its row is not": ("server.body.synced", "server.body.synced@4"),
    "collecting, some uploads in": ("server.upload.committed@2",),
    "collecting, all uploads in": ("server.upload.committed@3",),
    "a round is about to be closed": ("server.close.begun@2",),
    "a round is aggregated but not stored": ("server.close.aggregated",),
    "between commit and announcement": ("server.close.committed", "server.close.committed@3"),
    "announced but not tidied up": ("server.close.announced@2",),
    "inside a download": ("server.download.sending", "server.download.sending@4"),
    "a state is made but not pushed": ("server.state.pushing", "server.state.pushing@4"),
    "the last evaluation, some results in": ("server.report.committed@5",),
    "the end is stored but not announced": ("server.end.committed",),
    "lingering, the summary is written": ("server.end.summarised",),
    "lingering, the end is announced to some clients": ("server.end.notified",),
}
"""By phase, where the server is killed; three clients and three rounds, so @4 is in the second round.

Client 2 alone makes calls for states and reports of rounds."""

NOTIFIED_OF_THE_END = "client.end.notified"
CLIENT_FAULTS = {
    "before join": ("client.join.calling",),
    "joined, session not saved": ("client.join.answered",),
    "waiting": ("client.follow.waiting",),
    "inside a download": ("client.download.receiving", "client.download.receiving@2"),
    "trained, nothing saved": ("client.work.done@2",),
    "inside the writing of a checkpoint": ("client.checkpoint.written", "client.checkpoint.written@2"),
    "trained and saved": ("client.work.saved@2",),
    "inside an upload stream": ("client.upload.sending@2",),
    "the upload is acknowledged": ("client.upload.receipt", "client.upload.receipt@3"),
    "the last evaluation, nothing saved": ("client.work.done@4",),
    "after the last report": ("client.report.answered",),
    "notified of the end": (NOTIFIED_OF_THE_END,),
}
"""By phase, where client 0 is killed: in its first round, its second (@2), or the last evaluation (@4)."""

PRIVATE_RUN_FAULTS = ("client.release.stored", "client.release.recorded")
"""In runs with differential privacy alone: `test_private_release.py`."""

REAL_RUN = (
    *("--clients", 3, "--rounds", 3, "--alpha", 1.0, "--local-epochs", 1, "--feature-dim", 64),
    *("--min-clients", 3, "--lease", "6s", "--linger", f"{PATIENCE}s"),
    *("--augment", "randaugment", "--momentum", 0.9, "--keep-optimizer", "--schedule", "cosine", "--ema", 0.9),
    *("--clip-norm", 5, "--label-smoothing", 0.1, "--init", "common", "--validation", 0.2, "--finetune-rounds", 1),
    *("--set", "warmup_rounds=2", "--set", "prototype_gradient=branches"),
)
"""With every setting of training on, all of whose state has to survive. It lingers until a client that was killed after
its last report has come back, however long that takes."""


def cases(faults: dict[str, tuple[str, ...]], *, without: str) -> list[str]:
    return [point for points in faults.values() for point in points if point != without]


def points_in(package: Path) -> set[str]:
    return {
        point for file in package.rglob("*.py") for point in re.findall(r'fault_point\("([^"]+)"\)', file.read_text())
    }


@pytest.mark.parametrize(
    ("package", "faults"),
    [
        (feddbp_server, SERVER_FAULTS | SERVER_SUM_FAULTS),
        (feddbp_client, CLIENT_FAULTS | CLIENT_SUM_FAULTS | {"a private release": PRIVATE_RUN_FAULTS}),
    ],
    ids=["server", "client"],
)
def test_no_fault_point_is_left_out(package: object, faults: dict[str, tuple[str, ...]]) -> None:
    named = {point.partition("@")[0] for points in faults.values() for point in points}
    assert named == points_in(Path(package.__file__).parent)  # type: ignore[attr-defined]
    page = (DOCS / "reliability.md").read_text()
    assert [point for point in sorted(named) if f"`{point}" not in page] == []


# --- the server, with light clients ---


async def test_a_server_killed_before_it_listens_starts_from_scratch(
    running_federation: Federation, undisturbed_light: Outcome
) -> None:
    with pytest.raises(GaveUpError, match="ended with -9"):
        await start_server(running_federation, *LIGHT_RUN, fault=BEFORE_LISTENING)
    assert await finish(running_federation, *LIGHT_RUN) == undisturbed_light


@pytest.mark.parametrize("fault", cases(SERVER_FAULTS, without=BEFORE_LISTENING))
async def test_a_server_killed_anywhere_loses_nothing(
    fault: str, running_federation: Federation, undisturbed_light: Outcome
) -> None:
    doomed = await start_server(running_federation, *LIGHT_RUN, fault=fault)
    async with Crowd(running_federation.address, range(3)) as crowd:
        await is_killed(doomed)
        server = await start_server(running_federation, *LIGHT_RUN)
        await crowd.ended()
    if fault in ("server.end.summarised", "server.end.notified"):
        server.terminate()  # it lingers for clients that were notified before the kill and have left
    await exits(server, 0)
    assert running_federation.outcome() == undisturbed_light
    assert running_federation.summary()["outcome"] == "finished"


async def test_a_server_killed_three_times_loses_nothing(
    running_federation: Federation, undisturbed_light: Outcome
) -> None:
    faults = ("server.upload.committed@2", "server.close.committed", "server.download.sending@2")
    doomed = await start_server(running_federation, *LIGHT_RUN, fault=faults[0])
    async with Crowd(running_federation.address, range(3)) as crowd:
        for fault in (*faults[1:], None):
            await is_killed(doomed)
            doomed = await start_server(running_federation, *LIGHT_RUN, fault=fault)
        await crowd.ended()
    await exits(doomed, 0)
    assert running_federation.outcome() == undisturbed_light


async def test_a_server_and_a_client_lost_at_once_lose_nothing(
    running_federation: Federation, undisturbed_light: Outcome
) -> None:
    doomed = await start_server(running_federation, *LIGHT_RUN, fault="server.close.committed@2")
    async with Crowd(running_federation.address, range(3)) as crowd:
        await is_killed(doomed)
        await crowd.lose(0)
        server = await start_server(running_federation, *LIGHT_RUN)
        async with Crowd(running_federation.address, [0]) as back:  # without its session: the lease has to expire
            await asyncio.gather(crowd.ended(), back.ended())
    await exits(server, 0)
    assert running_federation.outcome() == undisturbed_light


# --- absences, with light clients ---


async def test_a_client_that_is_away_for_a_while_changes_nothing_under_the_default_policy(
    running_federation: Federation, undisturbed_light: Outcome
) -> None:
    server = await start_server(running_federation, *LIGHT_RUN)
    away = Gate(at_round=1)
    async with Crowd(running_federation.address, range(3), on_event={2: away}) as crowd:
        await away.reached.wait()
        await crowd.lose(2)
        await status_when(running_federation.address, lambda status: status.missing == [2], "waiting for client 2")
        async with Crowd(running_federation.address, [2]) as back:
            await asyncio.gather(crowd.ended(), back.ended())
    await exits(server, 0)
    assert running_federation.outcome() == undisturbed_light


async def test_a_client_that_misses_two_rounds_catches_up(running_federation: Federation) -> None:
    options = ("--clients", 3, "--rounds", 6, "--min-clients", 2, "--round-deadline", "2s", "--max-extensions", 60)
    server = await start_server(running_federation, *options, "--lease", "1s", "--feature-dim", 64)
    away, slow = Gate(at_round=1), Gate(at_round=4)
    async with Crowd(running_federation.address, range(3), on_event={0: slow, 2: away}) as crowd:
        await away.reached.wait()
        await crowd.lose(2)
        await slow.reached.wait()
        waits = Gate()
        async with Crowd(running_federation.address, [2], on_event={2: waits}) as back:
            await waits.reached.wait()
            waits.opened.set()
            slow.opened.set()
            await asyncio.gather(crowd.ended(), back.ended())
    await exits(server, 0)
    assert running_federation.summary()["completed_rounds"] == 6
    rounds = {line["round"] for line in running_federation.metrics() if line["client"] == 2}
    assert rounds - {0} == {5, 6}  # two were enough to begin: it may have come too late for round 0
    assert "dropped until they join again: client 2" in server.log


# --- a real client among light ones ---


@pytest.fixture(scope="module")
def undisturbed_real(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    with federation(tmp_path_factory.mktemp("undisturbed-real")) as running:
        return asyncio.run(finish_with_real_client(running))


async def finish_with_real_client(running: Federation) -> Outcome:
    server = await start_server(running, *REAL_RUN)
    client = await start_client(running, "0")
    async with Crowd(running.address, [1, 2]) as others:
        await others.ended()
    for command in (client, server):
        await exits(command, 0)
    return running.outcome()


async def start_doomed_client(running: Federation, fault: str) -> Command:
    """Client 0 alone: it waits for the others, unless it is killed before."""
    doomed = await start_client(running, "0", fault=fault)
    await asyncio.to_thread(
        wait_until, lambda: "waits:" in doomed.log or doomed.process.poll() is not None, "client 0 in the run"
    )
    return doomed


@pytest.mark.parametrize("fault", cases(CLIENT_FAULTS, without=NOTIFIED_OF_THE_END))
async def test_a_client_killed_anywhere_loses_nothing(
    fault: str, running_federation: Federation, undisturbed_real: Outcome
) -> None:
    server = await start_server(running_federation, *REAL_RUN)
    doomed = await start_doomed_client(running_federation, fault)
    # the run must not end before the kill: the server would take client 0 for notified, and not wait for its return
    last_report = Gate(at_round=3)
    async with Crowd(running_federation.address, [1, 2], on_event={1: last_report}) as others:
        await is_killed(doomed)
        last_report.opened.set()
        back = await start_client(running_federation, "0")
        await others.ended()
    for command in (back, server):
        await exits(command, 0)
    assert running_federation.outcome() == undisturbed_real


async def test_a_client_killed_after_the_end_needs_no_server(
    running_federation: Federation, undisturbed_real: Outcome
) -> None:
    server = await start_server(running_federation, *REAL_RUN)
    doomed = await start_doomed_client(running_federation, NOTIFIED_OF_THE_END)
    async with Crowd(running_federation.address, [1, 2]) as others:
        await is_killed(doomed)
        await others.ended()
    await exits(server, 0)
    assert running_federation.outcome() == undisturbed_real
    again = await start_client(running_federation, "0")
    await exits(again, 0)
    assert "it has all results of this client, nothing is left to do" in again.log
    assert "trying again" not in again.log


async def test_a_client_killed_three_times_loses_nothing(
    running_federation: Federation, undisturbed_real: Outcome
) -> None:
    server = await start_server(running_federation, *REAL_RUN)
    doomed = await start_doomed_client(running_federation, "client.work.saved")
    async with Crowd(running_federation.address, [1, 2]) as others:
        for fault in ("client.upload.sending", "client.upload.receipt", None):
            await is_killed(doomed)
            doomed = await start_client(running_federation, "0", fault=fault)
        await others.ended()
    for command in (doomed, server):
        await exits(command, 0)
    assert running_federation.outcome() == undisturbed_real


async def test_both_sides_killed_at_once_lose_nothing(
    running_federation: Federation, undisturbed_real: Outcome
) -> None:
    doomed_server = await start_server(running_federation, *REAL_RUN, fault="server.close.committed@2")
    doomed_client = await start_doomed_client(running_federation, "client.upload.receipt@2")
    async with Crowd(running_federation.address, [1, 2]) as others:
        await is_killed(doomed_server)
        server = await start_server(running_federation, *REAL_RUN)
        await is_killed(doomed_client)  # by now, or with the receipt that the first server did not get to send
        back = await start_client(running_federation, "0")
        await others.ended()
    for command in (back, server):
        await exits(command, 0)
    assert running_federation.outcome() == undisturbed_real


@pytest.mark.full
async def test_a_real_client_that_misses_two_rounds_catches_up(running_federation: Federation) -> None:
    options = ("--clients", 3, "--rounds", 6, "--alpha", 1.0, "--local-epochs", 1, "--min-clients", 2, "--lease", "1s")
    server = await start_server(running_federation, *options, "--round-deadline", "10s", "--max-extensions", 60)
    async with control_of(running_federation.address) as control:
        await control.Pause(pb.PauseRequest())
        doomed = await start_client(running_federation, "0", fault="client.work.done@2")
        slow = Gate(at_round=4)
        async with Crowd(running_federation.address, [1, 2], on_event={1: slow}) as others:
            await status_when(running_federation.address, lambda status: len(status.clients) == 3, "three joins")
            await control.Resume(pb.ResumeRequest())
            await is_killed(doomed)
            await slow.reached.wait()
            back = await start_client(running_federation, "0")
            await asyncio.to_thread(wait_until, lambda: "waits:" in back.log, "client 0's return")
            slow.opened.set()
            await others.ended()
    for command in (back, server):
        await exits(command, 0)
    rounds = {line["round"] for line in running_federation.metrics() if line["client"] == 0}
    assert rounds == {0, 5, 6}
