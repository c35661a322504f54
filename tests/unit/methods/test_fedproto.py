"""FedProto: objective, upload, aggregation and predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
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

from feddbp_client.methods.scores import NO_CLASS
from feddbp_common.wire import Payload, encode

# --- the objective


@pytest.mark.parametrize("lambda_proto", [10.0, 0.3])
def test_with_prototypes_the_objective_adds_the_weighted_mean_squared_error(lambda_proto: float) -> None:
    client, sent = trainer_with_prototypes("fedproto", lambda_proto=lambda_proto)
    images, labels = small_batch()
    z = client.features(images).detach().double()
    rows = dict(zip(sent.class_ids.tolist(), sent.vectors.astype(np.float64), strict=True))
    squares = 0.0
    for vector, label in zip(z.tolist(), labels.tolist(), strict=True):
        if label in rows:
            squares += sum((a - b) ** 2 for a, b in zip(vector, rows[label], strict=True))
    ce = -sum(
        torch.log_softmax(client.head(client.features(images)).double(), 1)[i, label].item()
        for i, label in enumerate(labels.tolist())
    ) / len(labels)
    expected = ce + lambda_proto * squares / (len(labels) * WIDTH)
    assert client.objective(images, labels).total.item() == pytest.approx(expected, rel=1e-5)


def test_a_sample_of_a_class_without_prototype_gets_no_gradient_from_the_alignment() -> None:
    client, _ = trainer_with_prototypes("fedproto")
    z = torch.randn(6, WIDTH, requires_grad=True)
    labels = torch.tensor([0, 2, 1, 2, 3, 4])
    (gradient,) = torch.autograd.grad(client.terms(z, labels)["proto"], z)
    unknown = (labels == 2) | (labels == 4)
    assert torch.equal(gradient[unknown], torch.zeros(3, WIDTH))
    assert (gradient[~unknown] != 0).all()


def test_an_empty_download_removes_the_prototypes() -> None:
    client, _ = trainer_with_prototypes("fedproto")
    client.receive(Payload(), completed_rounds=2)
    assert list(client.objective(*small_batch()).terms) == ["ce"]


def test_a_download_is_not_part_of_the_models_state() -> None:
    client, _ = trainer_with_prototypes("fedproto")
    assert set(client.state_dict()) == set(small_trainer("fedproto").state_dict())


# --- the upload


def test_an_upload_has_the_mean_feature_of_every_class_of_the_client() -> None:
    client = small_trainer("fedproto").train()
    images, labels = small_batch()
    sent = client.collect(images, labels, batch_size=7).prototypes  # the last batch is partial
    assert client.training
    z = client.eval().features(images).detach().double().numpy()
    assert sent.class_ids.tolist() == [0, 1, 2, 3]
    assert sent.counts is None
    for class_id, vector in zip(sent.class_ids, sent.vectors, strict=True):
        np.testing.assert_allclose(vector, z[labels.numpy() == class_id].mean(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("collect", "epochs_counted"), [("running", [0, 1]), ("last_epoch", [1])])
def test_means_can_be_taken_while_training_as_in_published_code(collect: str, epochs_counted: list[int]) -> None:
    client = small_trainer("fedproto", collect=collect).train()
    images, labels = small_batch()
    client.backbone[3].p = 0.0  # without dropout a pass in train mode can be repeated
    seen = []
    for epoch in range(2):
        client.begin_epoch(epoch, 2)
        seen.append(client.features(images).detach().double().numpy())
        client.objective(images, labels).total.backward()
        with torch.no_grad():
            for parameter in client.parameters():
                parameter -= 0.1 * parameter.grad
    sent = client.collect(images, labels, batch_size=8).prototypes
    for class_id, vector in zip(sent.class_ids, sent.vectors, strict=True):
        own = np.concatenate([seen[epoch][labels.numpy() == class_id] for epoch in epochs_counted])
        np.testing.assert_allclose(vector, own.mean(axis=0), rtol=1e-4, atol=1e-6)


# --- inference


def test_the_nearest_known_prototype_predicts() -> None:
    client, sent = trainer_with_prototypes("fedproto")
    images, _ = small_batch()
    found = client.predict(images)
    z = client.features(images).detach().double().numpy()
    expected = [
        min(sent.class_ids.tolist(), key=lambda c: np.square(v - sent.vectors[sent.class_ids == c][0]).sum()) for v in z
    ]
    assert found["prototype"].tolist() == expected
    assert torch.equal(found["head"], client.logits(images).argmax(dim=1))


def test_without_prototypes_every_prediction_is_wrong() -> None:
    client = small_trainer("fedproto")
    client.receive(Payload(), completed_rounds=0)
    assert (client.predict(small_batch()[0])["prototype"] == NO_CLASS).all()


@pytest.mark.parametrize("inference", ["prototype", "head"])
def test_both_rules_predict_and_the_configured_one_is_the_main_one(inference: str) -> None:
    client = small_trainer("fedproto", inference=inference)
    assert client.inference == inference
    assert set(client.inference_rules) == {"prototype", "head"}


# --- the server


UPLOADS = [
    upload_of(0, prototype_set([0, 1, 2], seed=1)),
    upload_of(1, prototype_set([1, 4], seed=2)),
    upload_of(2, prototype_set([0, 1], seed=3)),
]


def test_prototypes_are_plain_means_over_the_clients_that_have_the_class() -> None:
    averaged = small_strategy("fedproto").aggregate(Payload(), iter(UPLOADS), round_number=0).prototypes
    assert averaged.class_ids.tolist() == [0, 1, 2, 4]
    for class_id, vector in zip(averaged.class_ids, averaged.vectors, strict=True):
        sets = [prototypes_of(upload.payload) for upload in UPLOADS]
        own = [s.vectors[s.class_ids == class_id][0].astype(np.float64) for s in sets if class_id in s.class_ids]
        assert vector.tolist() == (sum(own) / len(own)).astype(np.float32).tolist()


def test_a_class_that_no_client_uploaded_keeps_its_prototype() -> None:
    strategy = small_strategy("fedproto")
    state = strategy.aggregate(Payload(), iter(UPLOADS), round_number=0)
    later = strategy.aggregate(state, iter(UPLOADS[2:]), round_number=1)
    assert later.prototypes.class_ids.tolist() == [0, 1, 2, 4]
    assert np.array_equal(later.prototypes.vectors[2:], state.prototypes.vectors[2:])
    assert not np.array_equal(later.prototypes.vectors[:2], state.prototypes.vectors[:2])


def test_a_round_without_samples_changes_nothing() -> None:
    strategy = small_strategy("fedproto")
    state = strategy.aggregate(Payload(), iter(UPLOADS), round_number=0)
    later = strategy.aggregate(state, iter([upload_of(0, prototype_set([]))]), round_number=1)
    assert encode(later).manifest.sha256 == encode(state).manifest.sha256


# --- over the wire


@pytest.mark.parametrize(("classes", "expected"), [(10, 20_480), (100, 204_800)])
def test_an_exchange_has_the_size_of_its_prototypes(classes: int, expected: int) -> None:
    sent = prototype_set(range(classes), np.ones((classes, 512)))
    strategy = small_strategy("fedproto", classes=classes, width=512)
    state = strategy.aggregate(Payload(), iter([upload_of(0, sent)]), round_number=0)
    for payload in (Payload(prototypes=sent), strategy.reply(state, None)):
        assert encode(payload).manifest.total_bytes == len(encode(payload).body()) == expected


def test_both_directions_pass_their_own_rules_unchanged() -> None:
    images, labels = small_batch()
    upload = small_trainer("fedproto").collect(images, labels, batch_size=8)
    arrived = over_the_wire(
        upload, upload_rules("fedproto"), label_counts=torch.bincount(labels, minlength=CLASSES).tolist()
    )
    assert np.array_equal(prototypes_of(arrived).vectors, upload.prototypes.vectors)
    strategy = small_strategy("fedproto")
    rules = download_rules("fedproto")
    assert over_the_wire(strategy.reply(strategy.initial(), None), rules).prototypes is None
    state = strategy.aggregate(Payload(), iter(UPLOADS), round_number=0)
    reply = over_the_wire(strategy.reply(state, None), rules)
    assert np.array_equal(prototypes_of(reply).vectors, state.prototypes.vectors)


def test_a_federation_learns() -> None:
    outcome = run_in_process("fedproto")
    accuracies = outcome.of("prototype")
    assert accuracies[0] == 0
    assert accuracies[-1] > 0.6
    assert len(set(outcome.digests)) == 3
