"""FD: clients exchange mean logits per class and distil their outputs from them."""

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
from torch import Tensor

from feddbp_client.data import ClientData, Split
from feddbp_client.methods.fd import distillation
from feddbp_client.methods.received import ClassTable
from feddbp_client.training.trainer import LocalTrainer
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.wire import Payload, PrototypeSet, decode, encode

TARGETS = ["softmax_of_mean", "mean_of_softmax", "raw_logits"]


def logits_of(class_ids: list[int], seed: int = 0) -> PrototypeSet:
    return prototype_set(class_ids, np.random.default_rng(seed).normal(0, 2, (len(class_ids), CLASSES)))


def softmax(row: Any) -> list[float]:
    exponentials = [math.exp(x) for x in row]
    return [x / sum(exponentials) for x in exponentials]


def slow_distillation(logits: Tensor, labels: Tensor, targets: dict[int, list[float]]) -> float:
    total = 0.0
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        if label in targets:
            total -= sum(q * math.log(p) for q, p in zip(targets[label], softmax(row), strict=True))
    return total / len(labels)


# --- the objective


@pytest.mark.parametrize("target", TARGETS)
def test_the_objective_equals_slow_loops_in_double_precision(target: str) -> None:
    sent = logits_of([0, 1, 3])
    client = trainer_after(Payload(prototypes=sent), "fd", target=target, gamma=0.7)
    images, labels = small_batch()
    rows = sent.vectors.astype(np.float64).tolist()
    targets = {
        class_id: softmax(row) if target == "softmax_of_mean" else row
        for class_id, row in zip(sent.class_ids.tolist(), rows, strict=True)
    }
    logits = client.logits(images).detach()
    expected = F.cross_entropy(logits.double(), labels).item() + 0.7 * slow_distillation(logits, labels, targets)
    assert client.objective(images, labels).total.item() == pytest.approx(expected, rel=1e-5)


def test_a_sample_of_a_class_without_logits_gets_no_gradient_from_distillation() -> None:
    table = ClassTable.from_prototypes(logits_of([0, 3]), classes=CLASSES, device=torch.device("cpu"))
    assert table is not None
    logits = torch.randn(6, CLASSES, requires_grad=True)
    labels = torch.tensor([0, 1, 3, 2, 0, 4])
    loss = distillation(logits, table, labels)
    (gradient,) = torch.autograd.grad(loss, logits)
    known = table.known[labels]
    assert not gradient[~known].any()
    assert (gradient[known] != 0).any(dim=1).all()
    alone = distillation(logits[known], table, labels[known])
    torch.testing.assert_close(loss * len(labels), alone * int(known.sum()))


def test_distilling_from_the_own_output_has_no_gradient() -> None:
    # some code distils samples of absent classes from themselves: the result is the same
    logits = torch.randn(4, CLASSES, dtype=torch.float64, requires_grad=True)
    loss = -(logits.detach().softmax(dim=1) * logits.log_softmax(dim=1)).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-15, rtol=0)


def trained_alone(name: str, **settings: Any) -> dict[str, Tensor]:
    """The weights of the only client of a run after two rounds."""
    images, labels = small_batch()
    pixels = images.sub(images.min()).mul(50).byte().permute(0, 2, 3, 1).numpy()
    samples = Split(pixels, labels)
    data = ClientData(samples, samples, CLASSES, tuple("abcde"))
    config = RunConfig(
        method=name,
        method_settings=settings,
        clients=1,
        rounds=2,
        data=DataConfig(dataset="custom", classes=CLASSES),
        training=TrainingConfig(local_epochs=2, batch_size=5, learning_rate=0.1),
    )
    client, strategy = small_trainer(name, **settings), small_strategy(name, **settings)
    run = LocalTrainer(method=client, data=data, config=config, client_id=0)
    state = strategy.initial()
    for number in range(2):
        upload = run.train(strategy.reply(state, None), number, lambda *_: None).upload
        assert upload is not None
        state = strategy.aggregate(state, [upload_of(0, upload)], round_number=number)
    trained: dict[str, Tensor] = client.state_dict()
    return trained


