"""Validation of calls and the events of clients, as functions of the state."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from datetime import timedelta

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_machine import ids, policy

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import PayloadError, PayloadTooLargeError
from feddbp_common.printable import printable
from feddbp_server.rpc.status_codes import STATUS_OF
from feddbp_server.rpc.upload import check_upload
from feddbp_server.run.admission.limits import DEFAULT_LIMITS
from feddbp_server.run.admission.refusals import REASON_NAMES, RefusedError, as_refusal
from feddbp_server.run.admission.validation import (
    check_download,
    check_join,
    check_progress,
    check_report,
)
from feddbp_server.run.client_events import event_for
from feddbp_server.run.snapshot import RunSnapshot
from feddbp_server.run.state_machine.state import Phase, RunState

CONFIG = RunConfig(clients=3, data=DataConfig(dataset="custom", classes=2))
ENDED = [Phase.FINISHED, Phase.FAILED, Phase.STOPPED]


def state(phase: Phase = Phase.COLLECTING, number: int = 4, **changed: object) -> RunState:
    usual: dict[str, object] = {"members": ids(0, 1, 2), "selected": ids(0, 1), "observers": ids(2)}
    return RunState(phase=phase, round=number, **{**usual, **changed})  # type: ignore[arg-type]


def join_request(**changed: object) -> pb.JoinRequest:
    usual: dict[str, object] = {
        "run_id": "run-1",
        "client_id": 2,
        "data": pb.DataSummary(label_counts=[0, 5], test_samples=3),
    }
    return pb.JoinRequest(**{**usual, **changed})  # type: ignore[arg-type]


# --- joining ---


@pytest.mark.parametrize("phase", [phase for phase in Phase if not phase.is_final])
def test_a_client_may_join_in_every_phase_but_the_last(phase: Phase) -> None:
    check_join(join_request(), "run-1", CONFIG, state(phase), DEFAULT_LIMITS, required_features=[])


@pytest.mark.parametrize(
    ("changed", "reason", "field"),
    [
        ({"run_id": "run-2"}, pb.REFUSAL_REASON_OTHER_RUN, "run_id"),
        ({"run_id": ""}, pb.REFUSAL_REASON_OTHER_RUN, "run_id"),
        ({"client_id": 3}, pb.REFUSAL_REASON_UNKNOWN_CLIENT, "client_id"),
        ({"client_id": 2**32 - 1}, pb.REFUSAL_REASON_UNKNOWN_CLIENT, "client_id"),
        ({"data": pb.DataSummary()}, pb.REFUSAL_REASON_INVALID_REQUEST, "label_counts"),
        ({"data": pb.DataSummary(label_counts=[5])}, pb.REFUSAL_REASON_INVALID_REQUEST, "label_counts"),
        ({"data": pb.DataSummary(label_counts=[5, 5, 5])}, pb.REFUSAL_REASON_INVALID_REQUEST, "label_counts"),
        ({"data": pb.DataSummary(label_counts=[0, 0])}, pb.REFUSAL_REASON_INVALID_REQUEST, "label_counts"),
        ({"data": pb.DataSummary(label_counts=[2**31, 1])}, pb.REFUSAL_REASON_INVALID_REQUEST, "label_counts"),
        (
            {"data": pb.DataSummary(label_counts=[1, 1], test_samples=2**31)},
            pb.REFUSAL_REASON_INVALID_REQUEST,
            "test_samples",
        ),
        ({"previous_session": "x" * 257}, pb.REFUSAL_REASON_INVALID_REQUEST, "previous_session"),
        ({"capabilities": pb.Capabilities(architecture="a\nb")}, pb.REFUSAL_REASON_INVALID_REQUEST, "architecture"),
        ({"capabilities": pb.Capabilities(architecture="x" * 257)}, pb.REFUSAL_REASON_INVALID_REQUEST, "architecture"),
        ({"capabilities": pb.Capabilities(device="\x1b[31m")}, pb.REFUSAL_REASON_INVALID_REQUEST, "device"),
        (
            {"capabilities": pb.Capabilities(software_version="\0")},
            pb.REFUSAL_REASON_INVALID_REQUEST,
            "software_version",
        ),
    ],
)
def test_a_client_that_does_not_fit_the_run_is_refused(changed: dict[str, object], reason: int, field: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        check_join(join_request(**changed), "run-1", CONFIG, state(), DEFAULT_LIMITS, required_features=[])
    assert (refusal.value.details.reason, refusal.value.details.field) == (reason, field)


def test_a_run_id_from_the_wire_is_shown_in_one_short_line() -> None:
    with pytest.raises(RefusedError) as refusal:
        check_join(join_request(run_id="x\ny" * 1000), "run-1", CONFIG, state(), DEFAULT_LIMITS, required_features=[])
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("phase", ENDED)
def test_joining_a_run_that_is_over_is_refused(phase: Phase) -> None:
    with pytest.raises(RefusedError, match="the run is over: it broke") as refusal:
        check_join(
            join_request(), "run-1", CONFIG, state(phase, reason="it broke"), DEFAULT_LIMITS, required_features=[]
        )
    assert refusal.value.details.reason == pb.REFUSAL_REASON_RUN_ENDED


# --- uploads, downloads, reports ---


def test_a_selected_client_may_upload_to_the_open_round() -> None:
    check_upload(0, 4, state())
    check_upload(0, 4, state(Phase.PAUSED, held_phase=Phase.COLLECTING))


@pytest.mark.parametrize("number", [3, 5])
def test_an_upload_to_another_round_is_refused_with_the_open_one(number: int) -> None:
    with pytest.raises(RefusedError) as refusal:
        check_upload(0, number, state())
    details = refusal.value.details
    assert (details.reason, details.field, details.current_round) == (pb.REFUSAL_REASON_WRONG_ROUND, "round", 4)


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.AGGREGATING, Phase.EVALUATING])
def test_no_upload_is_admitted_while_no_round_is_open(phase: Phase) -> None:
    for closed in (state(phase), state(Phase.PAUSED, held_phase=phase)):
        with pytest.raises(RefusedError) as refusal:
            check_upload(0, 4, closed)
        assert refusal.value.details.reason == pb.REFUSAL_REASON_WRONG_ROUND


@pytest.mark.parametrize("client", [2, 9])
def test_a_client_that_was_not_selected_must_not_upload(client: int) -> None:
    with pytest.raises(RefusedError) as refusal:
        check_upload(client, 4, state())
    assert refusal.value.details.reason == pb.REFUSAL_REASON_NOT_SELECTED
    assert refusal.value.details.current_round == 4


@pytest.mark.parametrize("phase", ENDED)
def test_after_the_end_every_round_is_refused_as_over(phase: Phase) -> None:
    refusals: tuple[Callable[[], object], ...] = (
        lambda: check_upload(0, 4, state(phase)),
        lambda: check_download(4, state(phase)),
    )
    for refuse in refusals:
        with pytest.raises(RefusedError) as refusal:
            refuse()
        assert refusal.value.details.reason == pb.REFUSAL_REASON_RUN_ENDED


@pytest.mark.parametrize("phase", [Phase.COLLECTING, Phase.AGGREGATING, Phase.EVALUATING, Phase.PAUSED])
def test_the_state_of_the_open_round_may_be_downloaded(phase: Phase) -> None:
    check_download(4, state(phase))
    for number in (3, 5):
        with pytest.raises(RefusedError) as refusal:
            check_download(number, state(phase))
        assert refusal.value.details.reason == pb.REFUSAL_REASON_WRONG_ROUND


def test_there_is_nothing_to_download_before_the_run_begins() -> None:
    with pytest.raises(RefusedError):
        check_download(0, state(Phase.WAITING, 0))


DATA = pb.DataSummary(label_counts=[4, 5], test_samples=5)
"""As declared at join."""


def metrics(correct: int, samples: int) -> pb.RoundMetrics:
    return pb.RoundMetrics(accuracies=[pb.Accuracy(rule="head", correct=correct)], test_samples=samples)


def test_reports_on_this_round_and_earlier_ones_are_admitted() -> None:
    for number in (0, 3, 4):
        check_report(number, metrics(5, 5), DATA, state(), DEFAULT_LIMITS)


def test_reports_on_a_future_round_are_refused() -> None:
    with pytest.raises(RefusedError) as refusal:
        check_report(5, metrics(5, 5), DATA, state(), DEFAULT_LIMITS)
    assert refusal.value.details.reason == pb.REFUSAL_REASON_WRONG_ROUND


def test_more_correct_samples_than_test_samples_are_refused() -> None:
    with pytest.raises(RefusedError) as refusal:
        check_report(4, metrics(6, 5), DATA, state(), DEFAULT_LIMITS)
    details = refusal.value.details
    assert (details.reason, details.field) == (pb.REFUSAL_REASON_INVALID_REQUEST, "accuracies")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"accuracies": [pb.Accuracy(rule="", correct=1)]}, "accuracies"),
        ({"accuracies": [pb.Accuracy(rule="head"), pb.Accuracy(rule="head")]}, "accuracies"),
        ({"accuracies": [pb.Accuracy(rule=str(number)) for number in range(65)]}, "accuracies"),
        ({"accuracies": [pb.Accuracy(rule="two\nlines")]}, "accuracies"),
        ({"inference": "x" * 257}, "inference"),
        ({"test_samples": 2**31}, "test_samples"),
        ({"test_samples": 6}, "test_samples"),  # more than were declared at join
        ({"validation_samples": 2**31}, "validation_samples"),
        ({"validation_samples": 12}, "validation_samples"),
        (
            {"accuracies": [pb.Accuracy(rule="head", correct=1, validation_correct=3)], "validation_samples": 2},
            "accuracies",
        ),
        ({"rare_test_samples": 6}, "rare_test_samples"),
        ({"rare_test_samples": 2, "rare_correct": 3}, "rare_correct"),
        ({"losses": [pb.LossTerm(name="ce", value=math.nan)]}, "losses"),
        ({"losses": [pb.LossTerm(name="ce", value=-math.inf)]}, "losses"),
        ({"losses": [pb.LossTerm(name="", value=1.0)]}, "losses"),
        ({"seconds": pb.Seconds(train=-1.0)}, "seconds"),
        ({"seconds": pb.Seconds(collect=math.inf)}, "seconds"),
        ({"seconds": pb.Seconds(train=1.7e308)}, "seconds"),
        ({"bytes_up": 2**41}, "bytes_up"),
        ({"bytes_down": 2**41}, "bytes_down"),
    ],
)
def test_impossible_reports_are_refused(changed: dict[str, object], field: str) -> None:
    usual: dict[str, object] = {"inference": "head", "test_samples": 5}
    with pytest.raises(RefusedError) as refusal:
        check_report(4, pb.RoundMetrics(**{**usual, **changed}), DATA, state(), DEFAULT_LIMITS)  # type: ignore[arg-type]
    assert (refusal.value.details.reason, refusal.value.details.field) == (pb.REFUSAL_REASON_INVALID_REQUEST, field)
    assert "\n" not in str(refusal.value)


def test_progress_beyond_the_number_of_epochs_is_refused() -> None:
    check_progress(pb.Progress(epochs_done=10, epochs=10))
    with pytest.raises(RefusedError) as refusal:
        check_progress(pb.Progress(epochs_done=11, epochs=10))
    assert refusal.value.details.field == "epochs_done"


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=40), st.integers(1, 30))
def test_texts_from_the_wire_become_one_line(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit


# --- refusals ---


def test_every_reason_of_the_protocol_has_a_status() -> None:
    reasons = set(pb.RefusalReason.values()) - {pb.REFUSAL_REASON_UNSPECIFIED}
    assert reasons == set(STATUS_OF)
    assert grpc.StatusCode.OK not in STATUS_OF.values()
    for reason in reasons:
        assert RefusedError(reason, "no").reason_name in REASON_NAMES


def test_the_statuses_the_design_names_are_those_used() -> None:
    assert STATUS_OF[pb.REFUSAL_REASON_ALREADY_UPLOADED] is grpc.StatusCode.ALREADY_EXISTS
    assert STATUS_OF[pb.REFUSAL_REASON_WRONG_ROUND] is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PayloadError("counts", "class 2 has 0 samples"), pb.REFUSAL_REASON_INVALID_PAYLOAD),
        (PayloadTooLargeError("total_bytes", "9 bytes"), pb.REFUSAL_REASON_TOO_LARGE),
    ],
)
def test_a_refused_payload_keeps_its_field_and_message(error: PayloadError, reason: int) -> None:
    refusal = as_refusal(error)
    assert (refusal.details.reason, refusal.details.field) == (reason, error.field)
    assert str(refusal) == str(error)
    assert not refusal.details.HasField("current_round")


# --- events of clients ---


def event_of(client: int, where: RunState, *, draining: bool = False, deadline: float | None = 10.0) -> pb.RoundEvent:
    rules = policy(deadline=None if deadline is None else timedelta(seconds=deadline))
    return event_for(client, where, rules, draining=draining)


def test_members_receive_the_open_round_and_whether_they_are_selected() -> None:
    trains, watches = event_of(0, state()).round_opened, event_of(2, state()).round_opened
    assert (trains.round, trains.selected) == (4, True)
    assert (watches.round, watches.selected) == (4, False)
    assert trains.deadline.ToTimedelta() == timedelta(seconds=10)
    assert not event_of(0, state(), deadline=None).round_opened.HasField("deadline")


def test_a_late_joiner_receives_waiting() -> None:
    waiting = event_of(9, state(members=ids(0, 1, 2, 9)))
    assert waiting.WhichOneof("event") == "waiting"
    assert "round 5 is in progress" in waiting.waiting.reason


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (state(Phase.WAITING, selected=ids(), observers=ids()), "2 clients"),
        (state(Phase.PAUSED, held_phase=Phase.COLLECTING), "paused"),
    ],
)
def test_a_waiting_client_receives_the_reason(where: RunState, words: str) -> None:
    event = event_of(0, where)
    assert event.WhichOneof("event") == "waiting"
    assert words in event.waiting.reason


def test_every_member_receives_the_final_evaluation() -> None:
    where = state(Phase.EVALUATING, 5, selected=ids(), observers=ids(0, 1, 2))
    assert event_of(1, where).final_evaluation.round == 5
    assert event_of(9, where).WhichOneof("event") == "waiting"


@pytest.mark.parametrize(
    ("phase", "outcome"),
    [
        (Phase.FINISHED, pb.RUN_OUTCOME_FINISHED),
        (Phase.FAILED, pb.RUN_OUTCOME_FAILED),
        (Phase.STOPPED, pb.RUN_OUTCOME_STOPPED),
    ],
)
@pytest.mark.parametrize("draining", [False, True])
def test_every_client_receives_the_outcome(phase: Phase, outcome: int, draining: bool) -> None:
    for client in (0, 2, 9):
        ended = event_of(client, state(phase, reason="why"), draining=draining).run_ended
        assert (ended.outcome, ended.reason) == (outcome, "why")


def test_a_draining_server_sends_a_notice() -> None:
    assert event_of(0, state(), draining=True).WhichOneof("event") == "server_draining"


states = st.builds(
    RunState,
    phase=st.sampled_from(list(Phase)),
    round=st.integers(0, 3),
    members=st.frozensets(st.integers(0, 3)),
    connected=st.frozensets(st.integers(0, 3)),
    selected=st.frozensets(st.integers(0, 3)),
    observers=st.frozensets(st.integers(0, 3)),
    uploaded=st.frozensets(st.integers(0, 3)),
    reported=st.frozensets(st.integers(0, 3)),
    extensions=st.integers(0, 2),
    held_phase=st.none() | st.sampled_from(list(Phase)),
    reason=st.sampled_from(["", "why"]),
)


def one_thing_changed(before: RunState, other: RunState) -> Iterator[RunState]:
    """The state with each field in turn taken from another, and the other state."""
    for part in fields(RunState):
        yield replace(before, **{part.name: getattr(other, part.name)})
    yield other


@settings(max_examples=60, deadline=None)
@given(states, states)
def test_event_streams_are_woken_whenever_a_client_would_receive_another_event(
    before: RunState, other: RunState
) -> None:
    for after in one_thing_changed(before, other):
        if before.phase.is_final and before.phase is after.phase:
            continue  # the reason never changes after the end
        differently = any(event_of(client, before) != event_of(client, after) for client in range(5))
        assert before.client_facing != after.client_facing or not differently


# --- snapshots ---


def test_a_snapshot_without_seconds_can_be_restored() -> None:
    stored = json.loads(RunSnapshot(state=RunState(), seconds=12.5).to_json())
    del stored["seconds"]
    assert RunSnapshot.from_json(json.dumps(stored)).seconds == 0.0


@settings(max_examples=40, deadline=None)
@given(states)
def test_the_durable_part_of_a_state_is_restored(before: RunState) -> None:
    after = RunSnapshot.from_json(RunSnapshot(state=before, seconds=12.5).to_json())
    assert after.seconds == 12.5
    collecting_again = {Phase.AGGREGATING: Phase.COLLECTING}
    assert after.state.phase is collecting_again.get(before.phase, before.phase)
    held = before.held_phase
    assert after.state.held_phase is (None if held is None else collecting_again.get(held, held))
    for part in ("round", "members", "selected", "observers", "extensions", "reason"):
        assert getattr(after.state, part) == getattr(before, part)
    assert (after.state.connected, after.state.deadline) == (ids(), None)


@settings(max_examples=60, deadline=None)
@given(states, states)
def test_what_would_be_written_differently_is_written(before: RunState, other: RunState) -> None:
    for after in one_thing_changed(before, other):
        written = [RunSnapshot(state=where, seconds=0.0).to_json() for where in (before, after)]
        assert before.durable != after.durable or written[0] == written[1]
