"""Configurations keep the names they had in version 0.1.0: stored runs and cells of experiments are found by them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import Any

import pytest
from earlier_versions import VERSION_0_1_0, read_json
from processes import Federation
from run_identities import begin_run, cell_ids

Golden = dict[str, Any]

GOLDEN: list[Golden] = read_json(VERSION_0_1_0 / "golden_hashes.json")
BY_CELL = [golden for golden in GOLDEN if golden["cell_id"] is not None]
BY_SERVER = [golden for golden in GOLDEN if golden["cell_id"] is None or golden["name"].startswith("preset with")]
"""Those without a cell, and one more: a cell's id has the fingerprint in it, and that takes no server to be seen."""


def test_every_configuration_is_checked_in_one_way_or_the_other() -> None:
    assert len(GOLDEN) >= 40
    assert len({golden["fingerprint"] for golden in GOLDEN}) == len(GOLDEN)
    for golden in GOLDEN:
        assert golden["fingerprint"] == hashlib.sha256(golden["canonical_json"].encode()).hexdigest()[:8]
    for golden in BY_CELL:
        assert golden["cell_id"].endswith(f"-{golden['fingerprint']}")


def test_cells_of_experiments_keep_their_ids(running_federation: Federation) -> None:
    by_seed: dict[int, list[Golden]] = defaultdict(list)
    for golden in BY_CELL:
        by_seed[golden["configuration"].get("seed", 0)].append(golden)
    found: dict[str, str] = {}
    for alike in by_seed.values():
        ids = cell_ids(running_federation, [golden["configuration"] for golden in alike])
        found |= {golden["name"]: cell_id for golden, cell_id in zip(alike, ids, strict=True)}
    assert found == {golden["name"]: golden["cell_id"] for golden in BY_CELL}


@pytest.mark.parametrize("golden", BY_SERVER, ids=lambda golden: golden["name"])
def test_a_server_stores_a_run_under_the_same_fingerprint(golden: Golden, running_federation: Federation) -> None:
    stored = begin_run(running_federation, golden["configuration"])
    assert (stored.fingerprint, stored.config) == (golden["fingerprint"], golden["canonical_json"])
