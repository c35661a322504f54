"""Events of a run in the log, in the audit log, and as incidents."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from event_logs import event_log_in, session_of

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.reporting.audit import Audit
from feddbp_server.reporting.event_log import EventLog
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.state_machine.events import CloseRound, MembersDropped
from feddbp_server.run.state_machine.state import Phase

REFUSAL = RefusedError(pb.REFUSAL_REASON_WRONG_ROUND, "the run is in round 3", field="round")


class Changes:
    """Counts notifications."""

    count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def changes() -> Changes:
    return Changes()


@pytest.fixture
def event_log(tmp_path: Path, changes: Changes) -> Iterator[EventLog]:
    event_log = event_log_in(tmp_path, changed=changes)
    yield event_log
    event_log.audit.close()


def audited(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "audit.jsonl").read_text().splitlines()]


def test_a_flood_of_refusals_does_not_displace_other_incidents(event_log: EventLog, changes: Changes) -> None:
    for _ in range(1000):
        event_log.refused("Upload", REFUSAL, peer="ipv4:127.0.0.1:5")
    event_log.incident(3, "something that matters")
    before = changes.count
    for _ in range(1000):
        event_log.refused("Upload", REFUSAL, peer="ipv4:127.0.0.1:5")
    assert event_log.incidents[-1].message == "something that matters"
    assert changes.count == before
    assert event_log.audit.refusals == {"wrong_round": 2000}


def test_an_incident_that_repeats_is_one_with_its_count(event_log: EventLog) -> None:
    event_log.incident(None, "the disk is full")
    for _ in range(7):
        event_log.incident(2, "refused Join: in use by another daemon")
    event_log.incident(2, "failed in round 4")
    event_log.incident(3, "refused Join: in use by another daemon")
    event_log.incident(2, "refused Join: in use by another daemon")
    assert [(incident.client_id, incident.shown) for incident in event_log.incidents] == [
        (None, "the disk is full"),
        (2, "failed in round 4"),
        (3, "refused Join: in use by another daemon"),
        (2, "refused Join: in use by another daemon (8 times)"),
    ]


def test_unauthenticated_callers_together_have_a_few_incidents_and_displace_none_of_known_callers(
    event_log: EventLog,
) -> None:
    most = DEFAULT_LIMITS.incidents_of_unauthenticated
    for client in range(DEFAULT_LIMITS.incidents - most):
        event_log.incident(client, f"known caller {client}")
    for number in range(200):  # in the names of many clients
        event_log.incident(number % 40, f"caller {number}", unauthenticated=True)
    shown = [incident.message for incident in event_log.incidents]
    assert shown[-most:] == [f"caller {number}" for number in range(200 - most, 200)]
    assert [message for message in shown if message.startswith("known")] == shown[:-most]
    assert len(shown) == DEFAULT_LIMITS.incidents


def test_a_client_in_a_loop_is_counted_but_does_not_fill_the_disk(
    event_log: EventLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for number in range(500):
            event_log.joined(session_of(1))
            event_log.failed(session_of(1), number, "out of memory")
            event_log.left(session_of(1), "for now")
    assert len(caplog.messages) == 3 * 20
    event_log.joined(session_of(2))
    event_log.audit.close()
    lines = audited(tmp_path)
    written = Counter((line["what"], line["client"]) for line in lines)
    assert written == {("joined", 1): 20, ("failed", 1): 20, ("left", 1): 20, ("joined", 2): 1, ("flood", 1): 3}
    floods = [line for line in lines if line["what"] == "flood"]
    assert [flood.get(what) for flood, what in zip(floods, ("joined", "failed", "left"), strict=True)] == [480] * 3
    assert (event_log.audit.recorded["joined"], event_log.audit.recorded["failed"]) == (501, 500)


def test_client_events_are_audited_again_as_time_passes(tmp_path: Path) -> None:
    now = 0.0
    audit = Audit(tmp_path, clock=lambda: now)
    for _ in range(50):
        audit.record_client_event("failed", client=1)
    now = 10.0
    assert audit.record_client_event("failed", client=1)
    assert not audit.record_client_event("failed", client=1)
    audit.close()
    *_, flood, failed, last = audited(tmp_path)
    assert (flood["what"], flood["failed"], failed["what"]) == ("flood", 30, "failed")
    assert (last["what"], last["failed"]) == ("flood", 1)


def test_one_client_does_not_displace_the_incidents_of_others(event_log: EventLog) -> None:
    event_log.incident(None, "the disk is full")
    event_log.failed(session_of(2), 3, "its own trouble")
    for number in range(500):
        event_log.incident(1, f"trouble {number}")
    assert [(incident.client_id, incident.message) for incident in event_log.incidents] == [
        (None, "the disk is full"),
        (2, "failed in round 4/9: its own trouble"),
        *((1, f"trouble {number}") for number in range(497, 500)),
    ]


def test_a_round_that_closes_with_missing_clients_is_an_incident(event_log: EventLog, tmp_path: Path) -> None:
    event_log.effect(CloseRound(round=4, missing=frozenset()))
    assert not event_log.incidents
    event_log.effect(CloseRound(round=4, missing=frozenset({7, 2})))
    assert [incident.message for incident in event_log.incidents] == ["round 5/9 closed without clients 2, 7"]
    (noted,) = audited(tmp_path)
    assert (noted["what"], noted["round"], noted["clients"]) == ("closed_without", 4, [2, 7])


def test_dropped_clients_are_in_the_audit_log(event_log: EventLog, tmp_path: Path) -> None:
    event_log.effect(MembersDropped(frozenset({5})))
    (noted,) = audited(tmp_path)
    assert (noted["what"], noted["clients"]) == ("dropped", [5])


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (Phase.COLLECTING, Phase.PAUSED, ["paused"]),
        (Phase.PAUSED, Phase.COLLECTING, ["resumed"]),
        (Phase.COLLECTING, Phase.EVALUATING, []),
        (Phase.PAUSED, Phase.FAILED, []),
    ],
)
def test_only_pausing_and_resuming_are_logged_as_an_operators(
    before: Phase, now: Phase, what: list[str], event_log: EventLog, tmp_path: Path
) -> None:
    event_log.phase(before, now)
    assert [line["what"] for line in audited(tmp_path)] == what


def test_storage_trouble_and_its_end_are_reported(event_log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        event_log.storage("the disk is full")
        event_log.storage("")
    assert [incident.message for incident in event_log.incidents] == ["the disk is full"]
    assert caplog.messages == [
        "the disk is full; nothing is accepted until it can be written",
        "the state directory can be used again",
    ]
