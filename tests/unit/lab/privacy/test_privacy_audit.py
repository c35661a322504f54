"""The audit of a run: attacks that find members where there are any, and nothing where there are none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_federations import run_in_process

from feddbp_common.errors import ConfigurationError
from feddbp_lab.commands.privacy import command
from feddbp_lab.privacy.attacks import Reference, Rows, auc, total_variation
from feddbp_lab.privacy.audit import ALONE, NOTHING, SUM, UPLOAD
from feddbp_lab.privacy.seen import BUCKETS, CLASSES, EXACT

WIDTH = 64


@given(st.lists(st.integers(0, 5), min_size=1), st.lists(st.integers(0, 5), min_size=1))
def test_auc_is_the_share_of_pairs_in_which_the_member_is_ahead(members: list[int], others: list[int]) -> None:
    won = [(one > other) + (one == other) / 2 for one in members for other in others]
    assert auc(np.array(members, float), np.array(others, float)) == pytest.approx(np.mean(won))


@pytest.mark.parametrize(
    ("samples", "low", "high"), [(1, 0.99, 1.0), (5, 0.95, 1.0), (50, 0.6, 0.9), (2000, 0.45, 0.6)]
)
def test_fewer_samples_behind_a_mean_make_its_members_easier_to_find(samples: int, low: float, high: float) -> None:
    random = np.random.default_rng(0)
    mixing = random.normal(size=(WIDTH, WIDTH))

    def draw(count: int) -> Rows:
        return random.normal(size=(count, WIDTH)) @ mixing + 3.0

    reference = Reference.of(draw(1000), np.zeros(1000, dtype=np.int64))
    members, others = draw(samples), draw(500)
    scored = [reference.scores(rows, members.mean(axis=0), 0, weight=1 / samples) for rows in (members, others)]
    assert low <= auc(*scored) <= high


def test_the_distance_of_label_distributions_is_zero_only_for_the_true_one() -> None:
    true = np.array([3.0, 1.0, 0.0])
    assert total_variation(2 * true, true) == 0
    assert total_variation(np.array([0.0, 0.0, 5.0]), true) == 1
    assert total_variation(np.ones(3), true) == pytest.approx(5 / 12)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("clients")
    run_in_process("feddbp", rounds=2, restart_in=directory)
    return directory


def test_a_run_is_audited_from_its_checkpoints(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["audit", str(trained), "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert printed.err.splitlines() == [
        f"feddbp privacy audit: {what} client {number} of 3"
        for what in ("loaded", "computed features of", "attacked")
        for number in (1, 2, 3)
    ]
    assert found["clients"] == 3
    assert {row["attacked"] for row in found["membership"]} == {UPLOAD, SUM}
    assert found["baselines"][ALONE]["auc"] == 1
    assert 0.35 < found["baselines"][NOTHING]["auc"] < 0.65
    assert all(row["auc_low"] <= row["auc"] <= row["auc_high"] for row in found["membership"])
    assert found["labels"][EXACT] == 0
    assert found["labels"][CLASSES] > found["labels"][BUCKETS] > 0
    assert found["labels_told"] == EXACT


def test_the_table_and_the_picture_of_an_audit(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["audit", str(trained)]) == 0
    printed = capsys.readouterr().out
    assert "FedDBP on digits, 3 clients" in printed
    assert re.search(r"no member: must be 0.5 +\d+ +0\.\d\d \(0\.\d\d–0\.\d\d\)", printed)
    assert (trained / "privacy.png").read_bytes().startswith(b"\x89PNG")


def test_a_method_without_class_means_has_nothing_to_audit(tmp_path: Path) -> None:
    run_in_process("local", rounds=1, restart_in=tmp_path)
    with pytest.raises(ConfigurationError, match="local uploads no class means"):
        command(["audit", str(tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "feddbp privacy has one command"),
        (["audit", "nowhere"], "nowhere: no such directory"),
        (["audit", "."], "has no checkpoint of a client below it"),
        (["audit", ".", "--data", "x=y"], "'x' is not a client's id"),
    ],
)
def test_mistakes_get_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        command(arguments)
