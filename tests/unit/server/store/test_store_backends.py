"""The store interface, for every back end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_records import (
    CONFIG,
    RUN_ID,
    aggregate_record,
    client_record,
    report_record,
    upload_record,
)

from feddbp_common.errors import ExitCode
from feddbp_server.store import MemoryStore, RunMismatchError, SqliteStore, Store


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "state")
    yield opened
    opened.close()


@pytest.fixture
def begun(store: Store) -> Store:
    store.open_run(RUN_ID, CONFIG)
    return store


class TestAnyStore:
    # --- the run ---

    def test_a_new_run_gets_the_proposed_id(self, store: Store) -> None:
        assert store.open_run("first", CONFIG) == "first"

    def test_a_stored_run_keeps_its_id(self, store: Store) -> None:
        store.open_run("first", CONFIG)
        assert store.open_run("second", CONFIG) == "first"

    def test_another_run_is_refused_and_differences_named(self, store: Store) -> None:
        store.open_run("first", CONFIG)
        store.save_client(client_record(0))
        other = {"method": "feddbp", "rounds": 5, "data": {"alpha": 0.5, "dataset": "digits"}, "seed": 1}
        with pytest.raises(RunMismatchError) as refusal:
            store.open_run("first", json.dumps(other))
        text = str(refusal.value)
        assert "rounds is 3 there and 5 here" in text
        assert "data.alpha is 0.1 there and 0.5 here" in text
        assert "seed is None there and 1 here" in text
        assert "method" not in text
        assert "dataset" not in text
        assert "more" not in text
        assert "--state-dir" in text
        assert "\n" not in text
        assert refusal.value.exit_code == ExitCode.USAGE

    def test_of_many_differences_the_first_are_listed_and_the_rest_counted(self, store: Store) -> None:
        before = {"data": {"alpha": 0.1234567890123}, "a": 1, "b": 1, "c": 1, "d": 1, "e": {"f": 1}}
        after = {"data": {"alpha": 0.5}, "a": 2, "b": 2, "c": 2, "d": 2, "e": {"f": 2}}
        store.open_run("first", json.dumps(before))
        store.save_client(client_record(0))
        with pytest.raises(RunMismatchError) as refusal:
            store.open_run("first", json.dumps(after))
        listed = "; ".join(f"{name} is 1 there and 2 here" for name in "abcd")
        assert f"({listed}; data.alpha is 0.1234567890123 there and 0.5 here; and 1 more); give" in str(refusal.value)

    def test_of_another_method_the_settings_are_not_compared(self, store: Store) -> None:
        store.open_run("first", json.dumps({"method": "fd", "method_settings": {"gamma": 1.0}}))
        store.save_client(client_record(0))
        with pytest.raises(RunMismatchError, match=r"run \(method is 'fd' there and 'local' here\); give"):
            store.open_run("first", json.dumps({"method": "local", "method_settings": {"branch": "linear"}}))

    def test_a_refused_run_changes_nothing(self, begun: Store) -> None:
        begun.save_snapshot("here")
        begun.save_client(client_record(0))
        with pytest.raises(RunMismatchError):
            begun.open_run("other", json.dumps({"method": "local"}))
        assert begun.open_run("other", CONFIG) == RUN_ID
        assert begun.snapshot() == "here"

    def test_a_run_without_clients_gives_way_to_another(self, begun: Store) -> None:
        begun.save_snapshot("here")
        assert begun.stored_config() is None
        assert begun.open_run("other", json.dumps({"method": "local"})) == "other"
        assert begun.snapshot() is None

    def test_a_run_can_be_given_another_configuration(self, begun: Store) -> None:
        begun.save_client(client_record(0))
        begun.replace_config(json.dumps({"method": "local"}))
        assert begun.stored_config() == json.dumps({"method": "local"})
        assert begun.open_run("other", json.dumps({"method": "local"})) == RUN_ID

    def test_results_from_a_round_on_can_be_forgotten(self, begun: Store) -> None:
        for number in range(3):
            begun.save_upload(upload_record(1, number), b"body")
            begun.save_report(report_record(1, number))
        begun.forget_from(1)
        assert [report.round for report in begun.reports()] == [0]
        assert begun.last_upload_before(1, 9) == upload_record(1, 0)

    def test_one_upload_can_be_forgotten(self, begun: Store) -> None:
        for client_id in (1, 2):
            begun.save_upload(upload_record(client_id, 0), b"body")
        begun.forget_upload(1, 0)
        begun.forget_upload(1, 0)
        assert begun.uploads(0) == [upload_record(2, 0)]

    # --- snapshots ---

    def test_a_new_run_has_no_snapshot(self, begun: Store) -> None:
        assert begun.snapshot() is None

    def test_the_newest_snapshot_is_kept(self, begun: Store) -> None:
        begun.save_snapshot("one")
        begun.save_snapshot("zwei é ✓")
        assert begun.snapshot() == "zwei é ✓"

    # --- new members ---

    def test_new_members_are_kept_until_a_snapshot_decides_on_them(self, begun: Store) -> None:
        for client_id in (3, 1, 3, 2):
            begun.add_new_member(client_id)
        assert begun.new_members() == {1, 2, 3}
        begun.forget_new_members({1, 3, 7})
        assert begun.new_members() == {2}

    # --- clients ---

    def test_clients_are_listed_by_id_with_their_records(self, begun: Store) -> None:
        assert begun.clients() == []
        for client_id in (2, 10, 0):
            begun.save_client(client_record(client_id))
        assert begun.clients() == [client_record(0), client_record(2), client_record(10)]

    def test_a_client_that_joins_again_replaces_its_own_record_only(self, begun: Store) -> None:
        begun.save_client(client_record(1))
        begun.save_client(client_record(2))
        begun.save_client(client_record(1, epoch=2))
        assert begun.clients() == [client_record(1, epoch=2), client_record(2)]

    # --- uploads ---

    def test_uploads_of_a_round_are_listed_by_client_id_for_any_order_of_arrival(self, begun: Store) -> None:
        for client_id in (7, 0, 12, 3):
            begun.save_upload(upload_record(client_id, 1), b"body")
        begun.save_upload(upload_record(5, 0), b"body")
        assert begun.uploads(1) == [upload_record(client_id, 1) for client_id in (0, 3, 7, 12)]
        assert begun.uploads(0) == [upload_record(5, 0)]
        assert begun.uploads(2) == []

    def test_an_upload_is_found_by_client_and_round(self, begun: Store) -> None:
        begun.save_upload(upload_record(1, 2), b"body")
        assert begun.upload(1, 2) == upload_record(1, 2)
        assert begun.upload(2, 1) is None
        assert begun.upload(1, 1) is None

    @pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 300])
    def test_a_body_is_read_in_full_or_as_a_prefix(self, begun: Store, body: bytes) -> None:
        begun.save_upload(upload_record(1, 0), b"another client's")
        begun.save_upload(upload_record(2, 0), body)
        record = upload_record(2, 0)
        assert begun.upload_body(record) == body
        for limit in (0, 1, 255, len(body), len(body) + 1):
            assert begun.upload_body(record, limit=limit) == body[:limit]

    def test_the_last_upload_before_a_round_is_the_clients_own_and_newest(self, begun: Store) -> None:
        for client_id, number in ((1, 0), (1, 3), (1, 5), (2, 4)):
            begun.save_upload(upload_record(client_id, number), b"body")
        assert begun.last_upload_before(1, 5) == upload_record(1, 3)
        assert begun.last_upload_before(1, 4) == upload_record(1, 3)
        assert begun.last_upload_before(1, 3) == upload_record(1, 0)
        assert begun.last_upload_before(1, 99) == upload_record(1, 5)
        assert begun.last_upload_before(1, 0) is None
        assert begun.last_upload_before(3, 99) is None

    def test_only_superseded_uploads_are_deleted(self, begun: Store) -> None:
        for client_id, number in ((1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (3, 2)):
            begun.save_upload(upload_record(client_id, number), b"body")
        begun.forget_superseded_uploads(2)
        kept = [(record.client_id, number) for number in range(3) for record in begun.uploads(number)]
        assert kept == [(2, 0), (1, 2), (3, 2)]

    def test_uploads_of_the_open_round_are_never_deleted(self, begun: Store) -> None:
        for number in (0, 1, 2):
            begun.save_upload(upload_record(1, number), b"body")
        begun.forget_superseded_uploads(1)
        assert [len(begun.uploads(number)) for number in (0, 1, 2)] == [0, 1, 1]

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        kept=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12),
        before=st.integers(0, 6),
    )
    def test_uploads_that_personalisation_needs_are_never_deleted(
        self, request: pytest.FixtureRequest, store: Store, kept: set[tuple[int, int]], before: int
    ) -> None:
        """Deletion affects neither uploads of later rounds nor the newest upload of any client."""
        if isinstance(store, SqliteStore):  # a new database for each example would take too long
            store._db.execute("DELETE FROM upload")
            fresh: Store = store
        else:
            fresh = MemoryStore()
        for client_id, number in sorted(kept):
            fresh.save_upload(upload_record(client_id, number), b"body")
        newest = {client: fresh.last_upload_before(client, 99) for client in range(4)}
        later = [fresh.uploads(number) for number in range(before, 5)]
        fresh.forget_superseded_uploads(before)
        assert {client: fresh.last_upload_before(client, 99) for client in range(4)} == newest
        assert [fresh.uploads(number) for number in range(before, 5)] == later
        left = sum(len(fresh.uploads(number)) for number in range(before))
        assert left <= 4

    def test_housekeeping_changes_no_records(self, begun: Store) -> None:
        begun.save_upload(upload_record(), b"body")
        begun.tidy()
        assert begun.upload_body(upload_record()) == b"body"

    def test_testing_whether_the_store_is_writable_changes_nothing(self, begun: Store) -> None:
        begun.save_snapshot("here")
        begun.touch()
        assert begun.snapshot() == "here"
        assert begun.open_run("another", CONFIG) == RUN_ID

    # --- reports ---

    def test_reports_are_listed_by_round_and_client(self, begun: Store) -> None:
        for client_id, number in ((1, 1), (10, 0), (2, 0), (0, 1)):
            begun.save_report(report_record(client_id, number))
        assert [(record.round, record.client_id) for record in begun.reports()] == [(0, 2), (0, 10), (1, 0), (1, 1)]

    def test_of_two_reports_on_one_round_the_first_stays(self, begun: Store) -> None:
        assert begun.save_report(report_record(metrics=b"first"))
        assert not begun.save_report(report_record(metrics=b"second"))
        assert [record.metrics for record in begun.reports()] == [b"first"]

    def test_an_identical_report_is_not_new(self, begun: Store) -> None:
        record = report_record()
        assert begun.save_report(record)
        assert not begun.save_report(record)

    # --- the aggregate ---

    def test_only_the_newest_aggregate_is_kept(self, begun: Store) -> None:
        assert begun.aggregate() is None
        begun.save_aggregate(aggregate_record(1))
        begun.save_aggregate(aggregate_record(2))
        assert begun.aggregate() == aggregate_record(2)

    # --- transactions ---

    def test_what_a_transaction_wrote_is_visible_afterwards(self, begun: Store) -> None:
        with begun.transaction():
            begun.save_snapshot("outer")
            with begun.transaction():
                begun.save_client(client_record(1))
            assert begun.snapshot() == "outer"
        assert begun.snapshot() == "outer"
        assert begun.clients() == [client_record(1)]

    def test_an_error_in_a_transaction_is_raised_from_it(self, begun: Store) -> None:
        with pytest.raises(ZeroDivisionError), begun.transaction():
            raise ZeroDivisionError
        with begun.transaction():
            begun.save_snapshot("still usable")
        assert begun.snapshot() == "still usable"