@pytest.mark.parametrize("collect", ["post", "running", "last_epoch"])
def test_one_client_without_distillation_trains_as_in_local_training(collect: str) -> None:
    expected, found = trained_alone("local"), trained_alone("fd", gamma=0.0, collect=collect)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    distilled = trained_alone("fd", gamma=1.0)
    assert not all(torch.equal(expected[name], distilled[name]) for name in expected)


# --- the upload


@pytest.mark.parametrize("target", TARGETS)
def test_an_upload_has_the_mean_output_of_every_class_of_the_client(target: str) -> None:
    client = small_trainer("fd", target=target).train()
    images, labels = small_batch()
    sent = client.collect(images, labels, batch_size=7).prototypes
    assert client.training
    outputs = client.eval().logits(images).detach().double()
    if target == "mean_of_softmax":
        outputs = outputs.softmax(dim=1)
    assert sent.class_ids.tolist() == [0, 1, 2, 3]
    for class_id, row in zip(sent.class_ids, sent.vectors, strict=True):
        np.testing.assert_allclose(row, outputs[labels == int(class_id)].mean(dim=0), rtol=1e-4, atol=1e-6)


def test_means_can_be_taken_over_all_steps_of_a_round() -> None:
    client = small_trainer("fd", collect="running").eval()
    images, labels = small_batch()
    seen = []
    for epoch in range(2):
        client.begin_epoch(epoch, 2)
        seen.append(client.logits(images).detach().numpy())
        client.objective(images, labels)
        with torch.no_grad():
            client.head.bias.add_(1.0)
    sent = client.collect(images, labels, batch_size=8).prototypes
    expected = np.concatenate([part[labels.numpy() == 2] for part in seen]).mean(axis=0)
    np.testing.assert_allclose(sent.vectors[2], expected, rtol=1e-4)


@pytest.mark.parametrize(("classes", "size"), [(10, 400), (100, 40_000)])
def test_payloads_have_their_documented_size(classes: int, size: int) -> None:
    sent = prototype_set(range(classes), np.zeros((classes, classes)))
    strategy = small_strategy("fd", classes=classes)
    arrived = over_the_wire(Payload(prototypes=sent), upload_rules("fd", classes=classes))
    state = strategy.aggregate(Payload(), [upload_of(0, arrived)], round_number=0)
    reply = over_the_wire(strategy.reply(state, None), download_rules("fd", classes=classes))
    assert encode(arrived).manifest.total_bytes == encode(reply).manifest.total_bytes == size


# --- the server


def stored(payload: Payload) -> Payload:
    """The global state as a restarted server restores it."""
    encoded = encode(payload)
    return decode(encoded.manifest, encoded.body())


def rows(payload: Payload) -> dict[int, Any]:
    assert payload.prototypes is not None
    return dict(zip(payload.prototypes.class_ids.tolist(), payload.prototypes.vectors, strict=True))


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_global_logits_are_plain_means_and_absent_classes_keep_theirs(leave_one_out: bool) -> None:
    strategy = small_strategy("fd", leave_one_out=leave_one_out)
    a, b, c = logits_of([0, 2], 1), logits_of([0, 3], 2), logits_of([3], 3)
    state = stored(strategy.aggregate(Payload(), [upload_of(0, a), upload_of(1, b)], round_number=0))
    state = stored(strategy.aggregate(state, [upload_of(2, c)], round_number=1))
    reply = over_the_wire(strategy.reply(state, None), download_rules("fd", leave_one_out=leave_one_out))
    found = rows(reply)
    assert list(found) == [0, 2, 3]
    np.testing.assert_allclose(found[0], (a.vectors[0].astype(float) + b.vectors[0]) / 2, rtol=1e-6)
    np.testing.assert_array_equal(found[2], a.vectors[1])
    np.testing.assert_array_equal(found[3], c.vectors[0])


