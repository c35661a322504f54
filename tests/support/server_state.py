"""A server observed from outside: digests of its durable state and of its status, and its resident memory."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import BODIES_NAME, DATABASE_NAME
from feddbp_server.store.body_log import Place

_KEPT = {
    "run": "run_id, config, progress",
    "client": "client_id, epoch, session_sha256, data, capabilities",
    "upload": "round, client_id, sha256, manifest, body, start, length",
    "report": "round, client_id, metrics",
    "aggregate": "completed_rounds, manifest, body",
}
"""Every table of the database, and its columns with the key first."""


def durable_digest(state_dir: Path) -> str:
    """SHA-256 over every row of the database and every body: run, progress, sessions, uploads, reports, aggregate."""
    digest = hashlib.sha256()
    connection = sqlite3.connect(f"file:{state_dir / DATABASE_NAME}?mode=ro", uri=True)
    try:
        for table, columns in _KEPT.items():
            for row in connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2"):
                digest.update(repr((table, row)).encode())
                if table == "upload" and row[5] is not None:
                    digest.update(read_bytes(state_dir / BODIES_NAME, Place(*row[5:])))
    finally:
        connection.close()
    return digest.hexdigest()


def read_bytes(bodies: Path, place: Place) -> bytes:
    """A record with its header."""
    with bodies.open("rb") as file:
        file.seek(place.start)
        return file.read(place.end - place.start)


def run_digest(status: pb.RunStatus) -> str:
    """SHA-256 over the status of the run, without times, addresses and counters of calls."""
    lasting = pb.RunStatus()
    lasting.CopyFrom(status)
    for passing in ("incidents", "refusals", "time_left", "health"):
        lasting.ClearField(passing)
    for client in lasting.clients:
        client.ClearField("last_seen")
        client.ClearField("progress")
        client.ClearField("peer")
    return hashlib.sha256(lasting.SerializeToString(deterministic=True)).hexdigest()


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return _from_status(pid, "VmRSS")


def peak_resident_bytes(pid: int) -> int:
    """Peak resident memory of a process."""
    return _from_status(pid, "VmHWM")


def _from_status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no {name}: is it running?")
