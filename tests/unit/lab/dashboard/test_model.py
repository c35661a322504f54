"""What a page receives of a run: everything once, and then what is new."""

from __future__ import annotations

from typing import Any

from feddbp_lab.dashboard.model import Cursor, ReportRow, RunModel


def row(client: int, number: int, **losses: float) -> ReportRow:
    values: dict[str, Any] = dict.fromkeys(("train", "evaluate", "collect"), 1.0)
    return ReportRow(
        client=client,
        round=number,
        accuracy=0.5,
        samples=10,
        up=1,
        down=2,
        has_trained=bool(losses),
        losses=losses,
        **values,
    )


def started() -> RunModel:
    model = RunModel()
    model.start({"id": "first"})
    return model


async def test_a_page_receives_everything_once_and_then_only_what_is_new() -> None:
    model, cursor = started(), Cursor()
    model.report(row(0, 0, total=2.0))
    first = model.changes_since(cursor)
    assert first["reset"]
    assert first["reports"][0] == [0]
    assert model.changes_since(cursor) == {}

    model.report(row(1, 0, total=4.0))
    model.report(row(1, 0, total=4.0))  # a stream that was reconnected repeats it
    changes = model.changes_since(cursor)
    assert changes.keys() == {"reports", "losses"}
    assert changes["reports"][0] == [1]
    assert changes["losses"] == {0: {"total": 3.0}}


async def test_only_activities_that_changed_are_sent() -> None:
    model, cursor = started(), Cursor()
    model.set_status({"phase": "collecting"}, {0: {"activity": "idle"}, 1: {"activity": "idle"}})
    model.changes_since(cursor)
    model.set_status({"phase": "collecting"}, {0: {"activity": "idle"}, 1: {"activity": "training"}})
    assert model.changes_since(cursor)["activities"] == {1: {"activity": "training"}}


async def test_a_round_that_is_repeated_counts_once() -> None:
    model = started()
    for _ in range(2):
        model.close_round({"round": 0})
    assert [closed["round"] for closed in model.rounds] == [0]


async def test_another_run_on_the_server_begins_anew() -> None:
    model, cursor = started(), Cursor()
    model.report(row(0, 0))
    model.changes_since(cursor)
    model.start({"id": "second"})
    changes = model.changes_since(cursor)
    assert changes["reset"]
    assert changes["run"] == {"id": "second"}
    assert "reports" not in changes


async def test_a_change_wakes_who_waits_for_it() -> None:
    model = started()
    upcoming = model.upcoming_change()
    model.report(row(0, 0))
    assert upcoming.is_set()


async def test_losses_that_are_not_finite_are_left_out() -> None:
    model = started()
    model.report(row(0, 0, total=float("nan")))
    model.report(row(1, 0, total=1.0))
    assert model.changes_since(Cursor())["losses"] == {0: {"total": 1.0}}
