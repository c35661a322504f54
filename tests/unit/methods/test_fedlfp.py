"""FedLFP: contrast on the client, prototypes without class labels on the wire, clusters on the server."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_federations import (
    CLASSES,
    SAMPLES,
    WIDTH,
    download_rules,
    over_the_wire,
    run_in_process,
    small_batch,
    small_strategy,
    small_trainer,
    trainer_after,
    upload_of,
    upload_rules,
)

from feddbp_client.losses import directions
from feddbp_client.methods.fedlfp import Distance, class_directions, pull_to_prototypes, supervised_contrast
from feddbp_common.errors import PayloadError
from feddbp_common.wire import Payload, PayloadRules, WireType, check_manifest, check_values, decode, encode

Vector = list[float]
LABEL_COUNTS = [100] * CLASSES


def unit(vector: Vector) -> Vector:
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def slow_contrast(z: list[Vector], labels: list[int], tau: float) -> float:
    total = 0.0
    for a, anchor in enumerate(z):
        positives = [p for p in range(len(z)) if p != a and labels[p] == labels[a]]
        if not positives:
            continue
        below = sum(math.exp(dot(anchor, z[b]) / tau) for b in range(len(z)) if b != a)
        total -= sum(math.log(math.exp(dot(anchor, z[p]) / tau) / below) for p in positives) / len(positives)
    return total / len(z)


def slow_pull(vectors: list[Vector], prototypes: list[Vector], form: str, rho: float) -> float:
    total = 0.0
    for vector in vectors:
        shares = [math.exp(dot(vector, g)) for g in prototypes]
        for share, g in zip(shares, prototypes, strict=True):
            squared = sum((x - y) ** 2 for x, y in zip(vector, g, strict=True))
            distance = squared if form == "squared" else math.exp(-rho * dot(vector, g))
            total += distance * share / sum(shares)
    return total / len(vectors)


def slow_class_means(z: list[Vector], labels: list[int]) -> list[Vector]:
    means = []
    for label in sorted(set(labels)):
        own = [vector for vector, other in zip(z, labels, strict=True) if other == label]
        means.append([sum(column) / len(own) for column in zip(*own, strict=True)])
    return means


def global_prototypes(count: int = CLASSES, seed: int = 3) -> Any:
    vectors = np.random.default_rng(seed).standard_normal((count, WIDTH))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def received(**settings: Any) -> tuple[Any, Any]:
    """A client in eval mode, and the global prototypes it has received."""
    sent = global_prototypes()
    return trainer_after(Payload(tensors={"global_prototypes": sent}), "fedlfp", **settings), sent


def rows_of(seed: int, count: int = CLASSES) -> Payload:
    random = np.random.default_rng(seed)
    return Payload(
        tensors={
            "local_prototypes": global_prototypes(count, seed),
            "confidence": random.uniform(0.3, 1.0, count).astype(np.float32),
            "counts": random.integers(1, 90, count).astype(np.int32),
        }
    )


# --- the objective


@pytest.mark.parametrize("distance", ["squared", "exponential"])
def test_the_objective_equals_slow_loops_in_double_precision(distance: str) -> None:
    client, sent = received(distance=distance, rho=0.7, tau=0.3, lambda_contrast=0.4)
    images, labels = small_batch()
    objective = client.objective(images, labels)
    z = client.features(images).detach().double().tolist()
    directed, classes = [unit(v) for v in z], labels.tolist()
    of_classes = [unit(v) for v in slow_class_means(z, classes)]
    prototypes = sent.astype(np.float64).tolist()
    expected = {
        "ce": F.cross_entropy(client.logits(images).double(), labels).item(),
        "contrast": slow_contrast(directed, classes, 0.3),
        "pull_samples": slow_pull(directed, prototypes, distance, 0.7),
        "pull_classes": slow_pull(of_classes, prototypes, distance, 0.7),
    }
    assert {name: term.item() for name, term in objective.terms.items()} == pytest.approx(expected, rel=1e-5)
    total = expected["ce"] + 0.4 * (expected["contrast"] + expected["pull_samples"] + expected["pull_classes"])
    assert objective.total.item() == pytest.approx(total, rel=1e-5)


def test_a_sample_alone_in_its_class_adds_zero_and_counts_in_the_average() -> None:
    z = directions(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)))
    labels = torch.tensor([0, 0, 1, 2])
    expected = slow_contrast(z.tolist(), labels.tolist(), 0.2)
    assert supervised_contrast(z, labels, 0.2).item() == pytest.approx(expected)


def test_a_batch_without_any_pair_has_no_contrast_and_no_gradient() -> None:
    z = torch.randn(3, WIDTH, requires_grad=True)
    loss = supervised_contrast(directions(z), torch.tensor([0, 1, 2]), 0.2)
    (gradient,) = torch.autograd.grad(loss, z)
    assert loss.item() == 0
    assert torch.equal(gradient, torch.zeros_like(z))


@pytest.mark.parametrize("samples", [1, 2])
def test_the_smallest_batches_and_zero_features_give_finite_losses(samples: int) -> None:
    z = torch.zeros(samples, WIDTH, requires_grad=True)
    labels = torch.zeros(samples, dtype=torch.int64)
    means, present = class_directions(z, labels, CLASSES)
    pulls = pull_to_prototypes(means, torch.tensor(global_prototypes()), Distance("squared", 0.1))
    loss = supervised_contrast(directions(z), labels, 1e-3) + pulls[present].sum()
    (gradient,) = torch.autograd.grad(loss, z)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()


def test_a_class_that_is_not_in_the_batch_has_no_direction() -> None:
    z = torch.randn(5, WIDTH, dtype=torch.float64)
    means, present = class_directions(z, torch.tensor([3, 0, 3, 0, 3]), CLASSES)
    assert present.tolist() == [True, False, False, True, False]
    torch.testing.assert_close(means[3], F.normalize(z[[0, 2, 4]].mean(dim=0), dim=0))
    assert not means[~present].any()


def test_a_vector_is_pulled_towards_the_most_similar_prototype() -> None:
    vector = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    near, far = torch.tensor([[0.6, 0.8]]), torch.tensor([[-1.0, 0.0]])
    pulled = pull_to_prototypes(vector, torch.cat([near, far]), Distance("squared", 0.1))
    (gradient,) = torch.autograd.grad(pulled.sum(), vector)
    assert (-gradient[0] @ near[0].double()) > 0


# --- the upload


def test_an_upload_has_directions_confidences_and_counts_and_no_class() -> None:
    client = small_trainer("fedlfp").train()
    images, labels = small_batch()
    torch.manual_seed(5)
    sent = client.collect(images, labels, batch_size=7)
    assert client.training
    assert sent.prototypes is None
    assert sent.tensors["counts"].tolist() == [SAMPLES // 4] * 4
    client.eval()
    means = slow_class_means(client.features(images).detach().double().tolist(), labels.tolist())
    expected = {}
    for vector in map(unit, means):
        answer = torch.softmax(client.head(torch.tensor([vector])), dim=1).max().item()
        expected[round(vector[0], 4)] = (vector, answer)
    assert len(expected) == len(sent.tensors["local_prototypes"]) == 4
    for row, confidence in zip(sent.tensors["local_prototypes"], sent.tensors["confidence"], strict=True):
        vector, answer = expected[round(float(row[0]), 4)]
        np.testing.assert_allclose(row, vector, rtol=1e-4, atol=1e-6)
        assert confidence == pytest.approx(answer, rel=1e-5)


def test_the_order_of_rows_depends_on_neither_their_classes_nor_the_seed() -> None:
    client, (images, labels) = small_trainer("fedlfp"), small_batch()
    bodies = set()
    for seed in range(6):
        torch.manual_seed(seed)  # which the server knows
        renamed = torch.from_numpy(np.random.default_rng(seed).permutation(CLASSES))[labels]
        bodies.add(encode(client.collect(images, renamed, batch_size=64)).body())
    assert len(bodies) == 1


@pytest.mark.parametrize("collect", ["running", "last_epoch"])
def test_means_can_be_taken_while_training(collect: str) -> None:
    client = small_trainer("fedlfp", collect=collect).eval()
    images, labels = small_batch()
    client.begin_epoch(0, 1)
    client.objective(images, labels)
    torch.manual_seed(0)
    during = client.collect(images, labels, batch_size=64)
    torch.manual_seed(0)
    afterwards = small_trainer("fedlfp").eval()
    torch.manual_seed(0)
    expected = afterwards.collect(images, labels, batch_size=64)
    np.testing.assert_allclose(
        during.tensors["local_prototypes"], expected.tensors["local_prototypes"], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(("classes", "up", "down"), [(10, 20_560, 20_480), (100, 205_600, 204_800)])
def test_payloads_have_their_documented_size(classes: int, up: int, down: int) -> None:
    rows = Payload(
        tensors={
            "local_prototypes": np.zeros((classes, 512), np.float32),
            "confidence": np.full(classes, 0.5, np.float32),
            "counts": np.ones(classes, np.int32),
        }
    )
    sent = over_the_wire(rows, upload_rules("fedlfp", classes=classes, width=512))
    assert encode(sent).manifest.total_bytes == up
    strategy = small_strategy("fedlfp", classes=classes, width=512)
    state = strategy.aggregate(Payload(), [upload_of(0, sent, [1] * classes)], round_number=0)
    reply = over_the_wire(strategy.reply(state, None), download_rules("fedlfp", classes=classes, width=512))
    assert encode(reply).manifest.total_bytes == down


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_the_least_confidence_is_accepted_in_half_precision(half: str) -> None:
    rows = {**rows_of(1).tensors, "confidence": np.full(CLASSES, 1 / CLASSES, np.float32)}
    encoded = encode(Payload(tensors=rows), real_type=WireType(half))
    check_manifest(encoded.manifest, upload_rules("fedlfp"), max_bytes=10_000)
    check_values(decode(encoded.manifest, encoded.body()), upload_rules("fedlfp"))


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("counts", np.ones(CLASSES - 1, np.int32), "counts: has 4 rows, but local_prototypes has 5"),
        ("confidence", np.ones(CLASSES - 2, np.float32), "confidence: has 3 rows, but local_prototypes has 5"),
        ("counts", np.zeros(CLASSES, np.int32), "counts: has a value of 0"),
        ("confidence", np.zeros(CLASSES, np.float32), "confidence: has a value of 0"),
        ("confidence", np.full(CLASSES, 1.5, np.float32), "confidence: has a value of 1.5"),
        ("local_prototypes", np.zeros((CLASSES + 1, WIDTH), np.float32), "local_prototypes: has shape"),
        ("class_ids", np.zeros(CLASSES, np.int32), "class_ids"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(name: str, tensor: Any, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        over_the_wire(Payload(tensors={**rows_of(1).tensors, name: tensor}), upload_rules("fedlfp"))


def test_confidences_and_counts_without_prototypes_are_refused() -> None:
    rule = replace(upload_rules("fedlfp").tensors[0], required=False)
    rules = PayloadRules(tensors=(rule, *upload_rules("fedlfp").tensors[1:]))
    tensors = {name: tensor for name, tensor in rows_of(1).tensors.items() if name != "local_prototypes"}
    with pytest.raises(PayloadError, match="local_prototypes: is missing, but confidence is present"):
        over_the_wire(Payload(tensors=tensors), rules)


# --- the server


def uploads(*seeds: int) -> list[Any]:
    return [upload_of(client, rows_of(seed), LABEL_COUNTS) for client, seed in enumerate(seeds)]


def centroids(payload: Payload) -> Any:
    return payload.tensors["global_prototypes"]


def test_global_prototypes_are_unit_centroids() -> None:
    found = centroids(small_strategy("fedlfp").aggregate(Payload(), uploads(1, 2, 3), round_number=0))
    assert found.dtype == np.float32
    assert found.shape == (CLASSES, WIDTH)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)


def test_a_single_cluster_is_the_mean_weighted_by_samples_and_confidence() -> None:
    sent = uploads(1, 2)
    strategy = small_strategy("fedlfp", clusters=1, unit_centroids=False)
    found = centroids(strategy.aggregate(Payload(), sent, round_number=0))
    rows = [
        (vector.astype(float), float(s), int(q))
        for upload in sent
        for vector, s, q in zip(*upload.payload.tensors.values(), strict=True)
    ]
    samples, confidences = sum(q for _, _, q in rows), sum(s for _, s, _ in rows)
    weights = [len(rows) * q / samples + len(rows) * s / confidences for _, s, q in rows]
    expected = sum(w * vector for w, (vector, _, _) in zip(weights, rows, strict=True)) / sum(weights)
    np.testing.assert_allclose(found, [expected], rtol=1e-5, atol=1e-7)


def test_neither_arrival_nor_the_order_of_rows_changes_a_bit() -> None:
    strategy = small_strategy("fedlfp")
    expected = centroids(strategy.aggregate(Payload(), uploads(1, 2, 3), round_number=4))
    shuffled = []
    for upload in reversed(uploads(1, 2, 3)):
        order = np.random.default_rng(upload.client_id).permutation(CLASSES)
        tensors = {name: tensor[order] for name, tensor in upload.payload.tensors.items()}
        shuffled.append(upload_of(upload.client_id, Payload(tensors=tensors), LABEL_COUNTS))
    assert centroids(strategy.aggregate(Payload(), shuffled, round_number=4)).tobytes() == expected.tobytes()


def test_the_initial_centroids_depend_on_run_seed_and_round_only() -> None:
    def clustered(seed: int, number: int) -> bytes:
        strategy = small_strategy("fedlfp", seed=seed, iterations=1)
        return bytes(centroids(strategy.aggregate(Payload(), uploads(1, 2, 3), round_number=number)).tobytes())

    assert clustered(0, 0) == clustered(0, 0)
    assert len({clustered(0, 0), clustered(0, 1), clustered(1, 0)}) == 3


def test_fewer_rows_than_clusters_make_no_prototypes() -> None:
    strategy = small_strategy("fedlfp")
    few = [upload_of(0, rows_of(1, CLASSES - 1), LABEL_COUNTS)]
    nothing = strategy.aggregate(Payload(), few, round_number=0)
    assert list(strategy.reply(nothing, None).arrays()) == []
    before = strategy.aggregate(Payload(), uploads(1, 2), round_number=0)
    assert strategy.aggregate(before, few, round_number=1) is before
    assert strategy.aggregate(before, [], round_number=1) is before


def test_a_clients_weight_is_capped_by_its_declared_samples() -> None:
    strategy = small_strategy("fedlfp")

    def claiming(count: int) -> Any:
        tensors = {**rows_of(1).tensors, "counts": np.full(CLASSES, count, np.int32)}
        exaggerated = upload_of(0, Payload(tensors=tensors), LABEL_COUNTS)
        return centroids(strategy.aggregate(Payload(), [exaggerated, *uploads(2, 3)[1:]], round_number=0))

    assert claiming(100).tobytes() == claiming(2**31 - 1).tobytes()
    assert claiming(100).tobytes() != claiming(1).tobytes()


@pytest.mark.parametrize(("clusters", "expected"), [(None, CLASSES), (3, 3), (9, 9)])
def test_the_number_of_clusters_is_a_setting(clusters: int | None, expected: int) -> None:
    state = small_strategy("fedlfp", clusters=clusters).aggregate(Payload(), uploads(1, 2, 3), round_number=0)
    reply = over_the_wire(state, download_rules("fedlfp", clusters=clusters))
    assert centroids(reply).shape == (expected, WIDTH)


# --- a federation


def test_a_client_trains_with_prototypes_from_the_wire() -> None:
    client = small_trainer("fedlfp")
    strategy = small_strategy("fedlfp")
    sent = over_the_wire(client.collect(*small_batch(), batch_size=8), upload_rules("fedlfp"))
    state = strategy.aggregate(Payload(), [upload_of(i, sent, LABEL_COUNTS) for i in range(2)], round_number=0)
    client.receive(over_the_wire(strategy.reply(state, None), download_rules("fedlfp")), completed_rounds=1)
    assert set(client.objective(*small_batch()).terms) == {"ce", "contrast", "pull_samples", "pull_classes"}
    assert set(client.state_dict()) == set(small_trainer("fedlfp").state_dict())


def test_a_federation_of_three_clients_learns() -> None:
    accuracies = run_in_process("fedlfp").of("head")
    assert accuracies[-1] > accuracies[0] + 0.3
