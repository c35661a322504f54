"""Uploads of honest and of lying members, for every method; all of them pass the checks at the door."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from feddbp_common.config.data import DataConfig
from feddbp_common.config.exchange import AggregationConfig, GuideConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.methods.fedkd import ROUND
from feddbp_common.wire import Dim, FisherScores, Payload, PrototypeSet, check_values
from feddbp_common.wire.rules import MAGNITUDE_BOUND, TensorRule
from feddbp_common.wire.svd import SIGMA_BOUND, compress

CLASSES, WIDTH = 5, 8
_FACTORS: Final = (".u", ".sigma", ".v")
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


FORGERIES: Final = ("parallel factors", "factors of full rank", "no factors", "other images", "another round")
"""Lies in the form of weights instead of their values: of factors, of shapes and of the round they started from."""
VARIANTS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "fedkd:update": ("fedkd", {"target": "update"}),
    "feddbp:guided": ("feddbp", {"guided": True}),
    "feddbp:guide alone": ("feddbp", {"guided": True, "lambda_2": 0.0, "lambda_3": 0.0, "inference": "both"}),
    "fedavg:equal": ("fedavg", {"weighted": False}),
}
"""Settings with which a method exchanges something else, or averages it otherwise."""


@dataclass(frozen=True)
class Member:
    """An upload, and what its client declared when it joined."""

    payload: Payload
    label_counts: list[int]


def run_of(name: str, *, clients: int = 7, rule: str = "mean", image_size: int | None = 16) -> RunConfig:
    """A run of a method, or of one of the variants; without an image size, clients have to agree on their shapes."""
    method, settings = VARIANTS.get(name, (name, {}))
    return RunConfig(
        method=method,
        method_settings={**SMALL.get(method, {}), **settings},
        clients=clients,
        rounds=10,
        data=DataConfig(dataset="custom", classes=CLASSES, image_size=image_size),
        training=TrainingConfig(feature_dim=WIDTH),
        guide=GuideConfig(network="guide_small"),
        aggregation=AggregationConfig.model_validate({"rule": rule}),
    )


def lies_of(config: RunConfig) -> list[str]:
    """The lies that a member can tell under the method of a run."""
    rules = config.method_spec.upload_rules(config.settings, config.exchange_shape)
    names = {rule.name for rule in rules.tensors}
    lies = list(ATTACKS)
    if any(name.endswith(_FACTORS) for name in names):
        lies += FORGERIES[:3]
    if any(dim.low < dim.high for rule in rules.tensors if not rule.name.endswith(_FACTORS) for dim in rule.shape):
        lies.append("other images")
    return [*lies, "another round"] if ROUND in names else lies


def member(
    config: RunConfig, client: int, lie: str | None = None, *, number: int = 0, huge_counts: bool = False
) -> Member:
    """Honest values are near one; colluding members have one seed, so that they send the same."""
    random = np.random.default_rng([client if lie is None else 1000, number])
    count = 2**30 if huge_counts else 3
    rules = config.method_spec.upload_rules(config.settings, config.exchange_shape)

    def values(shape: tuple[int, ...], low: float = -MAGNITUDE_BOUND, high: float = MAGNITUDE_BOUND) -> Any:
        honest = 1.0 + 0.1 * random.standard_normal(shape)
        changed = ATTACKS[lie](honest, random) if lie is not None and lie in ATTACKS else honest
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
    tensors = _tensors(rules.tensors, values, lie, count, number)
    payload = Payload(prototypes=prototypes, fisher=fisher, tensors=tensors)
    check_values(payload, rules, real_type=config.wire_type)
    return Member(payload, [count] * CLASSES)


def _tensors(
    rules: tuple[TensorRule, ...], values: Callable[..., Any], lie: str | None, count: int, number: int
) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    dense = {}
    for rule in rules:
        shape = tuple(_size(dim, other=lie == "other images") for dim in rule.shape)
        if rule.name == ROUND:
            tensors[ROUND] = np.array([2**31 - 1 if lie == "another round" else number], np.int32)
        elif len(rule.types) == 1:  # integers
            tensors[rule.name] = np.full(shape, count, np.int32)
        elif rule.required:
            tensors[rule.name] = values(shape, rule.low, rule.high)
        elif not rule.name.endswith(_FACTORS):  # either this or its factors
            dense[rule.name] = values(shape, rule.low, rule.high)
    return {**tensors, **_in_either_form(dense, lie)}


def _size(dim: Dim, *, other: bool) -> int:
    if dim.high <= 64:
        return dim.low if other else dim.high
    return min(4 * dim.low, dim.high) if other else dim.low


def _in_either_form(dense: dict[str, Any], lie: str | None) -> dict[str, Any]:
    if lie == "factors of full rank":
        return {name: factor for whole, tensor in dense.items() for name, factor in _full_rank(whole, tensor).items()}
    if lie == "no factors" or not dense:
        return dense
    compressed = compress(dense, 0.999)
    if lie == "parallel factors":  # whose product is far larger than that of orthogonal ones
        return {
            name: np.full_like(factor, SIGMA_BOUND if name.endswith(".sigma") else 1.0)
            if name.endswith(_FACTORS)
            else factor
            for name, factor in compressed.items()
        }
    return dict(compressed)


def _full_rank(name: str, tensor: Any) -> dict[str, Any]:
    """Factors that are larger than the tensor, which no honest client sends."""
    if tensor.ndim not in (2, 4):
        return {name: tensor}
    *kernels, rows, columns = tensor.shape
    rank = min(rows, columns)
    identity = np.broadcast_to(np.eye(rows, rank, dtype=np.float32), (*kernels, rows, rank))
    return {
        f"{name}.u": identity.copy(),
        f"{name}.sigma": np.ones((*kernels, rank), np.float32),
        f"{name}.v": np.clip(tensor[..., :rank, :], -1.0, 1.0),
    }
