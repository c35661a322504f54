"""What a run that has ended shows of its audit log is what its status showed while it ran."""

from __future__ import annotations

import json
from pathlib import Path

from event_logs import event_log_in, session_of

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import AUDIT_NAME
from feddbp_lab.results.run_files import RunFiles
from feddbp_server.aggregation.screening import Deviation, Screening
from feddbp_server.reporting.audit import Audit
from feddbp_server.reporting.event_log import AUDITED_INCIDENTS
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.state_machine.events import ClientsSetAside, CloseRound, MembersDropped, RunBegan

DEVIATION = Deviation(part="prototypes", norm=100.0, times=50.0)
PEER = "ipv4:1.2.3.4:5"


def test_every_kind_of_incident_is_shown_once_the_run_has_ended(tmp_path: Path) -> None:
    events = event_log_in(tmp_path)
    events.effect(RunBegan(members=frozenset({0, 1}), missing=frozenset({8})))
    events.alone(0)
    events.failed(session_of(1), 2, "out of memory")
    events.skipped(session_of(2), 2, "training diverged")
    events.refused("Upload", RefusedError(pb.REFUSAL_REASON_WRONG_ROUND, "the run is in round 3"), peer=PEER)
    screening = Screening(
        left_out={3: DEVIATION}, clipped={4: DEVIATION}, capped={5: 900}, samples=100.0, unusable="infinite"
    )
    events.screened(2, screening)
    events.effect(CloseRound(round=2, missing=frozenset({6, 7})))
    events.effect(MembersDropped(frozenset({6})))
    events.effect(ClientsSetAside(frozenset({7})))
    events.audit.close()

    kinds = {json.loads(line)["what"] for line in (tmp_path / AUDIT_NAME).read_text().splitlines()}
    assert kinds == AUDITED_INCIDENTS
    shown = RunFiles(tmp_path).troubles()["incidents"]
    assert [entry["client"] for entry in shown] == [incident.client_id for incident in events.incidents]
    why = "the norm of its prototypes is 100, 50 times the median"
    assert [entry["message"] for entry in shown] == [
        "began without client 8",
        "training alone",
        "failed in round 3: out of memory",
        "skipped in round 3: training diverged",
        "refused: the run is in round 3",
        "state unusable in round 3: infinite",
        f"left out in round 3: {why}",
        f"clipped in round 3: {why}",
        "capped in round 3: at a weight of 100 samples, of 900 that were declared",
        "closed without clients 6-7 in round 3",
        "dropped client 6",
        "set aside client 7",
    ]


def test_incidents_that_repeat_are_one_with_their_count(tmp_path: Path) -> None:
    events = event_log_in(tmp_path)
    for client in (2, 1, 2):
        refusal = RefusedError(pb.REFUSAL_REASON_ID_IN_USE, "in use")
        refusal.client_id = client
        events.refused("Join", refusal, peer=PEER)
    events.audit.close()
    shown = RunFiles(tmp_path).troubles()["incidents"]
    assert [(entry["client"], entry["message"]) for entry in shown] == [
        (1, "refused: in use"),
        (2, "refused: in use (2 times)"),
    ]


def test_refused_calls_are_all_counted_whether_or_not_each_was_written(tmp_path: Path) -> None:
    events = event_log_in(tmp_path)
    for reason in (pb.REFUSAL_REASON_WRONG_ROUND, pb.REFUSAL_REASON_STALE_SESSION):
        for _ in range(300):
            events.refused("Upload", RefusedError(reason, "refused"), peer=PEER)
    events.audit.close()
    assert RunFiles(tmp_path).troubles()["refusals"] == events.audit.refusals
    assert events.audit.refusals.total() == 600


def test_a_log_that_was_continued_in_a_new_file_is_read_from_the_one_before(tmp_path: Path) -> None:
    audit = Audit(tmp_path, limits=Limits(audit_bytes=1000))
    for number in range(10):
        audit.record("skipped", client=number, round=0, cause="training diverged")
    audit.close()
    assert (tmp_path / f"{AUDIT_NAME}.1").exists()
    shown = RunFiles(tmp_path).troubles()["incidents"]
    assert [entry["client"] for entry in shown] == list(range(10))


def test_refused_calls_that_an_earlier_version_only_counted_have_no_reason(tmp_path: Path) -> None:
    audited = {"at": "2026-11-18T12:00:00.000+00:00", "what": "flood", "client": None, "caller": "client-2"}
    (tmp_path / AUDIT_NAME).write_text(json.dumps({**audited, "refusals": 15}) + "\n")
    assert RunFiles(tmp_path).troubles()["refusals"] == {"reason not recorded": 15}
