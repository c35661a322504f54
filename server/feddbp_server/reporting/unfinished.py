"""The results of a run so far, from its database, which a server may be using."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from feddbp_common.artifacts import DATABASE_NAME
from feddbp_common.config.run import RunConfig
from feddbp_server.reporting.metrics_log import Report
from feddbp_server.reporting.summary import RunOutcome, summarise
from feddbp_server.run.sessions import Sessions
from feddbp_server.run.snapshot import RunSnapshot
from feddbp_server.run.state_machine.state import RunState
from feddbp_server.store import ClientRecord, ReportRecord, StoreError
from feddbp_server.store.stored_run import database_in, open_read_only

_CLIENTS: Final = "SELECT client_id, epoch, session_sha256, data, capabilities FROM client ORDER BY client_id"
_REPORTS: Final = "SELECT client_id, round, metrics FROM report ORDER BY round, client_id"


def summarise_unfinished(state_dir: Path) -> dict[str, Any] | None:
    """The summary of the run so far, with its phase as the outcome; None if there is no run in the directory.

    It takes no lock and writes nothing. The global state is left out: its digest is that of a round in between.
    """
    if database_in(state_dir) is None:
        return None
    with _reading(state_dir) as database:
        row = database.execute("SELECT run_id, config, progress FROM run").fetchone()
        return None if row is None else _summary(database, *row)


def stored_metrics(state_dir: Path) -> Iterator[dict[str, Any]]:
    """What the lines of `metrics.jsonl` say, from the database of a run, which has them all."""
    with _reading(state_dir) as database:
        for report in _reports(database):
            yield report.as_line()


@contextmanager
def _reading(state_dir: Path) -> Iterator[sqlite3.Connection]:
    path = state_dir / DATABASE_NAME
    try:
        with closing(open_read_only(path)) as database:
            yield database
    except (sqlite3.Error, DecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def _summary(database: sqlite3.Connection, run_id: str, config: str, progress: str | None) -> dict[str, Any]:
    snapshot = RunSnapshot.from_json(progress) if progress else RunSnapshot(state=RunState(), seconds=0.0)
    sessions = Sessions(lease=timedelta(0))
    sessions.restore((ClientRecord(*row) for row in database.execute(_CLIENTS)), now=0.0)
    outcome = RunOutcome(
        config=RunConfig.model_validate(json.loads(config)),
        run_id=run_id,
        sessions=sessions.all(),
        phase=snapshot.state.phase,
        reason=snapshot.state.reason,
        completed_rounds=snapshot.state.round,
        seconds=snapshot.seconds,
        prototypes_sha256="",
        began_with=snapshot.state.began_with,
    )
    return summarise(outcome, _reports(database))


def _reports(database: sqlite3.Connection) -> Iterator[Report]:
    return (Report.from_record(ReportRecord(*row)) for row in database.execute(_REPORTS))
