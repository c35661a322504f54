"""A release is drawn once, stored before it is in the ledger, and in the ledger before it is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feddbp_client.privacy.ledger import Entry, Ledger
from feddbp_client.privacy.release import PrivateRelease, prepare_release
from feddbp_common.artifacts import RELEASE_NAME, client_directory
from feddbp_common.config.exchange import PrivacyConfig
from feddbp_common.differential_privacy.mechanism import Table
from feddbp_common.errors import ConfigurationError

EXACT: Table = np.arange(30, dtype=np.int64).reshape(5, 6)


def release_of(state_dir: Path, *, run: str = "run", budget: float = 8.0, **privacy: Any) -> PrivateRelease:
    directory = client_directory(state_dir, run, 3)
    directory.mkdir(parents=True, exist_ok=True)
    config = PrivacyConfig(dp="frozen", **privacy)
    release = prepare_release(config, directory, run_id=run, client_id=3, budget=budget)
    assert release is not None
    return release


def lines(state_dir: Path) -> list[dict[str, Any]]:
    path = state_dir / "client-3.ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_release_is_drawn_once_and_returned_ever_after(tmp_path: Path) -> None:
    first = release_of(tmp_path)(lambda: EXACT)
    assert (first != EXACT).any()

    def not_again() -> Table:
        raise AssertionError("the exact table is needed once")

    np.testing.assert_array_equal(release_of(tmp_path)(not_again), first)
    assert (client_directory(tmp_path, "run", 3) / RELEASE_NAME).stat().st_mode & 0o777 == 0o600
    (entry,) = lines(tmp_path)
    assert entry["run_id"] == "run"
    assert 1.99 < entry["epsilon"] <= 2
    assert entry["delta"] == 1e-5


def test_a_stored_release_that_is_not_in_the_ledger_is_entered_and_sent(tmp_path: Path) -> None:
    first = release_of(tmp_path)(lambda: EXACT)
    (tmp_path / "client-3.ledger.jsonl").unlink()
    np.testing.assert_array_equal(release_of(tmp_path)(lambda: EXACT), first)
    assert len(lines(tmp_path)) == 1


def test_clients_whose_sum_alone_is_seen_share_the_noise(tmp_path: Path) -> None:
    exact: Table = np.zeros((100, 100), dtype=np.int64)
    config = PrivacyConfig(dp="frozen")
    deviations = []
    for run, sharers in (("alone", 1), ("shared", 16)):
        directory = client_directory(tmp_path, run, 3)
        directory.mkdir(parents=True)
        release = prepare_release(config, directory, run_id=run, client_id=3, budget=8.0, sharers=sharers)
        assert release is not None
        deviations.append(release(lambda: exact).std())
    assert deviations[0] / deviations[1] == pytest.approx(4, rel=0.1)


def test_a_lost_release_is_not_drawn_again(tmp_path: Path) -> None:
    release_of(tmp_path)(lambda: EXACT)
    (client_directory(tmp_path, "run", 3) / RELEASE_NAME).unlink()
    with pytest.raises(ConfigurationError, match=r"has made its release of run run before, and .* is gone"):
        release_of(tmp_path)


def test_the_budget_is_over_all_runs(tmp_path: Path) -> None:
    for run in ("first", "second"):
        release_of(tmp_path, run=run, budget=5.0, epsilon=3.0)(lambda: EXACT)
    refused = r"has spent epsilon 4\.\d+ in 2 releases and may spend 5 in all, but .* would make it 5\.\d+"
    with pytest.raises(ConfigurationError, match=refused):
        release_of(tmp_path, run="third", budget=5.0, epsilon=3.0)
    assert len(lines(tmp_path)) == 2
    release_of(tmp_path, run="second", budget=5.0, epsilon=3.0)(lambda: EXACT)  # again, which costs nothing
    assert len(lines(tmp_path)) == 2


def test_a_run_that_wants_more_than_the_budget_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="client 3 may spend 8 in all, but this run's release would make it 9"):
        release_of(tmp_path, epsilon=9.0)
    assert not (client_directory(tmp_path, "run", 3) / RELEASE_NAME).exists()


def test_a_budget_that_was_spent_meanwhile_is_found_before_sending(tmp_path: Path) -> None:
    release = release_of(tmp_path, budget=2.5)
    release_of(tmp_path, run="other", budget=2.5)(lambda: EXACT)
    with pytest.raises(ConfigurationError, match="raise --epsilon-budget"):
        release(lambda: EXACT)


@pytest.mark.parametrize("text", ["{", "[]\n", '{"run_id": "a"}\n', '{"run_id": 1, "noise_multiplier": -1}\n'])
def test_a_damaged_ledger_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "client-3.ledger.jsonl").write_text(text)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        release_of(tmp_path)


def test_a_damaged_release_is_refused(tmp_path: Path) -> None:
    release_of(tmp_path)(lambda: EXACT)
    (client_directory(tmp_path, "run", 3) / RELEASE_NAME).write_bytes(b"nonsense")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        release_of(tmp_path)(lambda: EXACT)


def test_the_ledger_says_what_is_spent(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", client_id=0, budget=10.0)
    assert ledger.spent(1e-5) == 0
    ledger.record(Entry(run_id="a", noise_multiplier=2.149, epsilon=2.0, delta=1e-5))
    assert ledger.spent(1e-5) == pytest.approx(2.0, rel=1e-3)
    assert ledger.has("a")
    assert not ledger.has("b")
