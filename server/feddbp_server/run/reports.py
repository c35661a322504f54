"""Reports of clients on a round, from the wire to the metrics log; by a call of their own, or with an upload."""

from __future__ import annotations

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.fault_injection import fault_point
from feddbp_server.reporting.metrics_log import Report
from feddbp_server.run.engine import RunEngine
from feddbp_server.run.sessions import Session
from feddbp_server.run.state_machine.events import Reported
from feddbp_server.store import ReportRecord


def report_record(session: Session, round_number: int, metrics: pb.RoundMetrics) -> ReportRecord:
    return ReportRecord(client_id=session.client_id, round=round_number, metrics=metrics.SerializeToString())


async def commit_report(engine: RunEngine, record: ReportRecord) -> None:
    """Makes a report durable and applies it; to be shielded from the caller's cancellation."""
    is_new = await engine.store.run(lambda store: store.save_report(record))
    fault_point("server.report.committed")
    if is_new:
        count_report(engine, record)
    await engine.apply(Reported(record.client_id, record.round))


def count_report(engine: RunEngine, record: ReportRecord) -> None:
    """Adds a new report that is durable to the results of the run."""
    report = Report.from_record(record)
    engine.metrics_log.add(report)
    engine.history.reported(report)
    if engine.state.phase.is_final:
        engine.final_results.update_summary()
