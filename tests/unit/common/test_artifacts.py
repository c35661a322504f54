from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from feddbp_common import artifacts

ROOT = Path(__file__).parents[3]
NAMES = {constant: value for constant, value in vars(artifacts).items() if constant.endswith("_NAME")}
SHARED = {
    artifacts.DATABASE_NAME,
    artifacts.SERVER_LOCK_NAME,
    artifacts.ENDPOINT_NAME,
    artifacts.METRICS_NAME,
    artifacts.SUMMARY_NAME,
    artifacts.AUDIT_NAME,
    artifacts.CHECKPOINT_NAME,
    artifacts.CLIENT_LOCK_NAME,
}


def test_file_names_are_those_that_existing_state_directories_have() -> None:
    assert NAMES == {
        "CLIENT_FORMAT_NAME": "format.json",
        "DATABASE_NAME": "run.sqlite3",
        "BODIES_NAME": "run.sqlite3-uploads",
        "SERVER_LOCK_NAME": "server.lock",
        "ENDPOINT_NAME": "endpoint.json",
        "METRICS_NAME": "metrics.jsonl",
        "PACKED_METRICS_NAME": "metrics.jsonl.gz",
        "ROUNDS_NAME": "rounds.jsonl",
        "CLIENTS_NAME": "clients.jsonl",
        "PROTOTYPES_DIR_NAME": "prototypes",
        "CLIENT_PROTOTYPES_NAME": "clients.npz",
        "SUMMARY_NAME": "summary.json",
        "AUDIT_NAME": "audit.jsonl",
        "CHECKPOINT_NAME": "checkpoint.safetensors",
        "RELEASE_NAME": "release.npy",
        "SESSION_NAME": "session.json",
        "SUM_JOURNAL_NAME": "secure_sum.json",
        "CLIENT_LOCK_NAME": "daemon.lock",
        "DATA_CACHE_NAME": "data-cache",
        "CURVES_NAME": "curves.png",
        "AUDIT_PICTURE_NAME": "privacy.png",
        "CELL_CONFIG_NAME": "config.json",
        "CELL_COST_NAME": "cost.json",
        "CELL_FAILURE_NAME": "failure.json",
        "CELL_LOCK_NAME": ".running",
        "RUNNER_LOCK_NAME": ".runner",
        "PLANNING_LOCK_NAME": ".planning",
        "REPORT_PAGE_NAME": "index.html",
        "TOKENS_NAME": "tokens.txt",
    }


def test_a_clients_directory_is_where_existing_checkpoints_are() -> None:
    assert artifacts.client_directory(Path("state"), "run", 3) == Path("state/run/client-3")


def _strings(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("folder", ["server", "client", "lab", "benchmarks", "deploy"])
def test_no_package_spells_a_shared_file_name_itself(folder: str) -> None:
    spelled = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in _strings(path.read_text(encoding="utf-8"))
        if text in SHARED
    ]
    assert spelled == [], "use the constants of feddbp_common.artifacts"
