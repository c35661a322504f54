"""FedTGP: prototypes that the server trains, the margin between them, and FedProto's client."""

from __future__ import annotations

import logging
import subprocess
import sys
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
from torch import Tensor, nn
from wire_samples import prototypes_of

from feddbp_common.config.training import TrainingConfig
from feddbp_common.errors import FedDBPError
from feddbp_common.methods import ExchangeShape
from feddbp_common.methods.fedtgp import FedTGPSettings
from feddbp_common.wire import Payload, WireType, decode, encode
from feddbp_server.strategies import RunFacts
from feddbp_server.strategies.fedtgp import FedTGPStrategy, margin_between
from feddbp_server.strategies.prototype_network import PrototypeNetwork, margin_loss

UPLOADS = [
    upload_of(0, prototype_set([0, 1, 2], seed=1)),
    upload_of(1, prototype_set([1, 4], seed=2)),
    upload_of(2, prototype_set([0, 1, 2], seed=3)),
]


def strategy(**settings: Any) -> Any:
    return small_strategy("fedtgp", **{"server_epochs": 3, "server_batch_size": 4, **settings})


def digest(payload: Payload) -> bytes:
    return encode(payload).manifest.sha256


# --- the network, against torch


class TorchNetwork(nn.Module):
    """The same network in torch."""

    def __init__(self, ours: PrototypeNetwork) -> None:
        super().__init__()
        classes, width = ours.embedding.shape
        self.embedding = nn.Embedding(classes, width)
        self.hidden, self.output = nn.Linear(width, width), nn.Linear(width, width)
        self.load_state_dict(
            {
                "embedding.weight": torch.tensor(ours.embedding),
                "hidden.weight": torch.tensor(ours.hidden_weight),
                "hidden.bias": torch.tensor(ours.hidden_bias),
                "output.weight": torch.tensor(ours.output_weight),
                "output.bias": torch.tensor(ours.output_bias),
            }
        )
        self.double()

    def forward(self) -> Tensor:
        found: Tensor = self.output(self.hidden(self.embedding.weight).relu())
        return found

    def loss(self, vectors: Any, labels: Any, margin: float) -> Tensor:
        distances = torch.cdist(torch.tensor(vectors).double(), self(), compute_mode="donot_use_mm_for_euclid_dist")
        logits = -(distances + margin * F.one_hot(torch.tensor(labels), CLASSES))
        return F.cross_entropy(logits, torch.tensor(labels))


def network(seed: int = 0) -> PrototypeNetwork:
    return PrototypeNetwork.fresh(classes=CLASSES, width=WIDTH, seed=seed)


def pool(seed: int, count: int = 6) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, count)


