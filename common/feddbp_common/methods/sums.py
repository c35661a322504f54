"""Uploads as terms of a sum over clients, in fixed point: what each client sends, and the means of the total.

Fixed-point numbers add up to the same bits in any order, and under masks that cancel. A term of prototypes has a row
for every class, zeros for those that its client does not share: neither its shape nor its names tell which those are.

A class is shared once at least MIN_HOLDERS clients have it. The state that clients receive says how many did in the
last round, so that in the first round they are only counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from feddbp_common.errors import refuse
from feddbp_common.methods.contract import ExchangeShape, SumWeights
from feddbp_common.secure_sums.fixed_point import Words, from_fixed, to_fixed
from feddbp_common.wire import Dim, Payload, PayloadRules, PrototypeSet, TensorRule, WireType
from feddbp_common.wire.payload import FloatArray, IntArray

MIN_HOLDERS: Final = 3
"""Clients that must have a class before its prototypes are summed: a sum of fewer would tell too much of each."""

MAX_SAMPLES: Final = 10**6
"""By which a client counts at most, in all or of one class: one that lies about its samples moves means by no more."""

HOLDERS: Final = "holders"
"""In a download: how many clients of the last round had each class."""
_HOLDERS: Final = "sum.holders"
_CLASS_WEIGHTS: Final = "sum.class_weights"
_PROTOTYPES: Final = "sum.prototypes"
_WEIGHT: Final = "sum.weight"

Marks = npt.NDArray[np.bool_]
_Reals = npt.NDArray[np.float64]


def sum_rules(rules: PayloadRules, shape: ExchangeShape) -> PayloadRules:
    """Rules for terms of uploads that follow `rules`."""
    of_classes = Dim.exactly(shape.classes)
    tensors: list[TensorRule] = []
    if rules.prototypes is not None:
        width = Dim.exactly(rules.prototypes.width)
        tensors += [_words(_HOLDERS, of_classes), _words(_CLASS_WEIGHTS, of_classes)]
        tensors.append(_words(_PROTOTYPES, of_classes, width))
    if rules.tensors:
        tensors.append(_words(_WEIGHT, Dim.exactly(1)))
        tensors += [replace(_words(rule.name, *rule.shape), required=rule.required) for rule in rules.tensors]
    return PayloadRules(tensors=tuple(tensors))


def with_holders(rules: PayloadRules, shape: ExchangeShape) -> PayloadRules:
    """Rules for downloads of a run whose uploads are terms."""
    if rules.prototypes is None:
        return rules
    holders = TensorRule(
        name=HOLDERS,
        shape=(Dim.exactly(shape.classes),),
        types=(WireType.INT32,),
        required=False,
        low=0,
        high=shape.clients,
    )
    return replace(rules, tensors=(*rules.tensors, holders))


def _words(name: str, *shape: Dim) -> TensorRule:
    return TensorRule(name=name, shape=shape, types=(WireType.UINT64,), low=0.0, high=np.inf)


def shared_classes(received: Payload, classes: int) -> Marks:
    """The classes whose prototypes a client may add to the sum, by what it received."""
    holders = received.tensors.get(HOLDERS)
    return np.zeros(classes, dtype=bool) if holders is None else holders >= MIN_HOLDERS


def without_holders(received: Payload) -> Payload:
    """A download as the method knows it."""
    if HOLDERS not in received.tensors:
        return received
    return replace(received, tensors={name: kept for name, kept in received.tensors.items() if name != HOLDERS})


def term_of(upload: Payload, weights: SumWeights, *, shape: ExchangeShape, samples: int, shared: Marks) -> Payload:
    """A client's term; `upload` is what it would send by itself, expanded.

    Raises:
        FedDBPError: a value is too large to be summed.
    """
    terms: dict[str, Words] = {}
    if upload.prototypes is not None:
        own = upload.prototypes
        chosen = shared[own.class_ids]
        ids, width = own.class_ids[chosen], own.vectors.shape[1]
        counts = own.counts if weights.prototypes_by_samples else None
        of_rows = np.ones(len(ids)) if counts is None else np.minimum(counts[chosen], MAX_SAMPLES).astype(np.float64)
        holders, class_weights = np.zeros(shape.classes), np.zeros(shape.classes)
        rows = np.zeros((shape.classes, width))
        holders[own.class_ids] = 1.0
        class_weights[ids] = of_rows
        rows[ids] = own.vectors[chosen] * of_rows[:, np.newaxis]
        for name, values in ((_HOLDERS, holders), (_CLASS_WEIGHTS, class_weights), (_PROTOTYPES, rows)):
            terms[name] = to_fixed(values, parties=shape.clients)
    if upload.tensors:
        weight = float(min(samples, MAX_SAMPLES)) if weights.tensors_by_samples else 1.0
        terms[_WEIGHT] = to_fixed([weight], parties=shape.clients)
        for name, tensor in upload.tensors.items():
            terms[name] = to_fixed(weight * tensor.astype(np.float64), parties=shape.clients)
    return Payload(tensors=terms)


def flattened(term: Mapping[str, Words]) -> Words:
    """All values of a term in one vector, the form in which it is masked."""
    return np.concatenate([term[name].reshape(-1) for name in sorted(term)])


def unflattened(vector: Words, like: Mapping[str, tuple[int, ...]]) -> dict[str, Words]:
    """The inverse of `flattened`, for values of these shapes; refuses a vector of another length."""
    sizes = {name: int(np.prod(like[name], dtype=np.int64)) for name in sorted(like)}
    if len(vector) != sum(sizes.values()):
        refuse("sum", f"has {len(vector)} values for {sum(sizes.values())}")
    parts = np.split(vector, np.cumsum(list(sizes.values()))[:-1])
    return {name: part.reshape(like[name]) for name, part in zip(sizes, parts, strict=True)}


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a sum over clients gives."""

    prototypes: PrototypeSet | None = None
    """Of the classes that enough clients have shared; None if the method has no prototypes."""
    holders: IntArray | None = None
    tensors: Mapping[str, FloatArray] = field(default_factory=dict)

    @classmethod
    def of(cls, total: Mapping[str, Words], weights: SumWeights, *, clients: int) -> Means:
        """Divides a sum over this many clients by their weights; refuses one that no honest clients could reach."""
        reals = {name: from_fixed(words) for name, words in total.items()}
        weight = reals.pop(_WEIGHT, None)
        prototypes, holders = None, None
        if _PROTOTYPES in reals:
            holders = _counted(reals.pop(_HOLDERS), clients)
            most = MAX_SAMPLES if weights.prototypes_by_samples else 1
            class_weights = _bounded(_CLASS_WEIGHTS, reals.pop(_CLASS_WEIGHTS), most * holders)
            prototypes = _averaged(reals.pop(_PROTOTYPES), class_weights, holders)
        if weight is None:
            return cls(prototypes=prototypes, holders=holders)
        most = MAX_SAMPLES if weights.tensors_by_samples else 1
        if _bounded(_WEIGHT, weight, most * clients)[0] < clients:
            refuse(_WEIGHT, f"is {weight[0]:g}, of {clients} clients")
        tensors = {name: (sums / weight[0]).astype(np.float32) for name, sums in reals.items()}
        return cls(prototypes=prototypes, holders=holders, tensors=tensors)

    def payload(self) -> Payload:
        return Payload(prototypes=self.prototypes, tensors=self.tensors)


def _counted(holders: _Reals, clients: int) -> IntArray:
    if not np.array_equal(holders, np.rint(holders)) or holders.min() < 0 or holders.max() > clients:
        refuse(_HOLDERS, f"are no numbers of {clients} clients")
    return holders.astype(np.int32)


def _bounded(name: str, weights: _Reals, most: IntArray | int) -> _Reals:
    if not np.array_equal(weights, np.rint(weights)) or weights.min() < 0 or (weights > most).any():
        refuse(name, "have a value that no honest clients add up to")
    return weights


def _averaged(rows: _Reals, weights: _Reals, holders: IntArray) -> PrototypeSet:
    if rows[weights == 0].any():
        refuse(_PROTOTYPES, "has values of a class without weight")
    # holders were counted in the round before, and some of them may be lost since
    sent = (weights > 0) & (holders >= MIN_HOLDERS)
    vectors = (rows[sent] / weights[sent, np.newaxis]).astype(np.float32)
    return PrototypeSet(class_ids=np.flatnonzero(sent).astype(np.int32), vectors=vectors)
