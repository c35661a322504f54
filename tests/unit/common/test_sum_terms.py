"""Terms of sums and their means: what is sent, and sums that no honest clients could reach."""

from __future__ import annotations

import numpy as np
import pytest
from small_federations import prototype_set

from feddbp_common.errors import PayloadError
from feddbp_common.methods import ExchangeShape
from feddbp_common.methods.contract import SumWeights
from feddbp_common.methods.sums import (
    HOLDERS,
    MAX_SAMPLES,
    Means,
    flattened,
    shared_classes,
    term_of,
    unflattened,
)
from feddbp_common.secure_sums.fixed_point import Words, added, to_fixed
from feddbp_common.wire import Payload

CLASSES, CLIENTS = 5, 4
SHAPE = ExchangeShape(classes=CLASSES, feature_dim=8, clients=CLIENTS)
EQUAL, BY_SAMPLES = SumWeights(), SumWeights(prototypes_by_samples=True, tensors_by_samples=True)
ALL_SHARED = np.ones(CLASSES, dtype=bool)


def upload(client_id: int, class_ids: list[int]) -> Payload:
    counts = [10 * (client_id + 1)] * len(class_ids)
    tensors = {"weight": np.full((2, 3), client_id, dtype=np.float32)}
    return Payload(prototypes=prototype_set(class_ids, counts=counts, seed=client_id), tensors=tensors)


def total(uploads: list[Payload], weights: SumWeights) -> dict[str, Words]:
    terms = [term_of(one, weights, shape=SHAPE, samples=50, shared=ALL_SHARED).tensors for one in uploads]
    summed = added(map(flattened, terms))
    assert summed is not None
    return unflattened(summed, {name: words.shape for name, words in terms[0].items()})


@pytest.mark.parametrize("weights", [EQUAL, BY_SAMPLES], ids=["equal", "by samples"])
def test_means_are_those_of_the_uploads(weights: SumWeights) -> None:
    uploads = [upload(number, [0, 1, 4]) for number in range(CLIENTS)]
    means = Means.of(total(uploads, weights), weights, clients=CLIENTS)
    assert means.prototypes is not None
    assert means.holders is not None
    assert means.prototypes.class_ids.tolist() == [0, 1, 4]
    assert means.holders.tolist() == [4, 4, 0, 0, 4]
    rows = np.stack([one.prototypes.vectors for one in uploads if one.prototypes is not None])
    share = np.arange(1, CLIENTS + 1) if weights is BY_SAMPLES else np.ones(CLIENTS)
    expected = np.average(rows.astype(np.float64), axis=0, weights=share)
    np.testing.assert_allclose(means.prototypes.vectors, expected, atol=1e-6)
    np.testing.assert_allclose(means.tensors["weight"], 1.5)


def test_a_term_does_not_show_which_classes_its_client_has() -> None:
    terms = [
        term_of(one, EQUAL, shape=SHAPE, samples=1, shared=ALL_SHARED).tensors
        for one in (upload(0, [0]), upload(1, [1, 2, 3]))
    ]
    shapes = [{name: words.shape for name, words in term.items()} for term in terms]
    assert shapes[0] == shapes[1]


def test_classes_are_shared_once_three_clients_have_them() -> None:
    assert not shared_classes(Payload(), CLASSES).any()
    holders = np.array([0, 1, 2, 3, 4], dtype=np.int32)
    assert shared_classes(Payload(tensors={HOLDERS: holders}), CLASSES).tolist() == [False, False, False, True, True]


def test_a_class_that_is_not_shared_is_counted_and_nothing_else() -> None:
    term = term_of(upload(0, [0, 1]), EQUAL, shape=SHAPE, samples=1, shared=~ALL_SHARED)
    means = Means.of({**term.tensors}, EQUAL, clients=1)
    assert means.holders is not None
    assert means.holders.tolist() == [1, 1, 0, 0, 0]
    assert means.prototypes is not None
    assert len(means.prototypes) == 0


def test_a_class_whose_holders_were_lost_since_is_not_given_to_others() -> None:
    means = Means.of(total([upload(0, [0, 1]), upload(1, [0]), upload(2, [0])], EQUAL), EQUAL, clients=3)
    assert means.prototypes is not None
    assert means.prototypes.class_ids.tolist() == [0]


@pytest.mark.parametrize(
    ("name", "place", "value", "weights"),
    [
        ("sum.holders", 0, 0.5, EQUAL),
        ("sum.holders", 0, 100.0, EQUAL),
        ("sum.holders", 0, -10.0, EQUAL),
        ("sum.class_weights", 0, 1e5, EQUAL),
        ("sum.class_weights", 0, -5.0, EQUAL),
        ("sum.class_weights", 0, 10.0 * MAX_SAMPLES, BY_SAMPLES),
        ("sum.prototypes", (2, 0), 1.0, EQUAL),
        ("sum.weight", 0, 1.0, EQUAL),
        ("sum.weight", 0, -1.0, EQUAL),
        ("sum.weight", 0, 10.0 * MAX_SAMPLES, BY_SAMPLES),
    ],
)
def test_a_sum_that_no_honest_clients_could_reach_is_refused(
    name: str, place: int | tuple[int, int], value: float, weights: SumWeights
) -> None:
    summed = total([upload(number, [0, 1]) for number in range(CLIENTS)], weights)
    summed[name] = summed[name].copy()
    summed[name][place] += to_fixed(value, parties=1)
    with pytest.raises(PayloadError, match=name):
        Means.of(summed, weights, clients=CLIENTS)