def test_a_prototype_is_the_networks_output_for_its_class() -> None:
    ours = network()
    np.testing.assert_allclose(ours.prototypes(), TorchNetwork(ours)().detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("margin", [0.0, 0.7, 100.0])
def test_steps_of_training_agree_with_torch(margin: float) -> None:
    ours = network()
    theirs = TorchNetwork(ours)
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for seed in range(5):
        vectors, labels = pool(seed)
        expected = theirs.loss(vectors, labels, margin)
        optimiser.zero_grad()
        expected.backward()
        optimiser.step()
        assert ours.step(vectors, labels, margin=margin, learning_rate=0.1) == pytest.approx(expected.item(), rel=1e-5)
    found = ours.tensors().values()
    for array, parameter in zip(found, theirs.parameters(), strict=True):
        np.testing.assert_allclose(array, parameter.detach().numpy(), rtol=1e-3, atol=1e-5)


def test_the_loss_agrees_with_its_definition() -> None:
    prototypes, (vectors, labels) = network().prototypes(), pool(1)
    total = 0.0
    for vector, label in zip(vectors.astype(np.float64), labels, strict=True):
        distances = [float(np.sqrt(np.square(vector - row).sum())) for row in prototypes.astype(np.float64)]
        distances[label] += 0.7
        total += distances[label] + np.log(sum(np.exp(-distance) for distance in distances))
    found, _ = margin_loss(prototypes, vectors, labels, margin=0.7)
    assert found == pytest.approx(total / len(labels), rel=1e-9)


def test_a_prototype_equal_to_a_vector_has_a_finite_gradient() -> None:
    prototypes, labels = network().prototypes(), np.arange(CLASSES)
    loss, slope = margin_loss(prototypes, prototypes.copy(), labels, margin=1e3)
    assert np.isfinite(loss)
    assert np.isfinite(slope).all()


# --- the margin


def test_the_margin_is_the_largest_distance_of_a_class_to_its_nearest_one() -> None:
    means = np.array([[0, 0], [3, 4], [0, 1], [50, 0]], dtype=np.float32)
    nearest = [min(np.hypot(*(a - b)) for j, b in enumerate(means) if i != j) for i, a in enumerate(means)]
    assert margin_between(means, tau=100.0) == pytest.approx(max(nearest))


@pytest.mark.parametrize("tau", [0.0, 0.5, 2.0])
def test_the_margin_never_exceeds_tau(tau: float) -> None:
    means = np.array([[0, 0], [3, 4]], dtype=np.float32)
    assert margin_between(means, tau=tau) == tau
    assert margin_between(means[:1], tau=tau) == tau


def test_the_margin_comes_from_the_means_of_the_classes_that_were_sent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="feddbp.server"):
        strategy().aggregate(Payload(), iter(UPLOADS), round_number=0)
    sets = [prototypes_of(upload.payload) for upload in UPLOADS]
    means = [np.mean([s.vectors[s.class_ids == c][0] for s in sets if c in s.class_ids], axis=0) for c in (0, 1, 2, 4)]
    expected = margin_between(np.array(means, dtype=np.float32), tau=100.0)
    assert f"margin of {expected:.4g}" in caplog.text


# --- the server's rounds


def test_before_the_first_round_there_are_no_prototypes() -> None:
    assert strategy().reply(strategy().initial(), None).prototypes is None


def test_every_class_has_a_prototype_even_one_that_no_client_uploaded() -> None:
    state = strategy().aggregate(Payload(), iter(UPLOADS), round_number=0)
    assert state.prototypes.class_ids.tolist() == list(range(CLASSES))
    expected = PrototypeNetwork.from_tensors(state.tensors).prototypes()
    assert np.array_equal(state.prototypes.vectors, expected)


def test_the_network_never_leaves_the_server() -> None:
    state = strategy().aggregate(Payload(), iter(UPLOADS), round_number=0)
    assert not strategy().reply(state, None).tensors


def test_a_round_follows_the_definition() -> None:
    """One epoch with one batch of all rows, where the order of rows has no influence."""
    one = strategy(server_epochs=1, server_batch_size=100, server_learning_rate=0.5)
    before = strategy(server_epochs=1, server_learning_rate=1e-30).aggregate(Payload(), iter(UPLOADS), round_number=0)
    theirs = TorchNetwork(PrototypeNetwork.from_tensors(before.tensors))
    sets = [prototypes_of(upload.payload) for upload in UPLOADS]
    vectors, labels = np.concatenate([s.vectors for s in sets]), np.concatenate([s.class_ids for s in sets])
    means = [vectors[labels == c].mean(axis=0) for c in (0, 1, 2, 4)]
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.5)
    theirs.loss(vectors, labels.astype(np.int64), margin_between(np.array(means), tau=100.0)).backward()
    optimiser.step()
    found = one.aggregate(Payload(), iter(UPLOADS), round_number=0).prototypes.vectors
    np.testing.assert_allclose(found, theirs().detach().numpy(), rtol=1e-4, atol=1e-5)


