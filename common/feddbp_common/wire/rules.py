"""Rules for payloads: bounds on shapes, checked on the manifest, and on values, checked on the decoded payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadTooLargeError, refuse
from feddbp_common.wire.codec import LARGEST, REAL_TYPES, WireType, declarations, tensor_bytes, wire_type_of
from feddbp_common.wire.payload import (
    FISHER,
    PROTOTYPES,
    AnyArray,
    FisherScores,
    Payload,
    TopChannels,
)

MAGNITUDE_BOUND: Final = 1e6
"""Far above any feature, logit, score or weight of a working training; larger values are errors or attacks."""

_MAX_DIMENSIONS: Final = 8
_MAX_TENSORS: Final = 1024
_MAX_COUNT: Final = 2**31 - 1
"""Of a class's samples; counts are decoded as signed integers of 32 bits."""


@dataclass(frozen=True)
class Dim:
    """An admissible range for one dimension of a tensor."""

    low: int
    high: int

    def __contains__(self, size: int) -> bool:
        return self.low <= size <= self.high

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"

    @classmethod
    def exactly(cls, size: int) -> Dim:
        return cls(size, size)


@dataclass(frozen=True, kw_only=True)
class PrototypeRule:
    """Bounds on a set of prototypes."""

    classes: int
    width: int
    counts: bool = False
    """Whether each row must have its number of samples."""


@dataclass(frozen=True, kw_only=True)
class TensorRule:
    """Bounds on one named tensor."""

    name: str
    shape: tuple[Dim, ...]
    types: tuple[WireType, ...] = REAL_TYPES
    required: bool = True
    low: float = -MAGNITUDE_BOUND
    high: float = MAGNITUDE_BOUND
    rows_as: str | None = None
    """Another tensor that must be present and have as many rows."""


@dataclass(frozen=True, kw_only=True)
class PayloadRules:
    """All content that a payload may have; anything else is refused."""

    prototypes: PrototypeRule | None = None
    prototypes_required: bool = True
    fisher_scores: bool = False
    top_channels: int | None = None
    """Channels in each row of top channels; None if the payload must not have top channels."""
    tensors: tuple[TensorRule, ...] = ()


def check_manifest(
    manifest: pb.Manifest,
    rules: PayloadRules,
    *,
    max_bytes: int,
    label_counts: Sequence[int] | None = None,
) -> None:
    """Raises PayloadError for everything that can be refused before the body is received."""
    if len(manifest.tensors) > _MAX_TENSORS:
        refuse("tensors", f"{len(manifest.tensors)} are declared, at most {_MAX_TENSORS} are admitted")
    declared = declarations(manifest)
    for tensor in declared:
        if len(tensor.shape) > _MAX_DIMENSIONS:
            refuse(
                _printable(tensor.name), f"has {len(tensor.shape)} dimensions, at most {_MAX_DIMENSIONS} are admitted"
            )
    total = sum(tensor_bytes(tensor) for tensor in declared)
    if manifest.total_bytes != total:
        refuse("total_bytes", f"is {manifest.total_bytes}, but the declared tensors have {total}")
    if total > max_bytes:
        raise PayloadTooLargeError("total_bytes", f"{total} bytes, at most {max_bytes} are admitted")
    if len(manifest.sha256) != 32:
        refuse("sha256", f"has {len(manifest.sha256)} bytes, not 32")
    _check_prototypes(manifest, rules, label_counts)
    _check_fisher(manifest, rules)
    _check_tensors(manifest, rules)


def value_bound(real_type: WireType) -> float:
    """Returns the largest real value allowed in a run that sends real tensors in this type."""
    return min(MAGNITUDE_BOUND, LARGEST[real_type])


def check_values(payload: Payload, rules: PayloadRules, *, real_type: WireType = WireType.FLOAT32) -> None:
    """Raises PayloadError for values that are not finite or out of bounds, and for channels that do not exist.

    `real_type` is the run's, not the payload's: averages of the values are sent in it, so it must be able to hold them.
    """
    if payload.prototypes is not None:
        bound = value_bound(real_type)
        _check_range(PROTOTYPES, payload.prototypes.vectors, -bound, bound)
    if isinstance(payload.fisher, FisherScores):
        _check_range(FISHER, payload.fisher.scores, 0.0, LARGEST[real_type])
    elif isinstance(payload.fisher, TopChannels) and rules.prototypes is not None:
        _check_channels(payload.fisher.channels, rules.prototypes.width)
    for rule in rules.tensors:
        if rule.name in payload.tensors:
            tensor = payload.tensors[rule.name]
            largest = LARGEST[real_type] if tensor.dtype == np.float32 else np.inf
            _check_range(rule.name, tensor, max(rule.low, -largest), min(rule.high, largest))


def _check_prototypes(manifest: pb.Manifest, rules: PayloadRules, label_counts: Sequence[int] | None) -> None:
    rule = rules.prototypes
    if not manifest.HasField("prototypes"):
        if rule is not None and rules.prototypes_required:
            refuse(PROTOTYPES, "is missing")
        return
    if rule is None:
        refuse(PROTOTYPES, "is not expected in this payload")
    declared = manifest.prototypes
    class_ids = list(declared.class_ids)
    _check_type(PROTOTYPES, declared.matrix, REAL_TYPES)
    if list(declared.matrix.shape) != [len(class_ids), rule.width]:
        refuse(PROTOTYPES, f"has shape {list(declared.matrix.shape)}, not [{len(class_ids)}, {rule.width}]")
    if class_ids and max(class_ids) >= rule.classes:
        refuse("class_ids", f"names class {max(class_ids)}, but the run has only {rule.classes} classes")
    if class_ids != sorted(set(class_ids)):
        refuse("class_ids", "must be ascending without repeats")
    if label_counts is not None:
        _check_classes_held(class_ids, label_counts)
    _check_counts(class_ids, list(declared.counts), rule, label_counts)


