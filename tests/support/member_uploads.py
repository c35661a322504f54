"""Uploads of honest and of lying members, for every method; all of them pass the checks at the door."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from feddbp_common.config.data import DataConfig
from feddbp_common.config.exchange import AggregationConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.methods.fedkd import ROUND
from feddbp_common.wire import FisherScores, Payload, PrototypeSet, check_values
from feddbp_common.wire.rules import MAGNITUDE_BOUND, TensorRule
from feddbp_common.wire.svd import compress

CLASSES, WIDTH = 5, 8
SMALL: Final[Mapping[str, dict[str, Any]]] = {
    "feddbp": {"k_top": 2},
    "fedmrl": {"small_dim": 4},
    "fedgen": {"server_steps": 2, "server_batch_size": 4, "hidden_dim": 6, "noise_dim": 3},
    "fedtgp": {"server_epochs": 2},
}
"""Settings that fit prototypes of few channels, and little training on the server."""

Change = Callable[[Any, np.random.Generator], Any]
ATTACKS: Final[Mapping[str, Change]] = {
    "huge": lambda values, _: np.full_like(values, MAGNITUDE_BOUND),
    "huge and negative": lambda values, _: np.full_like(values, -MAGNITUDE_BOUND),
    "scaled": lambda values, _: 25.0 * values,
    "sign-flipped": lambda values, _: -5.0 * values,
    "random": lambda values, random: random.standard_normal(values.shape),
    "zero": lambda values, _: np.zeros_like(values),
    "denormal": lambda values, _: np.full_like(values, 1e-42),
    "one huge value": lambda values, _: np.where(np.arange(values.size).reshape(values.shape) == 0, 1e6, values),
}


@dataclass(frozen=True)
class Member:
    """An upload, and what its client declared when it joined."""

    payload: Payload
    label_counts: list[int]


def run_of(method: str, *, clients: int = 7, rule: str = "mean", **settings: Any) -> RunConfig:
    return RunConfig(
        method=method,
        method_settings={**SMALL.get(method, {}), **settings},
        clients=clients,
        rounds=10,
        data=DataConfig(dataset="custom", classes=CLASSES, image_size=16),
        training=TrainingConfig(feature_dim=WIDTH),
        aggregation=AggregationConfig.model_validate({"rule": rule}),
    )


def member(
    config: RunConfig, client: int, attack: str | None = None, *, number: int = 0, huge_counts: bool = False
) -> Member:
    """Honest values are near one; colluding members have one seed, so that they send the same."""
    random = np.random.default_rng([client if attack is None else 1000, number])
    count = 2**30 if huge_counts else 3
    rules = config.method_spec.upload_rules(config.settings, config.exchange_shape)

    def values(shape: tuple[int, ...], low: float = -MAGNITUDE_BOUND, high: float = MAGNITUDE_BOUND) -> Any:
        honest = 1.0 + 0.1 * random.standard_normal(shape)
        changed = honest if attack is None else ATTACKS[attack](honest, random)
        return np.clip(changed, low + 1e-6 if low > 0 else low, high).astype(np.float32)  # rounded, it is not below

    prototypes = fisher = None
    if rules.prototypes is not None:
        shape = (CLASSES, rules.prototypes.width)
        prototypes = PrototypeSet(
            class_ids=np.arange(CLASSES, dtype=np.int32),
            vectors=values(shape),
            counts=np.full(CLASSES, count, np.int32),
        )
        fisher = FisherScores(random.random(shape, dtype=np.float32)) if rules.fisher_scores else None
    payload = Payload(prototypes=prototypes, fisher=fisher, tensors=_tensors(rules.tensors, values, count, number))
    check_values(payload, rules, real_type=config.wire_type)
    return Member(payload, [count] * CLASSES)


def _tensors(rules: tuple[TensorRule, ...], values: Callable[..., Any], count: int, number: int) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    dense = {}
    for rule in rules:
        shape = tuple(dim.high if dim.high <= 64 else dim.low for dim in rule.shape)
        if rule.name == ROUND:
            tensors[ROUND] = np.array([number], np.int32)
        elif len(rule.types) == 1:  # integers
            tensors[rule.name] = np.full(shape, count, np.int32)
        elif rule.required:
            tensors[rule.name] = values(shape, rule.low, rule.high)
        elif not rule.name.endswith((".u", ".sigma", ".v")):  # either this or its factors
            dense[rule.name] = values(shape, rule.low, rule.high)
    return {**tensors, **compress(dense, 0.999)} if dense else tensors
