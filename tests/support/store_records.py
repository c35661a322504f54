"""Sample records; their bytes only have to differ."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from feddbp_common.artifacts import DATABASE_NAME
from feddbp_server.store import AggregateRecord, ClientRecord, ReportRecord, UploadRecord

RUN_ID = "run-1"
CONFIG = json.dumps({"method": "feddbp", "rounds": 3, "data": {"alpha": 0.1, "dataset": "digits"}})


def client_record(client_id: int = 0, *, epoch: int = 1) -> ClientRecord:
    return ClientRecord(
        client_id=client_id,
        epoch=epoch,
        session_sha256=bytes([client_id, epoch]) * 16,
        data=b"data of %d" % client_id,
        capabilities=b"\x00\xff",
    )


def upload_record(client_id: int = 0, round_number: int = 0, *, digest: int = 7) -> UploadRecord:
    return UploadRecord(
        client_id=client_id,
        round=round_number,
        sha256=bytes([digest]) * 32,
        manifest=b"manifest of %d in %d" % (client_id, round_number),
    )


def report_record(client_id: int = 0, round_number: int = 0, *, metrics: bytes = b"fine") -> ReportRecord:
    return ReportRecord(client_id=client_id, round=round_number, metrics=metrics)


def aggregate_record(completed_rounds: int = 1) -> AggregateRecord:
    return AggregateRecord(completed_rounds=completed_rounds, manifest=b"all", body=b"known" * completed_rounds)


def rows(directory: Path, query: str) -> list[Any]:
    """What another connection sees, which is only what is committed."""
    connection = sqlite3.connect(f"file:{directory / DATABASE_NAME}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def uploaded_clients(directory: Path) -> list[int]:
    return [row[0] for row in rows(directory, "SELECT client_id FROM upload ORDER BY client_id")]
