"""FedProc: the contrast with global prototypes, its schedule, and averages weighted by samples."""

from __future__ import annotations

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
    trainer_with_prototypes,
    upload_of,
    upload_rules,
)
from wire_samples import prototypes_of

from feddbp_common.errors import PayloadError
from feddbp_common.wire import Payload, PrototypeSet, encode


def reference_gpc(z: list[list[float]], labels: list[int], sent: PrototypeSet) -> float:
    """Cross-entropy of plain cosines, without a temperature."""
    rows = dict(zip(sent.class_ids.tolist(), sent.vectors.astype(np.float64).tolist(), strict=True))
    total = 0.0
    for vector, label in zip(z, labels, strict=True):
        cosines = {
            class_id: sum(a * b for a, b in zip(vector, row, strict=True)) / math.hypot(*vector) / math.hypot(*row)
            for class_id, row in rows.items()
        }
        if label in cosines:
            total -= math.log(math.exp(cosines[label]) / sum(map(math.exp, cosines.values())))
    return total / len(z)


# --- the objective


@pytest.mark.parametrize(
    ("completed_rounds", "rounds", "schedule_rounds", "share"),
    [(1, 10, None, 0.1), (9, 10, None, 0.9), (1, 3, None, 1 / 3), (5, 10, 100, 0.05), (8, 10, 4, 1.0)],
)
def test_the_weight_moves_from_the_contrast_to_cross_entropy(
    completed_rounds: int, rounds: int, schedule_rounds: int | None, share: float
) -> None:
    client, sent = trainer_with_prototypes(
        "fedproc", completed_rounds=completed_rounds, rounds=rounds, schedule_rounds=schedule_rounds
    )
    images, labels = small_batch()
    z = client.features(images).detach()
    ce = F.cross_entropy(client.head(z), labels).item()
    gpc = reference_gpc(z.double().tolist(), labels.tolist(), sent)
    objective = client.objective(images, labels)
    assert objective.terms["gpc"].item() == pytest.approx(gpc, rel=1e-5)
    assert objective.total.item() == pytest.approx(share * ce + (1 - share) * gpc, rel=1e-5)


def test_the_head_gets_unscaled_features() -> None:
    client, _ = trainer_with_prototypes("fedproc", completed_rounds=1)
    images, labels = small_batch()
    expected = F.cross_entropy(client.head(client.backbone(images)), labels)
    torch.testing.assert_close(client.objective(images, labels).terms["ce"], expected.detach())


def test_a_sample_of_a_class_without_prototype_gets_no_gradient_from_the_contrast() -> None:
    client, _ = trainer_with_prototypes("fedproc", completed_rounds=1)
    z = torch.randn(6, WIDTH, requires_grad=True)
    labels = torch.tensor([0, 2, 1, 2, 3, 4])
    (gradient,) = torch.autograd.grad(client.terms(z, labels)["gpc"], z)
    unknown = (labels == 2) | (labels == 4)
    assert torch.equal(gradient[unknown], torch.zeros(3, WIDTH))
    assert (gradient[~unknown] != 0).all()


def test_the_schedule_of_a_late_client_follows_the_run() -> None:
    client, _ = trainer_with_prototypes("fedproc", completed_rounds=7)
    assert client.weights() == pytest.approx({"ce": 0.7, "gpc": 0.3})


# --- the upload and its aggregation