def test_without_leave_one_out_all_clients_receive_the_same() -> None:
    strategy = small_strategy("fd")
    sent = [logits_of([0, 1], seed) for seed in range(3)]
    state = strategy.aggregate(Payload(), [upload_of(i, logits) for i, logits in enumerate(sent)], round_number=0)
    bodies = {encode(strategy.reply(state, Payload(prototypes=logits))).body() for logits in sent}
    assert len(bodies) == 1


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_only_leave_one_out_needs_a_clients_own_upload(leave_one_out: bool) -> None:
    assert small_strategy("fd", leave_one_out=leave_one_out).personalises == leave_one_out


def test_with_leave_one_out_a_client_receives_the_mean_of_the_others() -> None:
    strategy = small_strategy("fd", leave_one_out=True)
    sent = [logits_of([0, 1, 2], 1), logits_of([0, 1], 2), logits_of([0, 4], 3)]
    state = stored(
        strategy.aggregate(Payload(), [upload_of(i, logits) for i, logits in enumerate(sent)], round_number=0)
    )
    found = rows(over_the_wire(strategy.reply(state, Payload(prototypes=sent[0])), download_rules("fd")))
    # no other client has class 2; class 4 is not one of its own
    assert list(found) == [0, 1, 4]
    others = (sent[1].vectors[0].astype(float) + sent[2].vectors[0]) / 2
    np.testing.assert_allclose(found[0], others, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], sent[1].vectors[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[4], sent[2].vectors[1])


def test_a_client_that_skipped_a_round_is_not_subtracted_from_its_mean() -> None:
    strategy = small_strategy("fd", leave_one_out=True)
    a, b, c, newer = logits_of([0, 1], 1), logits_of([0], 2), logits_of([0], 3), logits_of([0], 4)
    state = stored(strategy.aggregate(Payload(), [upload_of(0, a), upload_of(1, b)], round_number=0))
    state = stored(strategy.aggregate(state, [upload_of(1, newer), upload_of(2, c)], round_number=1))
    found = rows(strategy.reply(state, Payload(prototypes=a)))
    # others have uploaded class 0 since; the mean of class 1 is still its own upload
    assert list(found) == [0]
    np.testing.assert_allclose(found[0], (newer.vectors[0].astype(float) + c.vectors[0]) / 2, rtol=1e-5)


@pytest.mark.parametrize("largest", [1e6, -1e6])
def test_subtracting_a_client_from_a_rounded_mean_stays_within_the_bounds_of_uploads(largest: float) -> None:
    strategy = small_strategy("fd", leave_one_out=True)
    for seed in range(20):
        honest = logits_of([0, 1, 2], seed)
        absurd = replace(honest, vectors=np.full_like(honest.vectors, largest))
        uploads = [upload_of(client_id, sent) for client_id, sent in enumerate((honest, absurd, absurd))]
        state = strategy.aggregate(Payload(), uploads, round_number=0)
        over_the_wire(strategy.reply(state, Payload(prototypes=honest)), download_rules("fd"))


def test_a_round_without_a_single_class_is_followed_by_others() -> None:
    strategy = small_strategy("fd", leave_one_out=True)
    nothing, first = logits_of([]), logits_of([1])
    state = stored(strategy.aggregate(Payload(), [upload_of(0, nothing), upload_of(1, nothing)], round_number=0))
    assert rows(strategy.reply(state, Payload(prototypes=nothing))) == {}
    state = stored(strategy.aggregate(state, [upload_of(0, first), upload_of(1, nothing)], round_number=1))
    assert list(rows(strategy.reply(state, Payload(prototypes=nothing)))) == [1]


def test_a_client_alone_in_all_its_classes_receives_nothing() -> None:
    strategy = small_strategy("fd", leave_one_out=True)
    state = strategy.aggregate(Payload(), [upload_of(0, logits_of([1, 2]))], round_number=0)
    reply = over_the_wire(strategy.reply(state, Payload(prototypes=logits_of([1, 2]))), download_rules("fd"))
    client = small_trainer("fd").eval()
    client.receive(reply, completed_rounds=1)
    assert list(client.objective(*small_batch()).terms) == ["ce"]


# --- a federation


def test_a_federation_of_three_clients_learns() -> None:
    accuracies = run_in_process("fd").of("head")
    assert accuracies[-1] > accuracies[0] + 0.3
