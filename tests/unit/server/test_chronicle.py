"""What people are told of a run: in the log, in the audit log, and as incidents."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.audit import Audit
from feddbp_server.chronicle import Chronicle
from feddbp_server.refusals import RefusedError
from feddbp_server.rounds import CloseRound, MembersDropped, Phase

REFUSAL = RefusedError(pb.REFUSAL_REASON_WRONG_ROUND, "the run is in round 3", field="round")


class Changes:
    """Counts how often whoever watches was told."""

    count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def changes() -> Changes:
    return Changes()


@pytest.fixture
def chronicle(tmp_path: Path, changes: Changes) -> Iterator[Chronicle]:
    audit = Audit(tmp_path, clock=lambda: 0.0)  # time stands still, so what may be written is not renewed
    yield Chronicle(audit, changed=changes)
    audit.close()


def audited(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "audit.jsonl").read_text().splitlines()]


def test_a_flood_of_refusals_hides_nothing_else(chronicle: Chronicle, changes: Changes) -> None:
    for _ in range(1000):
        chronicle.refused("Upload", REFUSAL, peer="ipv4:127.0.0.1:5")
    chronicle.incident(3, "something that matters")
    told = changes.count
    for _ in range(1000):
        chronicle.refused("Upload", REFUSAL, peer="ipv4:127.0.0.1:5")
    assert chronicle.incidents[-1].message == "something that matters"
    assert changes.count == told
    assert chronicle.audit.refusals == {"wrong_round": 2000}


def test_a_round_that_closes_without_somebody_is_an_incident(chronicle: Chronicle, tmp_path: Path) -> None:
    chronicle.effect(CloseRound(round=4, missing=frozenset()))
    assert not chronicle.incidents
    chronicle.effect(CloseRound(round=4, missing=frozenset({7, 2})))
    assert [incident.message for incident in chronicle.incidents] == ["round 4 closed without client 2, client 7"]
    (noted,) = audited(tmp_path)
    assert (noted["what"], noted["round"], noted["clients"]) == ("closed_without", 4, [2, 7])


def test_who_was_dropped_is_in_the_audit_log(chronicle: Chronicle, tmp_path: Path) -> None:
    chronicle.effect(MembersDropped(frozenset({5})))
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
def test_only_pauses_and_their_ends_are_an_operators(
    before: Phase, now: Phase, what: list[str], chronicle: Chronicle, tmp_path: Path
) -> None:
    chronicle.phase(before, now)
    assert [line["what"] for line in audited(tmp_path)] == what


def test_trouble_with_the_storage_is_told_and_so_is_its_end(
    chronicle: Chronicle, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        chronicle.storage("the disk is full")
        chronicle.storage("")
    assert [incident.message for incident in chronicle.incidents] == ["the disk is full"]
    assert caplog.messages == [
        "the disk is full; nothing is accepted until it can be",
        "the state directory can be used again",
    ]