def upload(client_id: int, seed: int, samples: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A client's upload, with its normalised features and labels."""
    client = small_trainer("fedproc", seed=client_id).eval()
    images, labels = small_batch(seed)
    images, labels = images[:samples], labels[:samples]
    unit = F.normalize(client.features(images).detach().double())
    return upload_of(client_id, client.collect(images, labels, batch_size=7)), unit, labels


def test_prototypes_are_the_pooled_mean_of_all_clients_normalised_features() -> None:
    uploads, features, labels = zip(*(upload(i, i, samples) for i, samples in enumerate((24, 13, 5))), strict=True)
    averaged = small_strategy("fedproc").aggregate(Payload(), iter(uploads), round_number=0).prototypes
    assert averaged.class_ids.tolist() == [0, 1, 2, 3]
    for class_id, vector in zip(averaged.class_ids, averaged.vectors, strict=True):
        pooled = torch.cat(features)[torch.cat(labels) == int(class_id)].mean(dim=0)
        np.testing.assert_allclose(vector, pooled.numpy(), rtol=1e-5, atol=1e-7)


def test_counts_are_those_of_the_training_samples() -> None:
    sent = upload(0, 0, 13)[0].payload.prototypes
    assert sent.counts.tolist() == [4, 3, 3, 3]


def test_clients_can_be_weighted_equally() -> None:
    sets = [prototype_set([1], seed=1, counts=[1]), prototype_set([1], seed=2, counts=[99])]
    uploads = [upload_of(i, sent) for i, sent in enumerate(sets)]
    by_samples, equally = (
        small_strategy("fedproc", weighted=weighted).aggregate(Payload(), iter(uploads), round_number=0).prototypes
        for weighted in (True, False)
    )
    first, second = (sent.vectors.astype(np.float64) for sent in sets)
    np.testing.assert_array_equal(by_samples.vectors, ((first + 99 * second) / 100).astype(np.float32))
    np.testing.assert_array_equal(equally.vectors, ((first + second) / 2).astype(np.float32))


def test_a_class_unseen_in_a_round_keeps_its_old_value() -> None:
    strategy = small_strategy("fedproc")
    state = strategy.aggregate(Payload(), iter([upload_of(0, prototype_set([0, 2], counts=[3, 4]))]), round_number=0)
    later = strategy.aggregate(state, iter([upload_of(0, prototype_set([2], seed=5, counts=[1]))]), round_number=1)
    assert later.prototypes.class_ids.tolist() == [0, 2]
    assert np.array_equal(later.prototypes.vectors[0], state.prototypes.vectors[0])
    assert not np.array_equal(later.prototypes.vectors[1], state.prototypes.vectors[1])


def test_a_round_without_samples_changes_nothing() -> None:
    strategy = small_strategy("fedproc")
    assert len(strategy.aggregate(Payload(), iter([upload_of(0, prototype_set([]))]), round_number=0).prototypes) == 0


# --- over the wire


@pytest.mark.parametrize(("classes", "up", "down"), [(10, 20_520, 20_480), (100, 205_200, 204_800)])
def test_an_exchange_has_the_size_of_its_prototypes_and_counts(classes: int, up: int, down: int) -> None:
    sent = prototype_set(range(classes), np.ones((classes, 512)), counts=[7] * classes)
    strategy = small_strategy("fedproc", classes=classes, width=512)
    encoded = encode(Payload(prototypes=sent))
    assert len(encoded.body()) + 4 * len(encoded.manifest.prototypes.counts) == up  # counts are in the manifest
    state = strategy.aggregate(Payload(), iter([upload_of(0, sent)]), round_number=0)
    reply = encode(strategy.reply(state, None))
    assert len(reply.body()) == down
    assert not reply.manifest.prototypes.counts


def test_both_directions_pass_their_own_rules_unchanged() -> None:
    images, labels = small_batch()
    upload = small_trainer("fedproc").collect(images, labels, batch_size=8)
    label_counts = torch.bincount(labels, minlength=CLASSES).tolist()
    arrived = over_the_wire(upload, upload_rules("fedproc"), label_counts=label_counts)
    prototypes = prototypes_of(arrived)
    assert np.array_equal(prototypes.vectors, upload.prototypes.vectors)
    assert prototypes.counts is not None
    assert np.array_equal(prototypes.counts, upload.prototypes.counts)
    strategy = small_strategy("fedproc")
    state = strategy.aggregate(Payload(), iter([upload_of(0, arrived)]), round_number=0)
    for payload in (strategy.initial(), state):
        over_the_wire(strategy.reply(payload, None), download_rules("fedproc"))


def test_an_upload_without_counts_is_refused() -> None:
    with pytest.raises(PayloadError, match="counts"):
        over_the_wire(Payload(prototypes=prototype_set([0, 1])), upload_rules("fedproc"))


def test_a_federation_learns() -> None:
    accuracies = run_in_process("fedproc").of("head")
    assert accuracies[-1] > accuracies[0] + 0.3
