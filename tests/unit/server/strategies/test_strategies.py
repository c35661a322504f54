"""The strategies, against slow loops that are easy to check."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feddbp_common.methods import ExchangeShape
from feddbp_common.methods.feddbp import FedDBPSettings
from feddbp_common.methods.fusion import mark_top_channels
from feddbp_common.methods.local import LocalSettings
from feddbp_common.wire import FisherScores, Payload, PrototypeSet, TopChannels
from feddbp_server.strategies import RunFacts, Upload
from feddbp_server.strategies.feddbp import FedDBPStrategy
from feddbp_server.strategies.local import LocalStrategy

CLASSES, WIDTH = 6, 5

Vectors = dict[int, list[float]]
"""A slow set of prototypes: class id to vector."""


def facts(width: int = WIDTH) -> RunFacts:
    return RunFacts(shape=ExchangeShape(classes=CLASSES, feature_dim=width), seed=0, rounds=3)


def feddbp(width: int = WIDTH, **changed: object) -> FedDBPStrategy:
    return FedDBPStrategy(FedDBPSettings(**{"k_top": 2, **changed}), facts(width))


def matrix(rows: Sequence[Sequence[float]], width: int = WIDTH) -> np.ndarray:
    return np.array(rows, dtype=np.float32).reshape(len(rows), width)


def prototypes(vectors: Vectors) -> PrototypeSet:
    classes = sorted(vectors)
    return PrototypeSet(class_ids=np.array(classes, np.int32), vectors=matrix([vectors[c] for c in classes]))


def upload(vectors: Vectors, scores: Vectors | None = None) -> Payload:
    in_order = [scores[c] for c in sorted(vectors)] if scores is not None else [[0.0] * WIDTH for _ in vectors]
    return Payload(prototypes=prototypes(vectors), fisher=FisherScores(matrix(in_order)))


def as_dict(payload: Payload) -> Vectors:
    if payload.prototypes is None:
        return {}
    ids = payload.prototypes.class_ids.tolist()
    assert ids == sorted(set(ids))
    return dict(zip(ids, payload.prototypes.vectors.tolist(), strict=True))


def aggregate(strategy: FedDBPStrategy, state: Payload, uploads: Sequence[Payload]) -> Payload:
    received = (
        Upload(client_id=client, payload=payload, label_counts=[1] * CLASSES) for client, payload in enumerate(uploads)
    )
    return strategy.aggregate(state, received, round_number=0)


# --- the slow references ---


def single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def slow_mean(previous: Vectors, uploads: Sequence[Vectors]) -> Vectors:
    """Equal weights; sums in double precision, in the order given, rounded once."""
    result = dict(previous)
    for class_id in {class_id for sent in uploads for class_id in sent}:
        holders = [sent[class_id] for sent in uploads if class_id in sent]
        mean = []
        for channel in range(WIDTH):
            total = 0.0
            for vector in holders:
                total += vector[channel]
            mean.append(single(total / len(holders)))
        result[class_id] = mean
    return result


def slow_top(scores: Sequence[float], k: int) -> list[int]:
    """The k channels with the largest scores; among equals the lower channel first."""
    return sorted(range(len(scores)), key=lambda channel: (-scores[channel], channel))[:k]


def slow_reply(shared: Vectors, own: Vectors, scores: Vectors, k: int, eta: float) -> Vectors:
    result = {}
    for class_id, vector in shared.items():
        fused = list(vector)
        if class_id in own:
            for channel in slow_top(scores[class_id], k):
                fused[channel] = eta * own[class_id][channel] + (1 - eta) * vector[channel]
        result[class_id] = fused
    return result


values = st.floats(-1e6, 1e6, width=32)
vectors = st.lists(values, min_size=WIDTH, max_size=WIDTH)
class_maps = st.dictionaries(st.integers(0, CLASSES - 1), vectors, max_size=CLASSES)
few_scores = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=WIDTH, max_size=WIDTH)


# --- averaging ---


@settings(max_examples=50, deadline=None)
@given(previous=class_maps, uploads=st.lists(class_maps, max_size=5))
def test_each_class_is_the_mean_over_the_clients_that_sent_it(previous: Vectors, uploads: list[Vectors]) -> None:
    state = Payload(prototypes=prototypes(previous)) if previous else Payload()
    encoded = aggregate(feddbp(), state, [upload(sent) for sent in uploads])
    assert as_dict(encoded) == slow_mean(previous, uploads)


def test_clients_have_equal_weight_for_any_number_of_samples() -> None:
    many = PrototypeSet(
        class_ids=np.array([1], np.int32), vectors=matrix([[1.0] * 5]), counts=np.array([1000], np.int32)
    )
    few = PrototypeSet(class_ids=np.array([1], np.int32), vectors=matrix([[3.0] * 5]), counts=np.array([1], np.int32))
    encoded = aggregate(feddbp(), Payload(), [Payload(prototypes=many), Payload(prototypes=few)])
    assert as_dict(encoded) == {1: [2.0] * 5}


def test_a_class_without_uploads_keeps_its_last_value_and_one_never_uploaded_is_absent() -> None:
    strategy = feddbp()
    first = aggregate(strategy, strategy.initial(), [upload({0: [1.0] * 5, 4: [2.0] * 5})])
    second = aggregate(strategy, first, [upload({0: [3.0] * 5})])
    third = aggregate(strategy, second, [upload({2: [7.0] * 5})])
    assert as_dict(second) == {0: [3.0] * 5, 4: [2.0] * 5}
    assert as_dict(third) == {0: [3.0] * 5, 2: [7.0] * 5, 4: [2.0] * 5}


def test_a_client_with_no_class_at_all_changes_nothing() -> None:
    encoded = aggregate(feddbp(), Payload(), [upload({3: [1.0] * 5}), upload({})])
    assert as_dict(encoded) == {3: [1.0] * 5}


def test_before_the_first_round_replies_are_empty() -> None:
    strategy = feddbp()
    assert as_dict(strategy.reply(strategy.initial(), None)) == {}


def test_sums_are_kept_in_double_precision() -> None:
    """In single precision the small addend would be lost before the large ones cancel."""
    sent = [{0: [1e6] * 5}, {0: [1e-3] * 5}, {0: [-1e6] * 5}]
    encoded = as_dict(aggregate(feddbp(), Payload(), [upload(vector) for vector in sent]))
    assert encoded[0][0] == pytest.approx(1e-3 / 3, rel=1e-6)


def test_aggregation_reads_each_upload_once_and_keeps_none() -> None:
    alive = 0
    most = 0

    class Counted(Payload):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def uploads() -> Iterator[Upload]:
        nonlocal alive, most
        for client in range(30):
            alive += 1
            most = max(most, alive)
            payload = Counted(prototypes=prototypes({client % CLASSES: [1.0] * 5}))
            yield Upload(client_id=client, payload=payload, label_counts=[])
            del payload

    feddbp().aggregate(Payload(), uploads(), round_number=0)
    assert most <= 3


# --- the most important channels ---


@settings(max_examples=80, deadline=None)
@given(rows=st.lists(few_scores, min_size=1, max_size=6), k=st.integers(0, WIDTH))
@example(rows=[[1.0] * WIDTH], k=3)
@example(rows=[[0.0] * WIDTH], k=WIDTH)
@example(rows=[[2.0, 0.0, 2.0, 2.0, 1.0]], k=2)
def test_the_largest_scores_are_marked_and_among_equals_the_lower_channel(rows: list[list[float]], k: int) -> None:
    marks = mark_top_channels(matrix(rows), k)
    assert marks.shape == (len(rows), WIDTH)
    for row, scores in zip(marks, rows, strict=True):
        assert np.flatnonzero(row).tolist() == sorted(slow_top(scores, k))


def test_no_rows_give_no_marks() -> None:
    assert mark_top_channels(np.zeros((0, WIDTH), np.float32), 2).shape == (0, WIDTH)


# --- what a client receives ---


@st.composite
def replies(draw: st.DrawFn) -> tuple[Vectors, Vectors, Vectors]:
    shared = draw(st.dictionaries(st.integers(0, CLASSES - 1), vectors, min_size=1, max_size=CLASSES))
    held = sorted(draw(st.sets(st.sampled_from(sorted(shared)))))
    return shared, {c: draw(vectors) for c in held}, {c: draw(few_scores) for c in held}


@settings(max_examples=50, deadline=None)
@given(drawn=replies(), k=st.integers(0, WIDTH))
def test_a_client_keeps_its_own_values_in_its_most_important_channels(
    drawn: tuple[Vectors, Vectors, Vectors], k: int
) -> None:
    shared, own, scores = drawn
    reply = feddbp(k_top=k).reply(Payload(prototypes=prototypes(shared)), upload(own, scores))
    assert as_dict(reply) == slow_reply(shared, own, scores, k, eta=1.0)


@settings(max_examples=40, deadline=None)
@given(drawn=replies(), k=st.integers(0, WIDTH), eta=st.floats(0, 1))
def test_eta_blends_own_and_shared_values(drawn: tuple[Vectors, Vectors, Vectors], k: int, eta: float) -> None:
    shared, own, scores = drawn
    reply = as_dict(feddbp(k_top=k, eta=eta).reply(Payload(prototypes=prototypes(shared)), upload(own, scores)))
    expected = slow_reply(shared, own, scores, k, eta)
    assert reply.keys() == expected.keys()
    for class_id, vector in expected.items():
        largest = max(map(abs, (*shared[class_id], *own.get(class_id, [0.0]))))
        assert reply[class_id] == pytest.approx(vector, rel=1e-6, abs=2e-7 * largest)


def test_a_share_of_nothing_is_the_plain_average() -> None:
    shared = {0: [1.0] * 5, 3: [2.0] * 5}
    reply = feddbp(eta=0.0).reply(Payload(prototypes=prototypes(shared)), upload({3: [9.0] * 5}))
    assert as_dict(reply) == shared


@pytest.mark.parametrize("strategy", [feddbp(without_personalisation=True), feddbp(k_top=0)], ids=["off", "k_top=0"])
def test_without_personalisation_every_client_receives_the_plain_averages(strategy: FedDBPStrategy) -> None:
    shared = {0: [1.0] * 5, 3: [2.0] * 5}
    reply = strategy.reply(Payload(prototypes=prototypes(shared)), upload({0: [9.0] * 5}))
    assert as_dict(reply) == shared


def test_a_client_without_an_upload_receives_the_plain_averages() -> None:
    shared = {0: [1.0] * 5, 3: [2.0] * 5}
    assert as_dict(feddbp().reply(Payload(prototypes=prototypes(shared)), None)) == shared


def test_replying_does_not_change_the_state() -> None:
    state = Payload(prototypes=prototypes({0: [1.0] * 5, 3: [2.0] * 5}))
    feddbp(k_top=WIDTH).reply(state, upload({0: [9.0] * 5}))
    assert as_dict(state) == {0: [1.0] * 5, 3: [2.0] * 5}


def test_random_anchors_have_the_lengths_of_the_prototypes_and_fixed_directions() -> None:
    strategy, shared = feddbp(anchors="random"), {0: [3.0, 4.0, 0.0, 0.0, 0.0], 3: [0.0, 0.0, 0.0, 0.0, 2.0]}
    first = as_dict(strategy.reply(Payload(prototypes=prototypes(shared)), upload({0: [9.0] * 5})))
    assert {number: round(float(np.linalg.norm(row)), 5) for number, row in first.items()} == {0: 5.0, 3: 2.0}
    later = as_dict(strategy.reply(Payload(prototypes=prototypes({0: [1.0] * 5})), None))
    np.testing.assert_allclose(np.array(later[0]) / np.sqrt(5), np.array(first[0]) / 5, rtol=1e-5)


@pytest.mark.parametrize("held", [{0, 1, 2, 3}, {1, 3}, {0, 2, 3}])
def test_shuffled_classes_each_get_the_prototype_of_another(held: set[int]) -> None:
    shared = {number: [float(number)] * 5 for number in held}
    reply = as_dict(feddbp(anchors="shuffled").reply(Payload(prototypes=prototypes(shared)), upload({1: [9.0] * 5})))
    assert reply.keys() == held
    assert sorted(reply.values()) == sorted(shared.values())
    assert all(reply[number] != shared[number] for number in held)


def test_a_reply_contains_neither_counts_nor_scores() -> None:
    reply = feddbp().reply(Payload(prototypes=prototypes({0: [1.0] * 5})), upload({0: [9.0] * 5}))
    assert reply.prototypes is not None
    assert reply.prototypes.counts is None
    assert reply.fisher is None
    assert reply.prototypes.vectors.dtype == np.float32


@settings(max_examples=40, deadline=None)
@given(drawn=replies(), k=st.integers(0, WIDTH), eta=st.sampled_from([0.0, 0.3, 1.0]))
def test_top_channels_and_full_scores_give_the_same_reply_bit_for_bit(
    drawn: tuple[Vectors, Vectors, Vectors], k: int, eta: float
) -> None:
    shared, own, scores = drawn
    state, strategy = Payload(prototypes=prototypes(shared)), feddbp(k_top=k, eta=eta)
    channels = np.array([slow_top(scores[c], k) for c in sorted(own)], np.uint16).reshape(len(own), k)
    in_full = strategy.reply(state, upload(own, scores))
    in_short = strategy.reply(state, Payload(prototypes=prototypes(own), fisher=TopChannels(channels)))
    assert in_full.prototypes is not None
    assert in_short.prototypes is not None
    assert in_full.prototypes.vectors.tobytes() == in_short.prototypes.vectors.tobytes()


def test_the_papers_size_is_fused_as_the_slow_way_does() -> None:
    noise = random.Random(5)
    width, k = 512, 30
    shared_row = [single(noise.gauss(0, 1)) for _ in range(width)]
    own_row = [single(noise.gauss(0, 1)) for _ in range(width)]
    scores = [single(noise.choice([0.0, noise.random()])) for _ in range(width)]
    state = Payload(prototypes=PrototypeSet(class_ids=np.array([2], np.int32), vectors=matrix([shared_row], width)))
    own = Payload(
        prototypes=PrototypeSet(class_ids=np.array([2], np.int32), vectors=matrix([own_row], width)),
        fisher=FisherScores(matrix([scores], width)),
    )
    kept = set(slow_top(scores, k))
    expected = [own_row[j] if j in kept else shared_row[j] for j in range(width)]
    assert as_dict(feddbp(width, k_top=k).reply(state, own)) == {2: expected}


# --- local training ---


def test_local_training_aggregates_and_sends_nothing() -> None:
    strategy = LocalStrategy(LocalSettings(), facts())
    uploads = [Upload(client_id=0, payload=Payload(), label_counts=[1])]
    encoded = strategy.aggregate(strategy.initial(), uploads, round_number=0)
    assert as_dict(encoded) == {}
    assert list(strategy.reply(encoded, None).arrays()) == []
