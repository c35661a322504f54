"""Names on disk that more than one package or the user relies on; renaming one orphans existing files.

Names of certificates and keys are in `feddbp_common.rpc.credentials`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

# The server's --state-dir

DATABASE_NAME: Final = "run.sqlite3"
"""Written by the server, which resumes the run from it; copied by backups."""
BODIES_NAME: Final = "run.sqlite3-uploads"
"""Written by the server beside the database, which it belongs to: the bodies of uploads. A backup has them inside."""
SERVER_LOCK_NAME: Final = "server.lock"
"""Locked by the server while it runs; the experiment runner waits for the lock before it reuses a cell."""
ENDPOINT_NAME: Final = "endpoint.json"
"""Written by the server once it listens; the lab and benchmarks read host and port from it."""
METRICS_NAME: Final = "metrics.jsonl"
PACKED_METRICS_NAME: Final = "metrics.jsonl.gz"
"""Written by the server, one line per client and round; read by `feddbp demo`, `report` and `experiment`."""
SUMMARY_NAME: Final = "summary.json"
"""Written by the server when the run ends; read by `feddbp demo`, `report` and `experiment`."""
ROUNDS_NAME: Final = "rounds.jsonl"
"""Written by the server, one line per round: its duration and the times of its clients; read by the dashboard."""
CLIENTS_NAME: Final = "clients.jsonl"
"""Written by the server, one line per client that joins: its data and model; read by the dashboard."""
PROTOTYPES_DIR_NAME: Final = "prototypes"
"""Written by the server of a run that shares prototypes with operators: snapshots of them; read by the dashboard."""
CLIENT_PROTOTYPES_NAME: Final = "clients.npz"
"""In that directory, written at the end of the run: how the prototypes of each client differ from the global ones."""
AUDIT_NAME: Final = "audit.jsonl"
"""Written by the server, one line per join, upload or refusal; read by operators."""

# A client's --state-dir

DATA_CACHE_NAME: Final = "data-cache"
"""Written by clients with a large image folder: its decoded images; may be removed while no client runs."""

# A client's directory, RUN/client-ID under its --state-dir


def client_directory(state_dir: Path, run_id: str, client_id: int) -> Path:
    """Where a client keeps its state of one run."""
    return state_dir / run_id / f"client-{client_id}"


CHECKPOINT_NAME: Final = "checkpoint.safetensors"
"""Written by the client after each round; read when it resumes, by `feddbp predict` and `feddbp export`."""
RELEASE_NAME: Final = "release.npy"
"""Written by a client of a run with differential privacy, once: what it has released; read when it resumes."""
SESSION_NAME: Final = "session.json"
"""Written by the client at join, after its last report and at the end, mode 0600; read when it rejoins, or finds no
server."""
SUM_JOURNAL_NAME: Final = "secure_sum.json"
"""Written by the client of a run with secure sums, mode 0600: its secret of the newest round, and what it has answered;
read when it resumes the round."""
CLIENT_FORMAT_NAME: Final = "format.json"
"""Written by the client when it opens its directory: the format of the files in it, and the version that wrote them."""
CLIENT_LOCK_NAME: Final = "daemon.lock"
"""Locked by the client while it runs; the experiment runner waits for the lock before it reuses a cell."""

# The lab's output directories

CURVES_NAME: Final = "curves.png"
"""Written by `feddbp demo` and `feddbp report`, for people."""
AUDIT_PICTURE_NAME: Final = "privacy.png"
"""Written by `feddbp privacy audit`, for people."""
CELL_CONFIG_NAME: Final = "config.json"
"""Written by the experiment runner when a cell starts; read when it resumes the cell and by `experiment status`."""
CELL_COST_NAME: Final = "cost.json"
"""Written by the experiment runner at each attempt at a cell: its CPU time so far, the number of attempts, the node;
read by `experiment status` and `experiment report`."""
CELL_FAILURE_NAME: Final = "failure.json"
"""Written by the experiment runner when a cell fails; read by `experiment status` and `experiment report`."""
CELL_LOCK_NAME: Final = ".running"
"""Locked by the experiment runner while it works on a cell; `experiment status` tests the lock."""
RUNNER_LOCK_NAME: Final = ".runner"
"""Locked by the experiment runners of an --out directory together; `experiment status` tests the lock."""
PLANNING_LOCK_NAME: Final = ".planning"
"""Locked by an experiment runner while it writes a plan or the report of an --out directory."""
REPORT_PAGE_NAME: Final = "index.html"
"""Written by `feddbp experiment report`, for people."""
TOKENS_NAME: Final = "tokens.txt"
"""Written by `feddbp certs tokens`; read by the server as its --token-file."""
