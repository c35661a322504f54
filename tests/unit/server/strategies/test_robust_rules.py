"""Median, trimmed mean and clipping: bounded, independent of the order, and for every method that averages."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from small_federations import CLASSES, WIDTH, prototype_set, upload_of

from feddbp_common.config.exchange import AggregationConfig
from feddbp_common.methods import METHODS, ExchangeShape, method_named
from feddbp_common.methods.contract import ALL_RULES
from feddbp_common.wire import Payload, encode
from feddbp_common.wire.svd import compress
from feddbp_server.strategies import RunFacts, Upload
from feddbp_server.strategies.robust import RobustTensors, combined

MEDIAN = AggregationConfig(rule="median")
TRIMMED = AggregationConfig(rule="trimmed_mean", trim=0.25)
ROBUST = (MEDIAN, TRIMMED)
AVERAGING = sorted(
    name for name in METHODS if method_named(name).aggregation_rules(method_named(name).settings()) == ALL_RULES
)
HONEST, ATTACKERS = 5, 2
SMALL: dict[str, dict[str, Any]] = {"feddbp": {"k_top": 2}, "fedmrl": {"small_dim": 4}}
"""Settings that fit prototypes of few channels."""


def strategy_under(method: str, config: AggregationConfig) -> Any:
    shape = ExchangeShape(classes=CLASSES, feature_dim=WIDTH, clients=HONEST + ATTACKERS, image_size=16, channels=1)
    spec = method_named(method)
    facts = RunFacts(shape=shape, seed=0, rounds=10, aggregation=config)
    return spec.load_strategy()(spec.settings(**SMALL.get(method, {})), facts)


def sample(method: str, client: int, value: float | None = None) -> Upload:
    """An upload as the method's rules want it; its values are near one, or all the same."""
    noise = np.random.default_rng(client)

    def values(*shape: int) -> Any:
        near_one = 1.0 + 0.1 * noise.standard_normal(shape)
        return (near_one if value is None else np.full(shape, value)).astype(np.float32)

    spec = method_named(method)
    rules = spec.upload_rules(
        spec.settings(**SMALL.get(method, {})),
        ExchangeShape(classes=CLASSES, feature_dim=WIDTH, clients=7, image_size=16, channels=1),
    )
    if rules.prototypes is not None:
        rows = prototype_set(range(CLASSES), values(CLASSES, rules.prototypes.width), counts=[3] * CLASSES)
        return upload_of(client, rows, [3] * CLASSES)
    required = [rule for rule in rules.tensors if rule.required or (method == "fedkd" and "." in rule.name)]
    dense = {rule.name: values(*(dim.low for dim in rule.shape)) for rule in required if _is_dense(rule.name)}
    tensors: Any = compress(dense, 0.999) if method == "fedkd" else dense
    return upload_of(client, Payload(tensors=tensors), [3] * CLASSES)


def _is_dense(name: str) -> bool:
    return name.endswith((".weight", ".bias", "_mean", "_var")) or "." not in name


def bits(payload: Payload) -> bytes:
    return bytes(encode(payload).manifest.sha256)


def shared_values(strategy: Any, state: Payload) -> Any:
    expanded = strategy.expanded(state)
    if expanded.prototypes is not None:
        return expanded.prototypes.vectors
    return np.concatenate([np.ravel(tensor) for name, tensor in expanded.tensors.items() if "head" in name])


@pytest.mark.parametrize("config", ROBUST, ids=lambda config: config.rule)
@pytest.mark.parametrize("method", AVERAGING)
def test_a_minority_cannot_move_an_average_out_of_the_honest_range(method: str, config: AggregationConfig) -> None:
    honest = [sample(method, client) for client in range(HONEST)]
    for value in (25.0, -25.0, 0.0):
        uploads = [*honest, *(sample(method, HONEST + client, value) for client in range(ATTACKERS))]
        strategy = strategy_under(method, config)
        shared = shared_values(strategy, strategy.aggregate(strategy.initial(), uploads, round_number=0))
        assert 0.3 < shared.min() <= shared.max() < 1.7


@pytest.mark.parametrize("config", ROBUST, ids=lambda config: config.rule)
@pytest.mark.parametrize("method", AVERAGING)
def test_the_order_of_clients_changes_no_bit(method: str, config: AggregationConfig) -> None:
    uploads = [sample(method, client) for client in range(5)]
    strategy = strategy_under(method, config)
    before = bits(strategy.aggregate(strategy.initial(), uploads, round_number=0))
    random.Random(1).shuffle(uploads)
    assert bits(strategy.aggregate(strategy.initial(), uploads, round_number=0)) == before


def test_the_median_of_an_even_number_is_the_mean_of_the_two_in_the_middle() -> None:
    rows = np.array([[1, 9], [2, 7], [4, 8], [100, -100]], np.float32)
    np.testing.assert_array_equal(combined(rows, MEDIAN), np.array([3, 7.5], np.float32))
    np.testing.assert_array_equal(combined(rows[:3], MEDIAN), np.array([2, 8], np.float32))
    np.testing.assert_array_equal(combined(rows[:1], MEDIAN), rows[0])


def test_a_trimmed_mean_leaves_out_at_least_one_of_three_at_either_end() -> None:
    rows = np.array([[1], [2], [4], [100]], np.float32)
    assert combined(rows, TRIMMED).tolist() == [3]
    assert combined(rows[:3], TRIMMED).tolist() == [2]
    assert combined(rows[:2], TRIMMED).tolist() == [1.5]
    ten = np.arange(10, dtype=np.float32)[:, None]
    assert combined(ten, AggregationConfig(rule="trimmed_mean", trim=0.3)).tolist() == [4.5]


def test_a_class_without_uploads_keeps_its_prototype_under_every_rule() -> None:
    for config in ROBUST:
        strategy = strategy_under("fedproto", config)
        before = strategy.aggregate(Payload(), [upload_of(0, prototype_set([0, 2]))], round_number=0)
        after = strategy.aggregate(before, [upload_of(1, prototype_set([2, 3], seed=1))], round_number=1)
        assert after.prototypes.class_ids.tolist() == [0, 2, 3]
        np.testing.assert_array_equal(after.prototypes.vectors[0], before.prototypes.vectors[0])


def test_blocks_of_columns_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = [{"w": np.random.default_rng(client).standard_normal((7, 11)).astype(np.float32)} for client in range(6)]
    whole = RobustTensors(MEDIAN)
    monkeypatch.setattr("feddbp_server.strategies.robust._BLOCK_VALUES", 30)
    blocks = RobustTensors(MEDIAN)
    for upload in uploads:
        whole.add(upload)
        blocks.add(upload)
    expected = np.median(np.stack([upload["w"] for upload in uploads]).astype(np.float64), axis=0).astype(np.float32)
    np.testing.assert_array_equal(blocks.result()["w"], expected)
