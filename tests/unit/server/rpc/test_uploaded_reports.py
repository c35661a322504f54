"""Reports in the header of an upload: stored with it, once, and refused with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from coordinator_runs import Daemon, Server, join_all, metrics, metrics_of, parts, refusal_of, trained_upload
from run_machine import ids

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.wire import Encoded, Payload
from feddbp_server.store import MemoryStore, ReportRecord


def upload_of(daemon: Daemon, number: int = 0) -> Encoded:
    return trained_upload(daemon.client_id, number, Payload())


async def with_report(
    daemon: Daemon, encoded: Encoded, number: int = 0, report: pb.RoundMetrics | None = None
) -> AsyncIterator[pb.UploadPart]:
    async for part in parts(daemon.secret, number, encoded):
        if part.HasField("header"):
            part.header.metrics.CopyFrom(report or metrics(daemon.client_id, number))
        yield part


async def stored_reports(server: Server) -> list[ReportRecord]:
    return await server.thread.run(lambda store: list(store.reports()))


async def test_a_report_is_stored_with_its_upload(server: Server, tmp_path: Path) -> None:
    daemons = await join_all(server)
    await server.upload(with_report(daemons[0], upload_of(daemons[0])))
    assert (server.engine.state.uploaded, server.engine.state.reported) == (ids(0), ids(0))
    (record,) = await stored_reports(server)
    assert (record.client_id, record.round, record.metrics) == (0, 0, metrics(0, 0).SerializeToString())
    assert [(line["client"], line["round"]) for line in metrics_of(tmp_path)] == [(0, 0)]


async def test_an_upload_with_its_report_again_changes_nothing(server: Server, tmp_path: Path) -> None:
    daemons = await join_all(server)
    encoded = upload_of(daemons[0])
    receipts = [await server.upload(with_report(daemons[0], encoded)) for _ in range(2)]
    assert [receipt.duplicate for receipt in receipts] == [False, True]
    assert len(await stored_reports(server)) == len(metrics_of(tmp_path)) == 1


async def test_the_report_of_an_upload_that_was_stored_without_it_is_added(server: Server) -> None:
    daemons = await join_all(server)
    encoded = upload_of(daemons[0])
    await daemons[0].send(0, encoded)
    assert await stored_reports(server) == []
    assert (await server.upload(with_report(daemons[0], encoded))).duplicate
    assert len(await stored_reports(server)) == 1
    assert server.engine.state.reported == ids(0)


async def test_an_invalid_report_refuses_the_upload_on_its_header(server: Server) -> None:
    daemons = await join_all(server)
    wrong = pb.RoundMetrics(accuracies=[pb.Accuracy(rule="prototype", correct=3)], test_samples=2)
    refusal = await refusal_of(server.upload(with_report(daemons[0], upload_of(daemons[0]), report=wrong)))
    assert (refusal.reason, refusal.field) == (pb.REFUSAL_REASON_INVALID_REQUEST, "accuracies")
    assert server.engine.state.uploaded == ids()
    assert await stored_reports(server) == []


async def test_the_report_of_an_upload_that_is_refused_is_not_stored(server: Server) -> None:
    daemons = await join_all(server)
    damaged = upload_of(daemons[0])
    damaged.manifest.sha256 = bytes(32)
    refused = server.upload(with_report(daemons[0], damaged))
    with pytest.raises(Exception, match="does not match what was received"):
        await refused
    assert await stored_reports(server) == []


async def test_reports_with_uploads_end_a_run_as_reports_apart_do(tmp_path: Path) -> None:
    for name, together in (("apart", False), ("together", True)):
        (tmp_path / name).mkdir()
        async with Server(MemoryStore(), tmp_path / name) as server:
            daemons = await join_all(server)
            for number in range(2):
                for daemon in daemons:
                    encoded = trained_upload(daemon.client_id, number, await daemon.download(number))
                    if together:
                        await server.upload(with_report(daemon, encoded, number))
                    else:
                        await daemon.report(number)
                        await daemon.send(number, encoded)
                await server.until_round(number + 1)
            for daemon in daemons:
                await daemon.report(2)
            await server.until_over()
    assert metrics_of(tmp_path / "apart") == metrics_of(tmp_path / "together")