def test_the_servers_training_defaults_to_the_clients_settings() -> None:
    def trained(training: TrainingConfig, **settings: Any) -> bytes:
        facts = RunFacts(shape=ExchangeShape(classes=CLASSES, feature_dim=WIDTH), seed=0, rounds=3, training=training)
        ours = FedTGPStrategy(FedTGPSettings(server_epochs=2, **settings), facts)
        return digest(ours.aggregate(Payload(), iter(UPLOADS), round_number=0))

    like_clients = trained(TrainingConfig(learning_rate=0.05, batch_size=4))
    assert like_clients == trained(TrainingConfig(), server_learning_rate=0.05, server_batch_size=4)
    assert like_clients != trained(TrainingConfig(learning_rate=0.05))
    assert like_clients != trained(TrainingConfig(batch_size=4))


def test_training_continues_over_rounds() -> None:
    ours = strategy()
    first = ours.aggregate(Payload(), iter(UPLOADS), round_number=0)
    second = ours.aggregate(first, iter(UPLOADS), round_number=1)
    restarted = ours.aggregate(Payload(), iter(UPLOADS), round_number=1)
    for name, tensor in first.tensors.items():
        assert not np.array_equal(second.tensors[name], tensor)
    assert digest(second) != digest(restarted)


def test_the_loss_falls_where_clients_agree(caplog: pytest.LogCaptureFixture) -> None:
    rows = 5 * np.eye(CLASSES, WIDTH)
    uploads = [upload_of(i, prototype_set(range(CLASSES), rows + 0.1 * i)) for i in range(3)]
    ours, state = strategy(server_epochs=30, server_learning_rate=0.1), Payload()
    with caplog.at_level(logging.INFO, logger="feddbp.server"):
        for number in range(3):
            state = ours.aggregate(state, iter(uploads), round_number=number)
    losses = [float(record.args[1]) for record in caplog.records]  # type: ignore[index, arg-type]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]


def test_the_same_uploads_give_the_same_bits_and_another_seed_others() -> None:
    first, again, other = (
        strategy(seed=seed).aggregate(Payload(), iter(UPLOADS), round_number=0) for seed in (0, 0, 1)
    )
    assert digest(first) == digest(again) != digest(other)


def test_a_restart_between_rounds_changes_no_bit() -> None:
    ours = strategy()
    state = ours.aggregate(Payload(), iter(UPLOADS), round_number=0)
    encoded = encode(state)
    restored = decode(encoded.manifest, encoded.body())
    uninterrupted, resumed = (
        each.aggregate(before, iter(UPLOADS), round_number=1)
        for each, before in ((ours, state), (strategy(), restored))
    )
    assert digest(uninterrupted) == digest(resumed)


def test_global_random_generators_are_not_used() -> None:
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    strategy().aggregate(Payload(), iter(UPLOADS), round_number=0)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # type: ignore[index]


def test_a_round_without_samples_changes_nothing() -> None:
    ours, empty = strategy(), [upload_of(0, prototype_set([]))]
    assert ours.aggregate(Payload(), iter(empty), round_number=0).prototypes is None
    state = ours.aggregate(Payload(), iter(UPLOADS), round_number=0)
    assert digest(ours.aggregate(state, iter(empty), round_number=1)) == digest(state)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_diverged_training_is_an_error_that_says_so() -> None:
    with pytest.raises(FedDBPError, match="server_learning_rate"):
        strategy(server_learning_rate=1e12).aggregate(Payload(), iter(UPLOADS), round_number=0)


def test_prototypes_that_overflow_the_wire_type_are_an_error_before_they_are_sent() -> None:
    state = strategy().aggregate(Payload(), iter(UPLOADS), round_number=0)
    far = {**state.tensors, "tgp.output_bias": state.tensors["tgp.output_bias"] + np.float32(70_000)}
    strategy().aggregate(Payload(tensors=far), iter(UPLOADS), round_number=1)
    with pytest.raises(FedDBPError, match=r"diverged, try a smaller server_learning_rate; prototypes: .* is 65504"):
        strategy(wire_type=WireType.FLOAT16).aggregate(Payload(tensors=far), iter(UPLOADS), round_number=1)