def _check_classes_held(class_ids: list[int], label_counts: Sequence[int]) -> None:
    """Refuses rows of classes without declared samples, also in payloads without counts."""
    if all(map(label_counts.__getitem__, class_ids)):
        return
    missing = next(class_id for class_id in class_ids if not label_counts[class_id])
    refuse("class_ids", f"names class {missing}, of which no samples were declared at join")


def _check_counts(
    class_ids: list[int], counts: list[int], rule: PrototypeRule, label_counts: Sequence[int] | None
) -> None:
    if not counts and not (rule.counts and class_ids):
        return
    if len(counts) != len(class_ids):
        refuse("counts", f"has {len(counts)} entries for {len(class_ids)} classes")
    for class_id, count in zip(class_ids, counts, strict=True):
        if not 0 < count <= _MAX_COUNT:
            refuse("counts", f"class {class_id} has {count} samples")
        if label_counts is not None and count > label_counts[class_id]:
            refuse(
                "counts",
                f"class {class_id} has {count} samples, but {label_counts[class_id]} were declared at join",
            )


def _check_fisher(manifest: pb.Manifest, rules: PayloadRules) -> None:
    wanted = rules.fisher_scores or rules.top_channels is not None
    if not manifest.HasField("fisher"):
        if wanted:
            refuse(FISHER, "is missing")
        return
    if not wanted or rules.prototypes is None:
        refuse(FISHER, "is not expected in this payload")
    rows = len(manifest.prototypes.class_ids)
    types: tuple[WireType, ...]
    if manifest.fisher.HasField("scores"):
        if not rules.fisher_scores:
            refuse(FISHER, "must be sent as top_channels in this run")
        tensor, types, width = manifest.fisher.scores, REAL_TYPES, rules.prototypes.width
    else:
        if rules.top_channels is None:
            refuse(FISHER, "must be sent as scores in this run")
        tensor, types, width = manifest.fisher.top_channels, (WireType.UINT16,), rules.top_channels
    _check_type(FISHER, tensor, types)
    if list(tensor.shape) != [rows, width]:
        refuse(FISHER, f"has shape {list(tensor.shape)}, not [{rows}, {width}]")


def _check_tensors(manifest: pb.Manifest, rules: PayloadRules) -> None:
    by_name = {rule.name: rule for rule in rules.tensors}
    seen: set[str] = set()
    for tensor in manifest.tensors:
        rule = by_name.get(tensor.name)
        if rule is None:
            refuse(_printable(tensor.name), "is not expected in this payload")
        if tensor.name in seen:
            refuse(tensor.name, "is declared twice")
        seen.add(tensor.name)
        _check_type(tensor.name, tensor, rule.types)
        if len(tensor.shape) != len(rule.shape) or any(
            size not in dim for size, dim in zip(tensor.shape, rule.shape, strict=True)
        ):
            admitted = ", ".join(map(str, rule.shape))
            refuse(tensor.name, f"has shape {list(tensor.shape)}, not [{admitted}]")
    for rule in rules.tensors:
        if rule.required and rule.name not in seen:
            refuse(rule.name, "is missing")
    _check_rows(manifest, rules)


def _check_rows(manifest: pb.Manifest, rules: PayloadRules) -> None:
    """Checks that tensors whose rows correspond have the same number of rows."""
    rows = {tensor.name: tensor.shape[0] for tensor in manifest.tensors if tensor.shape}
    for rule in rules.tensors:
        if rule.rows_as is None or rule.name not in rows:
            continue
        if rule.rows_as not in rows:
            refuse(rule.rows_as, f"is missing, but {rule.name} is present")
        if rows[rule.name] != rows[rule.rows_as]:
            refuse(rule.name, f"has {rows[rule.name]} rows, but {rule.rows_as} has {rows[rule.rows_as]}")


def _check_type(name: str, tensor: pb.Tensor, admitted: tuple[WireType, ...]) -> None:
    wire_type = wire_type_of(tensor)
    if wire_type not in admitted:
        names = " or ".join(choice.value for choice in admitted)
        refuse(name, f"has dtype {wire_type.value}, not {names}")


def _check_range(name: str, array: AnyArray, low: float, high: float) -> None:
    if not array.size:
        return
    # NaN makes both extremes NaN and an infinity is an extreme: no temporary array is needed to find either
    smallest, largest = float(array.min()), float(array.max())
    if not (np.isfinite(smallest) and np.isfinite(largest)):
        refuse(name, "has a value that is not finite")
    if smallest < low:
        refuse(name, f"has a value of {smallest:.6g}, the minimum is {low:g}")
    if largest > high:
        refuse(name, f"has a value of {largest:.6g}, the maximum is {high:g}")


def _check_channels(channels: AnyArray, width: int) -> None:
    if not channels.size:
        return
    if int(channels.max()) >= width:
        refuse(FISHER, f"names channel {int(channels.max())}, but there are only {width}")
    ordered = np.sort(channels, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        refuse(FISHER, "names a channel twice in one row")


def _printable(name: str) -> str:
    """Returns a received name shortened and escaped for a log line."""
    return repr(name[:64])
