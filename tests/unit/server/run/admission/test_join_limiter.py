"""Joins of many clients at once: those beyond the limit are refused with a time to retry, and do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from benchmarks.light_client import LightClient
from coordinator_runs import CLIENTS, CONFIG, PATIENCE, Server, join_request, listening
from slow_disk import SlowDisk

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.daemon.connection import Connection, ServerUnavailableError
from feddbp_common.rpc.failures import retry_after_of
from feddbp_server.run.admission.join_limiter import JoinLimiter
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.run.admission.refusals import RefusedError

ONE_AT_A_TIME = replace(DEFAULT_LIMITS, joins_at_once=1)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def time_told(limiter: JoinLimiter) -> float:
    with pytest.raises(RefusedError) as refused, limiter.one_more():
        pass
    assert refused.value.details.reason == pb.REFUSAL_REASON_BUSY
    return refused.value.details.retry_after.ToTimedelta().total_seconds()


def test_refused_clients_come_back_one_after_the_other_at_the_pace_of_joins() -> None:
    clock = Clock()
    limiter = JoinLimiter(ONE_AT_A_TIME, clock)
    for _ in range(200):  # joins that take half a second each
        with limiter.one_more():
            clock.now += 0.5
    with limiter.one_more():
        told = [time_told(limiter) for _ in range(10)]
    assert told == pytest.approx([0.5 * number for number in range(1, 11)], rel=0.01)


def test_nobody_is_told_to_come_back_later_than_the_limit() -> None:
    limits = replace(ONE_AT_A_TIME, longest_join_retry=timedelta(seconds=3))
    limiter = JoinLimiter(limits, Clock())
    with limiter.one_more():
        told = [time_told(limiter) for _ in range(10_000)]
    assert max(told) == pytest.approx(3)


@pytest.mark.parametrize(("seconds", "kept"), [(2, 2), (-5, 0), (10**11, 300)])
def test_a_client_waits_for_no_time_that_makes_no_sense(seconds: int, kept: int) -> None:
    refusal = pb.Refusal()
    refusal.retry_after.seconds = seconds
    assert retry_after_of(refusal) == timedelta(seconds=kept)
    assert retry_after_of(pb.Refusal()) is None


@asynccontextmanager
async def slow_server(directory: Path, disk: SlowDisk) -> AsyncIterator[tuple[Server, str]]:
    config = CONFIG.model_copy(update={"rounds": 1})
    async with (
        Server(disk, directory, limits=ONE_AT_A_TIME, config=config) as server,
        listening(server, ONE_AT_A_TIME) as address,
    ):
        try:
            yield server, address
        finally:
            disk.released.set()


async def test_clients_that_were_told_to_come_back_join_and_take_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SlowDisk()
    async with asyncio.timeout(PATIENCE), slow_server(tmp_path, disk) as (server, address):
        connections = [Connection(address) for _ in range(CLIENTS)]
        disk.slow_at = "client"
        first, *others = (LightClient(number, connections[number]) for number in range(CLIENTS))
        running = [asyncio.create_task(first.run_reconnecting())]
        await asyncio.to_thread(disk.reached.wait)  # the first one is joining
        with caplog.at_level(logging.WARNING, "feddbp.server"):
            for _ in range(3):
                with pytest.raises(ServerUnavailableError, match=r"is busy .*retry in") as refused:
                    await connections[1].join(join_request(server.coordinator, 1))
                assert refused.value.retry_after is not None
                assert refused.value.retry_after > timedelta(0)
        assert server.view.refusals == {"busy": 3}
        assert sum("retry in" in record.message for record in caplog.records) == 1  # not one line for each
        running += [asyncio.create_task(client.run_reconnecting()) for client in others]
        disk.released.set()
        ends = await asyncio.gather(*running)
        for connection in connections:
            await connection.close()
    assert [end.outcome for end in ends if end is not None] == [pb.RUN_OUTCOME_FINISHED] * CLIENTS
