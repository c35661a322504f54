"""FPL: clusters of prototypes on the server, two losses with them on the client."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_federations import (
    CLASSES,
    WIDTH,
    download_rules,
    over_the_wire,
    prototype_set,
    run_in_process,
    small_batch,
    small_strategy,
    small_trainer,
    trainer_after,
    upload_of,
    upload_rules,
)
from wire_samples import prototypes_of

from feddbp_client.methods.scores import NO_CLASS
from feddbp_common.errors import PayloadError
from feddbp_common.methods.fpl import CLUSTER_CLASSES, CLUSTER_PROTOTYPES
from feddbp_common.wire import Payload, encode

SENT_CLASSES = [0, 0, 1, 3, 3, 3]
"""Two clusters of class 0, one of class 1, three of class 3; classes 2 and 4 are unknown."""


def clusters(classes: list[int] = SENT_CLASSES, vectors: Any = None) -> Payload:
    if vectors is None:
        vectors = np.random.default_rng(3).standard_normal((len(classes), WIDTH))
    return Payload(
        tensors={
            CLUSTER_PROTOTYPES: np.array(vectors, dtype=np.float32),
            CLUSTER_CLASSES: np.array(classes, dtype=np.int32),
        }
    )


def received(**settings: Any) -> tuple[Any, Any]:
    """A client in eval mode, and the cluster prototypes it has received."""
    sent = clusters()
    return trainer_after(sent, "fpl", **settings), sent.tensors[CLUSTER_PROTOTYPES].astype(np.float64)


# --- the objective


def reference_terms(z: list[list[float]], labels: list[int], rows: Any, tau: float) -> tuple[float, float]:
    """L_cpcl and L_upcr, sample by sample."""
    cpcl = upcr = 0.0
    for vector, label in zip(z, labels, strict=True):
        exponentials = [
            math.exp(float(np.dot(vector, row)) / math.hypot(*vector) / math.hypot(*row) / tau) for row in rows
        ]
        own = [j for j, class_id in enumerate(SENT_CLASSES) if class_id == label]
        if own:
            cpcl -= math.log(sum(exponentials[j] for j in own) / sum(exponentials))
            unbiased = sum(rows[j] for j in own) / len(own)
            upcr += sum((a - b) ** 2 for a, b in zip(vector, unbiased, strict=True)) / len(vector)
    return cpcl / len(z), upcr / len(z)


@pytest.mark.parametrize("tau", [0.02, 0.5])
def test_the_objective_is_the_sum_of_three_terms(tau: float) -> None:
    client, rows = received(tau=tau)
    images, labels = small_batch()
    z = client.features(images).detach()
    cpcl, upcr = reference_terms(z.double().tolist(), labels.tolist(), rows, tau)
    objective = client.objective(images, labels)
    assert objective.terms["cpcl"].item() == pytest.approx(cpcl, rel=1e-4)
    assert objective.terms["upcr"].item() == pytest.approx(upcr, rel=1e-5)
    ce = F.cross_entropy(client.head(z), labels).item()
    assert objective.total.item() == pytest.approx(ce + cpcl + upcr, rel=1e-4)


@pytest.mark.parametrize("term", ["cpcl", "upcr"])
def test_a_sample_of_a_class_without_prototype_gets_no_gradient_from_either_term(term: str) -> None:
    client, _ = received()
    z = torch.randn(6, WIDTH, requires_grad=True)
    labels = torch.tensor([0, 2, 1, 2, 3, 4])
    (gradient,) = torch.autograd.grad(client.terms(z, labels)[term], z)
    unknown = (labels == 2) | (labels == 4)
    assert torch.equal(gradient[unknown], torch.zeros(3, WIDTH))
    if term == "upcr":
        assert (gradient[~unknown] != 0).all()


# --- inference


@pytest.mark.parametrize("inference", ["head", "prototype"])
def test_both_rules_predict_and_the_configured_one_is_the_main_one(inference: str) -> None:
    client, rows = received(inference=inference)
    assert client.inference == inference
    assert small_trainer("fpl").inference == "head"
    images, _ = small_batch()
    found = client.predict(images)
    assert set(found) == set(client.inference_rules) == {"head", "prototype"}
    unbiased = {0: rows[:2].mean(axis=0), 1: rows[2], 3: rows[3:].mean(axis=0)}
    z = client.features(images).detach().double().numpy()
    assert found["prototype"].tolist() == [min(unbiased, key=lambda c: np.square(v - unbiased[c]).sum()) for v in z]
    assert torch.equal(found["head"], client.logits(images).argmax(dim=1))


def test_without_prototypes_every_prediction_by_prototype_is_wrong() -> None:
    client = small_trainer("fpl")
    client.receive(Payload(), completed_rounds=0)
    assert (client.predict(small_batch()[0])["prototype"] == NO_CLASS).all()


@pytest.mark.parametrize("missing", [CLUSTER_CLASSES, CLUSTER_PROTOTYPES])
def test_rows_and_their_classes_must_come_together(missing: str) -> None:
    client, sent = small_trainer("fpl"), clusters()
    with pytest.raises(PayloadError, match="every row"):
        client.receive(
            Payload(tensors={name: t for name, t in sent.tensors.items() if name != missing}), completed_rounds=1
        )
    shortened = {**sent.tensors, missing: sent.tensors[missing][:-1]}
    with pytest.raises(PayloadError, match="every row"):
        client.receive(Payload(tensors=shortened), completed_rounds=1)


# --- the server


def around(direction: int, seed: int) -> Any:
    """A vector close to an axis."""
    return 5 * np.eye(WIDTH)[direction] + 0.1 * np.random.default_rng(seed).standard_normal(WIDTH)


def sent_by(*vectors: Any, class_id: int = 2) -> list[Any]:
    """One upload per vector, all of one class."""
    return [upload_of(i, prototype_set([class_id], [vector])) for i, vector in enumerate(vectors)]


def aggregated(uploads: list[Any], state: Payload | None = None) -> Payload:
    strategy = small_strategy("fpl", clients=len(uploads))
    found: Payload = strategy.aggregate(state or Payload(), iter(uploads), round_number=0)
    return found


@pytest.mark.parametrize("count", [1, 2, 3])
def test_up_to_three_vectors_give_their_mean(count: int) -> None:
    vectors = [around(i, seed=i) for i in range(count)]
    state = aggregated(sent_by(*vectors))
    assert state.tensors[CLUSTER_CLASSES].tolist() == [2]
    mean = np.mean(np.array(vectors, dtype=np.float32), axis=0, dtype=np.float64)
    np.testing.assert_allclose(state.tensors[CLUSTER_PROTOTYPES], [mean], rtol=1e-6, atol=1e-7)


def test_two_groups_far_apart_in_angle_give_two_prototypes() -> None:
    groups = [[around(axis, seed=10 * axis + i) for i in range(3)] for axis in (0, 1)]
    state = aggregated(sent_by(*itertools.chain(*zip(*groups, strict=True))))
    assert state.tensors[CLUSTER_CLASSES].tolist() == [2, 2]
    found = sorted(state.tensors[CLUSTER_PROTOTYPES].tolist())
    expected = sorted(np.mean(np.array(group, dtype=np.float32), axis=0, dtype=np.float64).tolist() for group in groups)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_permuting_clients_changes_no_bit() -> None:
    rng = np.random.default_rng(0)
    vectors = [rng.standard_normal(WIDTH) for _ in range(9)]
    vectors.append(vectors[0])  # a tie
    first = encode(aggregated(sent_by(*vectors))).manifest.sha256
    for _ in range(5):
        order = rng.permutation(len(vectors))
        assert encode(aggregated(sent_by(*(vectors[i] for i in order)))).manifest.sha256 == first


def test_classes_are_clustered_separately_and_ordered() -> None:
    uploads = [upload_of(i, prototype_set([0, 3], [around(i % 2, i), around(4, i)])) for i in range(6)]
    state = aggregated(uploads)
    classes = state.tensors[CLUSTER_CLASSES].tolist()
    assert classes == sorted(classes)
    assert classes.count(0) == 2
    apart = [upload_of(i, prototype_set([0], prototypes_of(u.payload).vectors[:1])) for i, u in enumerate(uploads)]
    np.testing.assert_array_equal(aggregated(apart).tensors[CLUSTER_PROTOTYPES], state.tensors[CLUSTER_PROTOTYPES][:2])


def test_a_class_that_no_client_uploaded_keeps_its_clusters() -> None:
    state = clusters()
    later = aggregated(sent_by(around(0, 1), class_id=1), state)
    assert later.tensors[CLUSTER_CLASSES].tolist() == SENT_CLASSES
    changed = later.tensors[CLUSTER_PROTOTYPES] != state.tensors[CLUSTER_PROTOTYPES]
    assert changed.any(axis=1).tolist() == [class_id == 1 for class_id in SENT_CLASSES]


def test_a_round_without_samples_changes_nothing() -> None:
    empty = [upload_of(0, prototype_set([]))]
    assert not aggregated(empty).tensors
    assert encode(aggregated(empty, clusters())).manifest.sha256 == encode(clusters()).manifest.sha256


# --- over the wire


@pytest.mark.parametrize(
    ("classes", "per_class", "down"), [(10, 1, 20_480), (100, 1, 204_800), (10, 3, 61_440), (100, 3, 614_400)]
)
def test_an_exchange_has_the_size_of_its_prototypes(classes: int, per_class: int, down: int) -> None:
    """Six clients in three clusters, pairs in the direction of one axis, or in one cluster."""
    axes = np.eye(512)[[0, 0, 1, 1, 2, 2] if per_class == 3 else [0] * 6] + 1e-3 * np.eye(512)[3:9]
    sets = [prototype_set(range(classes), np.tile(axis, (classes, 1))) for axis in axes]
    strategy = small_strategy("fpl", classes=classes, width=512, clients=6)
    state = strategy.aggregate(Payload(), iter(upload_of(i, s) for i, s in enumerate(sets)), round_number=0)
    reply = strategy.reply(state, None)
    assert len(encode(Payload(prototypes=sets[0])).body()) == 2048 * classes
    rows = classes * per_class
    assert len(encode(reply).body()) == down + 4 * rows  # plus the class of each row
    over_the_wire(reply, download_rules("fpl", clients=6, classes=classes, width=512))


def test_both_directions_pass_their_own_rules_unchanged() -> None:
    images, labels = small_batch()
    upload = small_trainer("fpl").collect(images, labels, batch_size=8)
    arrived = over_the_wire(
        upload, upload_rules("fpl"), label_counts=torch.bincount(labels, minlength=CLASSES).tolist()
    )
    assert np.array_equal(prototypes_of(arrived).vectors, upload.prototypes.vectors)
    rules = download_rules("fpl", clients=6)
    assert not over_the_wire(small_strategy("fpl").initial(), rules).tensors
    reply = over_the_wire(clusters(), rules)
    assert np.array_equal(reply.tensors[CLUSTER_PROTOTYPES], clusters().tensors[CLUSTER_PROTOTYPES])
    assert reply.tensors[CLUSTER_CLASSES].tolist() == SENT_CLASSES


def test_more_clusters_than_half_the_clients_can_make_are_refused() -> None:
    everything = clusters(sorted([*range(CLASSES)] * 2))
    over_the_wire(everything, download_rules("fpl", clients=5))
    with pytest.raises(PayloadError, match="shape"):
        over_the_wire(everything, download_rules("fpl", clients=3))


def test_a_class_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PayloadError, match=CLUSTER_CLASSES):
        over_the_wire(clusters([0, CLASSES]), download_rules("fpl"))


def test_a_federation_learns() -> None:
    outcome = run_in_process("fpl")
    assert outcome.of("head")[-1] > outcome.of("head")[0] + 0.3
    assert outcome.of("prototype")[-1] > 0.5