def test_the_server_trains_without_torch() -> None:
    code = "import sys, feddbp_server.strategies.fedtgp; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the client


def test_the_clients_objective_is_that_of_fedproto() -> None:
    sent = Payload(prototypes=prototype_set(range(CLASSES)))
    images, labels = small_batch()
    totals, predictions = [], []
    for name in ("fedproto", "fedtgp"):
        client = trainer_after(sent, name)
        totals.append(client.objective(images, labels).total.item())
        predictions.append(client.predict(images)["prototype"].tolist())
    z = client.features(images)
    expected = F.cross_entropy(client.head(z), labels) + 10 * F.mse_loss(
        z,
        torch.tensor(sent.prototypes.vectors)[labels],  # type: ignore[union-attr]
    )
    assert totals[0] == totals[1] == pytest.approx(expected.item(), rel=1e-5)
    assert predictions[0] == predictions[1]
    assert client.inference == "prototype"


def test_a_sample_of_a_class_without_prototype_gets_no_gradient_from_the_alignment() -> None:
    client = small_trainer("fedtgp")
    client.receive(Payload(prototypes=prototype_set([0, 1])), completed_rounds=1)
    z = torch.randn(3, WIDTH, requires_grad=True)
    (gradient,) = torch.autograd.grad(client.terms(z, torch.tensor([0, 2, 1]))["proto"], z)
    assert (gradient != 0).any(dim=1).tolist() == [True, False, True]


def test_an_upload_is_made_with_the_trained_weights() -> None:
    client = small_trainer("fedtgp")
    images, labels = small_batch()
    before = client.collect(images, labels, batch_size=8).prototypes.vectors
    client.objective(images, labels).total.backward()
    torch.optim.SGD(client.parameters(), lr=0.1).step()
    after = client.collect(images, labels, batch_size=8).prototypes.vectors
    with torch.no_grad():
        z = client.eval().features(images)
    assert not np.allclose(before, after)
    np.testing.assert_allclose(after[0], z[labels == 0].mean(dim=0), rtol=1e-5, atol=1e-6)


# --- over the wire


@pytest.mark.parametrize(("classes", "expected"), [(10, 20_480), (100, 204_800)])
def test_an_exchange_has_the_size_of_its_prototypes(classes: int, expected: int) -> None:
    sent = prototype_set(range(classes), np.random.default_rng(0).standard_normal((classes, 512)))
    ours = strategy(classes=classes, width=512, server_epochs=1, server_batch_size=100)
    state = ours.aggregate(Payload(), iter([upload_of(0, sent)]), round_number=0)
    for payload in (Payload(prototypes=sent), ours.reply(state, None)):
        assert len(encode(payload).body()) == expected


def test_both_directions_pass_their_own_rules_unchanged() -> None:
    images, labels = small_batch()
    upload = small_trainer("fedtgp").collect(images, labels, batch_size=8)
    arrived = over_the_wire(
        upload, upload_rules("fedtgp"), label_counts=torch.bincount(labels, minlength=CLASSES).tolist()
    )
    assert np.array_equal(prototypes_of(arrived).vectors, upload.prototypes.vectors)
    ours = strategy()
    assert over_the_wire(ours.reply(ours.initial(), None), download_rules("fedtgp")).prototypes is None
    state = ours.aggregate(Payload(), iter([upload_of(0, arrived)]), round_number=0)
    reply = over_the_wire(ours.reply(state, None), download_rules("fedtgp"))
    assert np.array_equal(prototypes_of(reply).vectors, state.prototypes.vectors)


def test_a_federation_learns() -> None:
    accuracies = run_in_process("fedtgp").of("prototype")
    assert accuracies[0] == 0
    assert accuracies[-1] > 0.25
