"""Screens the uploads of a round by comparing them with each other, before a strategy sees them.

- An upload whose norm is more than GUARD_MULTIPLE times the median of the others' is left out, under every rule.
- Under the rule `clipped`, larger norms are scaled down to `clip_factor` times the median.
- Declared samples above `weight_cap` times the median weigh as much as the cap.

All of it follows from the uploads of the round, so that a round gives the same when it is aggregated again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from feddbp_common.config.exchange import AggregationConfig
from feddbp_common.wire import Payload
from feddbp_common.wire.payload import PROTOTYPES, TENSORS, AnyArray, Norms, row_norms
from feddbp_server.aggregation.layouts import Mismatch
from feddbp_server.strategies import Upload

GUARD_MULTIPLE: Final = 30.0
"""Far above what honest clients reach, and below what makes the training of others diverge."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """By how much an upload exceeds the others of its round."""

    part: str
    norm: float
    times: float
    """The norm, as a multiple of the median."""

    def __str__(self) -> str:
        return f"the norm of its {self.part} is {self.norm:.3g}, {self.times:.3g} times the median"


@dataclass(frozen=True, kw_only=True)
class Screening:
    """What became of the uploads of a round that differ from the others."""

    left_out: Mapping[int, Deviation | Mismatch] = field(default_factory=dict)
    clipped: Mapping[int, Deviation] = field(default_factory=dict)
    bounds: Norms = field(default_factory=dict)
    """The largest norms under the rule `clipped`; empty under others."""
    samples: float = math.inf
    """The most samples that a client is weighted by."""
    capped: Mapping[int, int] = field(default_factory=dict)
    """Clients that declared more samples, and how many."""
    unusable: str = ""
    """Why clients could not use what the round gave, so that the state before it stays; empty if they can."""

    def admit(self, upload: Upload, expanded: Payload | None = None) -> Upload:
        """An upload as it is aggregated; `expanded` replaces its payload if that has to be clipped."""
        if upload.client_id in self.clipped:
            upload = replace(upload, payload=_clipped(expanded or upload.payload, self.bounds))
        if upload.client_id in self.capped:
            upload = _lighter(upload, self.samples / upload.samples)
        return upload


def screen(norms: Mapping[int, Norms], samples: Mapping[int, int], config: AggregationConfig) -> Screening:
    """Screens a round by the norms and the declared samples of its uploads, by client id."""
    left_out = _exceeding(norms, {part: GUARD_MULTIPLE * median for part, median in _medians(norms).items()})
    kept = {client: of_client for client, of_client in norms.items() if client not in left_out}
    bounds: Norms = {}
    if config.rule == "clipped":
        bounds = {part: config.clip_factor * median for part, median in _medians(kept).items()}
    most = config.weight_cap * (_middle([samples[client] for client in kept]) or math.inf)
    return Screening(
        left_out=left_out,
        clipped=_exceeding(kept, bounds),
        bounds=bounds,
        samples=most,
        capped={client: samples[client] for client in kept if samples[client] > most},
    )


def _medians(norms: Mapping[int, Norms]) -> dict[str, float]:
    """The median norm of each part; uploads without the part, or with nothing but zeros in it, do not count."""
    medians = {}
    for part in (PROTOTYPES, TENSORS):
        median = _middle([of_client[part] for of_client in norms.values() if of_client.get(part)])
        if median:
            medians[part] = median
    return medians


def _middle(values: Sequence[float]) -> float:
    """The middle value, the lower one of two; 0 of none.

    For a value above it, this is the median of the others. Of two values it is the smaller one.
    """
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0


def _exceeding(norms: Mapping[int, Norms], bounds: Norms) -> dict[int, Deviation]:
    medians = _medians(norms)
    return {
        client: Deviation(part=part, norm=of_client[part], times=of_client[part] / medians[part])
        for client, of_client in norms.items()
        for part, bound in bounds.items()
        if of_client.get(part, 0.0) > bound
    }


def _clipped(payload: Payload, bounds: Norms) -> Payload:
    if payload.prototypes is not None and PROTOTYPES in bounds and len(payload.prototypes):
        factors = np.minimum(1.0, bounds[PROTOTYPES] / np.maximum(row_norms(payload.prototypes.vectors), 1e-300))
        vectors = (payload.prototypes.vectors * factors[:, None]).astype(np.float32)
        payload = replace(payload, prototypes=replace(payload.prototypes, vectors=vectors))
    norm = Payload(tensors=payload.tensors).norms().get(TENSORS, 0.0)
    if norm > bounds.get(TENSORS, math.inf):
        factor = bounds[TENSORS] / norm
        payload = replace(payload, tensors={name: _scaled(tensor, factor) for name, tensor in payload.tensors.items()})
    return payload


def _scaled(tensor: AnyArray, factor: float) -> AnyArray:
    if tensor.dtype != np.float32:
        return tensor
    scaled: AnyArray = (tensor.astype(np.float64) * factor).astype(np.float32)
    return scaled


def _lighter(upload: Upload, factor: float) -> Upload:
    """An upload with fewer declared samples, none of which vanishes."""
    payload, prototypes = upload.payload, upload.payload.prototypes
    label_counts = _fewer(upload.label_counts, factor)
    if prototypes is not None and prototypes.counts is not None:
        counts = np.array(_fewer(prototypes.counts.tolist(), factor), dtype=np.int32)
        payload = replace(payload, prototypes=replace(prototypes, counts=counts))
    return replace(upload, payload=payload, label_counts=label_counts)


def _fewer(counts: Iterable[int], factor: float) -> list[int]:
    return [max(1, int(count * factor)) if count else 0 for count in counts]
