"""The audit log is bounded in size, and each caller has its own allowance in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import AUDIT_NAME
from feddbp_server.reporting.audit import Audit
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError

REFUSAL = RefusedError(pb.REFUSAL_REASON_NOT_AUTHORISED, "unknown token", field="token")


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def stopped(directory: Path, **limits: Any) -> Audit:
    """With a stopped clock, so that allowances do not recover."""
    return Audit(directory, limits=Limits(**limits), clock=lambda: 0.0)


def test_a_large_log_is_continued_in_a_new_file_and_the_oldest_removed(tmp_path: Path) -> None:
    audit = stopped(tmp_path, audit_bytes=1_000, audit_files=2)
    for number in range(100):
        audit.record("accepted", client=number)
    audit.close()
    files = [tmp_path / f"{AUDIT_NAME}.2", tmp_path / f"{AUDIT_NAME}.1", tmp_path / AUDIT_NAME]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in files)
    assert all(path.stat().st_size <= 1_200 for path in files)
    clients = [entry["client"] for path in files for entry in entries(path)]
    assert clients == list(range(clients[0], 100))  # none is missing but the oldest


def test_a_large_log_that_cannot_be_renamed_grows_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / f"{AUDIT_NAME}.1" / "in-the-way").mkdir(parents=True)
    audit = stopped(tmp_path, audit_bytes=200, audit_files=1)
    for number in range(20):
        audit.record("accepted", client=number)
    audit.close()
    assert [entry["client"] for entry in entries(tmp_path / AUDIT_NAME)] == list(range(20))
    assert caplog.messages == ["the audit log grows on: a large one cannot be renamed: Is a directory"]


def test_a_restarted_server_continues_the_log_it_finds(tmp_path: Path) -> None:
    for number in range(2):
        audit = stopped(tmp_path)
        audit.record("joined", client=number)
        audit.close()
    assert [entry["client"] for entry in entries(tmp_path / AUDIT_NAME)] == [0, 1]


def test_a_known_caller_is_audited_in_the_middle_of_a_flood_without_authentication(tmp_path: Path) -> None:
    audit = stopped(tmp_path, audited_refusals=10, audited_unauthenticated=30)
    for number in range(5_000):
        audit.record_refusal("Join", REFUSAL, client=1, peer=f"ipv4:10.0.{number % 100}.1:5", caller="")
    assert audit.record_refusal("Join", REFUSAL, client=1, peer="ipv4:10.0.0.1:5", caller="client-2")
    audit.close()
    refused = [entry for entry in entries(tmp_path / AUDIT_NAME) if entry["what"] == "refused"]
    assert [entry.get("caller") for entry in refused] == [None] * 30 + ["client-2"]
    assert audit.refusals["not_authorised"] == 5_001


def test_callers_from_many_hosts_take_a_limited_number_of_allowances(tmp_path: Path) -> None:
    audit = stopped(tmp_path, audited_hosts=50, audited_unauthenticated=10_000)
    for number in range(1_000):
        audit.record_refusal("Join", REFUSAL, client=None, peer=f"ipv6:[::{number:x}]:5", caller="")
    assert len(audit._of_callers) == 51
    audit.close()


def test_what_was_withheld_of_each_caller_is_counted_in_the_end(tmp_path: Path) -> None:
    audit = stopped(tmp_path, audited_refusals=10)
    for _ in range(25):
        audit.record_refusal("Join", REFUSAL, client=2, peer="ipv4:10.0.0.1:5", caller="client-2")
    audit.close()
    (flood,) = [entry for entry in entries(tmp_path / AUDIT_NAME) if entry["what"] == "flood"]
    assert (flood["caller"], flood["refusals"], flood["reasons"]) == ("client-2", 15, {"not_authorised": 15})
