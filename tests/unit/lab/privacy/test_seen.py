"""What a run lets others see depends on its settings of privacy, and so does what attacks on it find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feddbp_common.artifacts import RELEASE_NAME
from feddbp_common.config.run import RunConfig
from feddbp_common.differential_privacy.accountant import noise_for
from feddbp_common.differential_privacy.mechanism import Release, exact_table, variance_of, with_noise
from feddbp_common.errors import ConfigurationError
from feddbp_lab.privacy.attacks import Reference, Rows, auc
from feddbp_lab.privacy.seen import (
    BUCKETS,
    CLASSES,
    EXACT,
    RELEASED,
    SUMMED,
    ClientSamples,
    Seen,
    best_possible_auc,
    label_distances,
    labels_told,
    stored_release,
    sums_of,
    uploads_of,
)

WIDTH = 8


def config_of(privacy: dict[str, Any]) -> RunConfig:
    method = "frozen" if "dp" in privacy else "fedproto"
    options = {"method": method, "privacy": privacy, "training": {"feature_dim": WIDTH}, "rounds": 1}
    return RunConfig.model_validate(options)


def samples(*counts: int, seed: int = 0, release: Release | None = None) -> ClientSamples:
    """A client with so many samples of the classes 0, 1 and so on."""
    labels = np.repeat(np.arange(len(counts)), counts)
    features = np.random.default_rng(seed).normal(size=(len(labels), WIDTH))
    return ClientSamples(features / np.linalg.norm(features, axis=1, keepdims=True), labels, release)


def with_release(client: ClientSamples, config: RunConfig) -> ClientSamples:
    table = exact_table(client.features.astype(np.float32), client.labels, clip=1.0, classes=10)
    noisy = with_noise(table, variance_of(noise_for(config.privacy.epsilon, config.privacy.delta)))
    return ClientSamples(client.features, client.labels, Release.of(noisy))


def test_prototypes_that_are_held_back_are_not_seen() -> None:
    client = samples(2, 5, 9)
    assert sorted(uploads_of(client, config_of({}))) == [0, 1, 2]
    found = uploads_of(client, config_of({"min_class_samples": 5}))
    assert sorted(found) == [1, 2]
    assert found[2].weight == pytest.approx(1 / 9)
    np.testing.assert_allclose(found[2].vector, client.features[client.labels == 2].mean(axis=0))


def test_noise_is_on_what_is_seen_and_known_to_the_attacker() -> None:
    found = uploads_of(samples(3, 4), config_of({"noise_multiplier": 0.5, "clip_bound": 2.0}))
    assert {seen.noise for seen in found.values()} == {1.0}


def test_a_sum_is_the_mean_over_clients_and_under_secure_sums_of_three_holders() -> None:
    clients = [samples(4, 2, seed=1), samples(2, 0, seed=2), samples(6, 3, seed=3)]
    plain = config_of({})
    sums = sums_of(clients, plain)
    own = [uploads_of(client, plain) for client in clients]
    np.testing.assert_allclose(sums[1][0].vector, np.mean([found[0].vector for found in own], axis=0))
    assert sums[0][0].weight == pytest.approx(1 / 4 / 3)
    assert 1 in sums[0]
    secure = config_of({"secure_sums": True})
    assert [sorted(found) for found in sums_of(clients, secure)] == [[0], [0], [0]]


def test_a_sum_of_releases_weights_samples_alike() -> None:
    config = config_of({"dp": "frozen", "epsilon": 100.0})
    clients = [with_release(samples(40, seed=1), config), with_release(samples(10, seed=2), config)]
    weights = [sums[0].weight for sums in sums_of(clients, config)]
    assert weights[0] == pytest.approx(weights[1])
    assert weights[0] == pytest.approx(1 / 50, rel=0.1)


@pytest.mark.parametrize(("privacy", "told"), [
    ({}, EXACT),
    ({"counts": "buckets"}, BUCKETS),
    ({"secure_sums": True}, SUMMED),
    ({"dp": "frozen"}, RELEASED),
    ({"dp": "frozen", "secure_sums": True}, SUMMED),
])  # fmt: skip
def test_the_counts_that_a_run_tells(privacy: dict[str, Any], told: str) -> None:
    assert labels_told(config_of(privacy)) == told


def test_less_is_learnt_of_labels_from_buckets_and_less_still_from_classes_alone() -> None:
    config = config_of({"dp": "frozen", "epsilon": 1.0})
    clients = [with_release(samples(3, 50, 0, 9, seed=seed), config) for seed in range(4)]
    found = label_distances(clients, config)
    assert found[EXACT] == 0 < found[BUCKETS] < found[CLASSES]
    assert found[RELEASED] > 0


def attacked(config: RunConfig, *, repeats: int) -> float:
    """The AUC of the attack on releases of one sample, known to be of class 0, by an attacker that knows the rest."""
    random = np.random.default_rng(3)
    unit = np.eye(WIDTH)
    reference = Reference(np.zeros(WIDTH), unit, np.full(WIDTH, 1e-9), {0: np.zeros(WIDTH)})
    members, others = [], []
    for _ in range(repeats):
        place = int(random.integers(WIDTH))
        client = ClientSamples(unit[[place]], np.zeros(1, dtype=np.int64))
        release = with_release(client, config).release
        assert release is not None
        deviation = noise_for(config.privacy.epsilon, config.privacy.delta) * 1.25**0.5
        seen = Seen(release.sums[0].astype(np.float64), 1.0, deviation**2)
        scores = reference.scores(unit, seen.vector, 0, weight=1.0, noise=seen.noise)
        members.append(scores[place])
        others.append(scores[(place + 1) % WIDTH])
    return auc(np.array(members), np.array(others))


def test_no_attack_on_a_release_exceeds_the_bound_by_more_than_chance() -> None:
    config = config_of({"dp": "frozen", "epsilon": 4.0})
    bound = best_possible_auc(config.privacy)
    assert bound is not None
    assert bound == pytest.approx(0.729, abs=0.002)
    assert 0.6 < attacked(config, repeats=400) < bound + 0.05
    assert best_possible_auc(config_of({}).privacy) is None


def test_noise_that_the_attacker_knows_of_makes_channels_alike() -> None:
    random = np.random.default_rng(0)
    scale = np.geomspace(0.01, 1, WIDTH)
    rows: Rows = random.normal(size=(500, WIDTH)) * scale
    reference = Reference.of(rows, np.zeros(500, dtype=np.int64))
    candidate = scale[np.newaxis]
    blurred = reference.scores(candidate, candidate[0], 0, weight=1.0, noise=1e6)
    assert blurred[0] * 1e6 == pytest.approx(float(candidate[0] @ candidate[0]) / 2, rel=0.05)


def test_a_release_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert stored_release(config_of({}), tmp_path) is None
    with pytest.raises(ConfigurationError, match=f"{RELEASE_NAME} cannot be read"):
        stored_release(config_of({"dp": "frozen"}), tmp_path)
