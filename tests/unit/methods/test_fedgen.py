"""FedGen: the server trains a generator on the clients' heads, clients train the head on its features."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
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
    run_in_process,
    small_batch,
    small_strategy,
    small_trainer,
    upload_of,
    upload_rules,
)
from torch import Tensor, nn

from feddbp_common.errors import FedDBPError, PayloadError
from feddbp_common.methods.fedgen import FedGenSettings
from feddbp_common.seeding import derive_seed
from feddbp_common.wire import Payload, WireType, decode, encode
from feddbp_server.strategies.adam import Adam
from feddbp_server.strategies.feature_generator import FeatureGenerator, diversity_loss
from feddbp_server.strategies.teachers import Teachers

NOISE, HIDDEN = 6, 12
SMALL: dict[str, Any] = {"noise_dim": NOISE, "hidden_dim": HIDDEN, "server_steps": 4, "server_batch_size": 10}
LABEL_COUNTS = [[4, 0, 2, 1, 0], [1, 5, 0, 0, 0], [3, 3, 3, 0, 0]]
MODULES = {
    "generator.hidden.weight": "0.weight",
    "generator.hidden.bias": "0.bias",
    "generator.norm.weight": "1.weight",
    "generator.norm.bias": "1.bias",
    "generator.norm.running_mean": "1.running_mean",
    "generator.norm.running_var": "1.running_var",
    "generator.output.weight": "3.weight",
    "generator.output.bias": "3.bias",
}


def head(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "head.weight": random.standard_normal((CLASSES, WIDTH)).astype(np.float32),
        "head.bias": random.standard_normal(CLASSES).astype(np.float32),
    }


def uploads() -> list[Any]:
    return [upload_of(i, Payload(tensors=head(i)), counts) for i, counts in enumerate(LABEL_COUNTS)]


def strategy_of(**settings: Any) -> Any:
    return small_strategy("fedgen", **{**SMALL, **settings})


def after(rounds: int, strategy: Any) -> Payload:
    state: Payload = strategy.initial()
    for number in range(rounds):
        encoded = encode(strategy.aggregate(state, iter(uploads()), round_number=number))
        state = decode(encoded.manifest, encoded.body())  # as after a restart
    return state


def client_of(completed_rounds: int = 1, **settings: Any) -> Any:
    """A client in eval mode with the download after this number of rounds."""
    client = small_trainer("fedgen", **{**SMALL, **settings}).eval()
    strategy = strategy_of(**settings)
    reply = strategy.reply(after(completed_rounds, strategy), None)
    rules = download_rules("fedgen", **{**SMALL, **settings})
    client.receive(over_the_wire(reply, rules), completed_rounds=completed_rounds)
    return client


def torch_generator(tensors: Any, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The same generator made of torch's modules."""
    network = nn.Sequential(
        nn.Linear(NOISE + CLASSES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH)
    )
    state = {there: torch.tensor(tensors[here]) for here, there in MODULES.items()}
    network.load_state_dict(state, strict=False)
    return network.to(dtype)


def torch_inputs(noise: Any, labels: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    one_hot = F.one_hot(torch.as_tensor(labels), CLASSES)
    return torch.cat([torch.as_tensor(noise).to(dtype), one_hot.to(dtype)], dim=1)


def fresh(seed: int = 0) -> FeatureGenerator:
    return FeatureGenerator.fresh(noise_dim=NOISE, classes=CLASSES, hidden=HIDDEN, width=WIDTH, seed=seed)


def batch(size: int = 10, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    return random.random((size, NOISE)), random.integers(0, CLASSES, size)


def grad_of(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


# --- settings


def test_the_full_method_has_a_smaller_default_step_size_for_its_generator() -> None:
    assert FedGenSettings().server_learning_rate == 0.005
    assert FedGenSettings(full=True).server_learning_rate == 0.0003
    assert FedGenSettings(full=True, server_learning_rate=0.1).server_learning_rate == 0.1
    stored = FedGenSettings(full=True).model_dump(mode="json")
    assert FedGenSettings.model_validate(stored).server_learning_rate == 0.0003


# --- the generator on the server, against torch


def test_features_and_statistics_are_those_of_torch() -> None:
    ours, (noise, labels) = fresh(), batch()
    theirs = torch_generator(ours.tensors()).train()
    expected = theirs(torch_inputs(noise, labels))
    np.testing.assert_allclose(ours.make(noise, labels).features, expected.detach(), rtol=1e-6)
    for here, there in MODULES.items():
        np.testing.assert_allclose(ours.tensors()[here], theirs.state_dict()[there], rtol=1e-5, atol=1e-7)


def test_gradients_are_those_of_torch() -> None:
    ours, (noise, labels) = fresh(), batch()
    theirs = torch_generator(ours.tensors()).train()
    weighting = torch.randn(10, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (theirs(torch_inputs(noise, labels)) * weighting).sum().backward()
    expected = {name: grad_of(parameter) for name, parameter in theirs.named_parameters()}
    found = ours.gradients(ours.make(noise, labels), weighting.numpy())
    assert len(found) == len(expected)
    for here, gradient in found.items():
        np.testing.assert_allclose(gradient, expected[MODULES[here]], rtol=1e-5, atol=1e-9)


def test_adam_steps_as_torch_does() -> None:
    start = np.random.default_rng(0).standard_normal((3, 4))
    ours, theirs = {"w": start.copy()}, torch.tensor(start.copy(), requires_grad=True)
    adam, reference = Adam(0.1), torch.optim.Adam([theirs], lr=0.1)
    for step in range(6):
        gradient = np.random.default_rng(step + 1).standard_normal((3, 4)) * 10.0**-step
        adam.step(ours, {"w": gradient})
        theirs.grad = torch.tensor(gradient)
        reference.step()
        np.testing.assert_allclose(ours["w"], theirs.detach(), rtol=1e-10)


def test_adam_resumes_from_its_stored_state() -> None:
    gradients = [np.random.default_rng(step).standard_normal(4) for step in range(4)]
    whole, parted = {"w": np.zeros(4)}, {"w": np.zeros(4)}
    adam = Adam(0.1)
    for gradient in gradients:
        adam.step(whole, {"w": gradient})
    adam = Adam(0.1)
    for gradient in gradients:
        adam.step(parted, {"w": gradient})
        adam = Adam.from_tensors(adam.tensors(), 0.1)
    np.testing.assert_allclose(parted["w"], whole["w"], rtol=1e-5)


def slow_cross_entropy(logits: Sequence[float], label: int) -> float:
    return math.log(sum(math.exp(x - max(logits)) for x in logits)) - (logits[label] - max(logits))


def answers(weights: dict[str, Any], feature: Any) -> Any:
    return weights["head.weight"].astype(float) @ feature + weights["head.bias"]


def test_one_teacher_is_the_cross_entropy_of_the_weighted_mean_logits() -> None:
    features, labels = np.random.default_rng(1).standard_normal((10, WIDTH)), batch()[1]
    mean = strategy_of().aggregate(Payload(), uploads(), round_number=0).tensors
    loss, slope = Teachers.one(mean).loss_and_gradient(features, labels)
    samples = [sum(counts) for counts in LABEL_COUNTS]
    expected = 0.0
    for feature, label in zip(features, labels.tolist(), strict=True):
        together = sum(n / sum(samples) * answers(head(k), feature) for k, n in enumerate(samples))
        expected += slow_cross_entropy(together.tolist(), label) / len(labels)
    assert loss == pytest.approx(expected, rel=1e-5)
    z = torch.tensor(features, requires_grad=True)
    logits = z @ torch.tensor(mean["head.weight"]).double().T + torch.tensor(mean["head.bias"])
    F.cross_entropy(logits, torch.tensor(labels)).backward()
    np.testing.assert_allclose(slope, grad_of(z), rtol=1e-4, atol=1e-6)


def test_many_teachers_are_weighted_by_their_share_of_a_label() -> None:
    features, labels = np.random.default_rng(1).standard_normal((10, WIDTH)), batch()[1] % 4
    heads = [head(k) for k in range(3)]
    loss, slope = Teachers.many(heads, LABEL_COUNTS).loss_and_gradient(features, labels)
    z = torch.tensor(features, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for i, label in enumerate(labels.tolist()):
        together = sum(counts[label] for counts in LABEL_COUNTS)
        for weights, counts in zip(heads, LABEL_COUNTS, strict=True):
            logits = torch.tensor(weights["head.weight"]).double() @ z[i] + torch.tensor(weights["head.bias"])
            total = total - counts[label] / together * logits.log_softmax(0)[label] / len(labels)
    total.backward()
    assert loss == pytest.approx(total.item(), rel=1e-5)
    np.testing.assert_allclose(slope, grad_of(z), rtol=1e-4, atol=1e-6)


def test_the_diversity_reward_and_its_gradient_agree_with_slow_loops() -> None:
    noise = np.random.default_rng(0).random((5, NOISE))
    z = torch.randn(5, WIDTH, dtype=torch.float64, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for i in range(5):
        for j in range(5):
            apart = sum((a - b) ** 2 for a, b in zip(noise[i], noise[j], strict=True)) / NOISE
            total = total + apart * (z[i] - z[j]).abs().mean() / 25
    expected = torch.exp(-total)
    expected.backward()
    loss, slope = diversity_loss(noise, z.detach().numpy())
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(slope, grad_of(z), rtol=1e-10)


@pytest.mark.parametrize("full", [False, True])
def test_a_round_of_training_equals_one_written_in_torch(full: bool) -> None:
    strategy = strategy_of(full=full, server_learning_rate=0.01)
    start = FeatureGenerator.fresh(
        noise_dim=NOISE, classes=CLASSES, hidden=HIDDEN, width=WIDTH, seed=derive_seed(0, "generator")
    )
    network = torch_generator(start.tensors()).train()
    adam = torch.optim.Adam(network.parameters(), lr=0.01)
    random = np.random.default_rng(derive_seed(0, "generator", 0))
    pooled = np.sum(LABEL_COUNTS, axis=0)
    weights = [torch.tensor(head(k)["head.weight"]).double() for k in range(3)]
    biases = [torch.tensor(head(k)["head.bias"]).double() for k in range(3)]
    for _ in range(SMALL["server_steps"]):
        labels = random.choice(CLASSES, size=10, p=pooled / pooled.sum())
        noise = random.random((10, NOISE))
        z, y = network(torch_inputs(noise, labels)), torch.tensor(labels)
        logits = [z @ w.T + b for w, b in zip(weights, biases, strict=True)]
        if full:
            shares = torch.tensor(np.array(LABEL_COUNTS) / np.maximum(pooled, 1))
            loss = sum(
                (s[y] * F.cross_entropy(o, y, reduction="none")).mean() for s, o in zip(shares, logits, strict=True)
            )
            apart = torch.cdist(torch.tensor(noise), torch.tensor(noise)) ** 2 / NOISE
            loss = loss + torch.exp(-(apart * (z[:, None] - z).abs().mean(2)).mean())
        else:
            samples = torch.tensor([float(sum(counts)) for counts in LABEL_COUNTS])
            loss = F.cross_entropy(sum(s / samples.sum() * o for s, o in zip(samples, logits, strict=True)), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
    found = strategy.aggregate(strategy.initial(), iter(uploads()), round_number=0).tensors
    for here, there in MODULES.items():
        np.testing.assert_allclose(found[here], network.state_dict()[there], rtol=1e-3, atol=1e-5, err_msg=here)


# --- the strategy


def test_before_the_first_round_there_is_a_head_and_no_generator() -> None:
    strategy = strategy_of()
    reply = over_the_wire(strategy.reply(strategy.initial(), None), download_rules("fedgen", **SMALL))
    assert list(reply.tensors) == ["head.weight", "head.bias"]
    lg_fedavg = small_strategy("lg-fedavg").initial()
    assert encode(reply).body() == encode(lg_fedavg).body()


def test_heads_are_averaged_by_training_samples() -> None:
    found, expected = (
        after(1, strategy_of()),
        small_strategy("lg-fedavg").aggregate(Payload(), uploads(), round_number=0),
    )
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], tensor)


def test_the_trained_generator_is_sent() -> None:
    strategy = strategy_of()
    first, second = (strategy.reply(after(rounds, strategy), None).tensors for rounds in (1, 2))
    untrained = fresh(derive_seed(0, "generator")).tensors()
    # batch normalisation subtracts the bias before it, whose gradient is zero except for rounding
    for name in MODULES.keys() - {"generator.hidden.bias"}:
        assert (first[name] != untrained[name]).any(), name
        assert (second[name] != first[name]).any(), name


@pytest.mark.parametrize("settings", [{}, {"full": True, "server_learning_rate": 0.01}])
def test_the_ensemble_recognises_features_better_after_training(settings: Any) -> None:
    strategy = strategy_of(server_steps=100, **settings)
    state = after(1, strategy).tensors
    teachers = Teachers.many([head(k) for k in range(3)], LABEL_COUNTS) if settings else Teachers.one(state)
    noise, labels = batch(64)
    labels = labels % 4  # no client has class 4
    before, trained = fresh(derive_seed(0, "generator")), FeatureGenerator(state)
    losses = [
        teachers.loss_and_gradient(generator.make(noise, labels).features, labels)[0] for generator in (before, trained)
    ]
    assert losses[1] < 0.5 * losses[0]


def test_clients_receive_the_frequencies_of_labels() -> None:
    assert after(1, strategy_of()).tensors["label_counts"].tolist() == [8, 8, 5, 1, 0]


@pytest.mark.parametrize("full", [False, True])
def test_the_same_uploads_give_the_same_bits(full: bool) -> None:
    one, other = (encode(after(2, strategy_of(full=full))).body() for _ in range(2))
    assert one == other
    assert one != encode(after(2, small_strategy("fedgen", seed=1, full=full, **SMALL))).body()


def test_adams_state_stays_on_the_server() -> None:
    strategy = strategy_of(keep_adam=True)
    state = after(2, strategy)
    assert state.tensors["adam.steps"].tolist() == [2 * SMALL["server_steps"]]
    reply = over_the_wire(strategy.reply(state, None), download_rules("fedgen", **SMALL))
    assert not [name for name in reply.tensors if name.startswith("adam")]
    without_state = after(2, strategy_of()).tensors
    assert (state.tensors["generator.output.bias"] != without_state["generator.output.bias"]).any()


def test_a_round_without_uploads_changes_nothing() -> None:
    strategy = strategy_of()
    state = after(1, strategy)
    assert strategy.aggregate(state, [], round_number=1) is state


def test_a_diverged_generator_is_an_error_before_it_is_sent() -> None:
    with pytest.raises(FedDBPError, match="try a smaller server_learning_rate"):
        after(1, strategy_of(server_learning_rate=1e9))


def test_a_generator_that_overflows_the_wire_type_is_an_error_before_it_is_sent() -> None:
    wide = {**after(1, strategy_of()).tensors, "generator.norm.running_var": np.full(HIDDEN, 1e6, np.float32)}
    strategy_of().aggregate(Payload(tensors=wide), uploads(), round_number=1)
    with pytest.raises(FedDBPError, match=r"the generator diverged, .*running_var: .* is 65504"):
        strategy_of(wire_type=WireType.FLOAT16).aggregate(Payload(tensors=wide), uploads(), round_number=1)


def test_the_server_trains_without_torch() -> None:
    probe = "import sys, feddbp_server.strategies.fedgen; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


# --- on the wire


@pytest.mark.parametrize(
    ("classes", "noise", "up", "down"),
    [
        (10, 32, 20_520, 1_167_400),
        (100, 32, 205_200, 1_536_400),
        (10, 512, 20_520, 2_150_440),
        (100, 512, 205_200, 2_519_440),
    ],
)
def test_payloads_have_their_documented_size(classes: int, noise: int, up: int, down: int) -> None:
    strategy = small_strategy("fedgen", classes=classes, width=512, noise_dim=noise, server_steps=1)
    sent = over_the_wire(strategy.initial(), upload_rules("fedgen", classes=classes, width=512))
    assert encode(sent).manifest.total_bytes == up
    state = strategy.aggregate(strategy.initial(), [upload_of(0, sent, [1] * classes)], round_number=0)
    rules = download_rules("fedgen", classes=classes, width=512, noise_dim=noise, server_steps=1)
    reply = over_the_wire(strategy.reply(state, None), rules)
    # plus the frequency of each label
    assert encode(reply).manifest.total_bytes == down + 4 * classes


def test_a_generator_with_a_part_missing_is_refused() -> None:
    tensors = dict(after(1, strategy_of()).tensors)
    del tensors["generator.norm.bias"]
    with pytest.raises(PayloadError, match=r"generator\.norm\.bias: is missing"):
        small_trainer("fedgen", **SMALL).receive(Payload(tensors=tensors), completed_rounds=1)


# --- the client


def test_without_a_generator_the_objective_is_cross_entropy_with_the_shared_head() -> None:
    client = client_of(completed_rounds=0)
    images, labels = small_batch()
    objective = client.objective(images, labels)
    assert list(objective.terms) == ["ce"]
    torch.testing.assert_close(objective.total, F.cross_entropy(client.logits(images), labels))


def test_a_client_runs_the_generator_in_eval_mode() -> None:
    client, state = client_of(), after(1, strategy_of()).tensors
    labels = torch.tensor([0, 3, 2, 2])
    torch.manual_seed(1)
    found = client._generator.features(labels)
    torch.manual_seed(1)
    inputs = torch_inputs(torch.rand(4, NOISE), labels, torch.float32)
    torch.testing.assert_close(found, torch_generator(state, torch.float32).eval()(inputs))


def test_the_objective_adds_cross_entropy_on_generated_features() -> None:
    client = client_of()
    images, labels = small_batch()
    torch.manual_seed(2)
    objective = client.objective(images, labels)
    torch.manual_seed(2)
    drawn = client._generator.draw_labels(len(labels))
    logits = client.head(client._generator.features(drawn)).detach().double().tolist()
    generated = sum(slow_cross_entropy(row, y) for row, y in zip(logits, drawn.tolist(), strict=True)) / len(labels)
    assert objective.terms["generated"].item() == pytest.approx(generated, rel=1e-5)
    ce = F.cross_entropy(client.logits(images).double(), labels).item()
    assert objective.total.item() == pytest.approx(ce + generated, rel=1e-5)


def test_generated_features_train_only_the_head() -> None:
    client = client_of()
    images, labels = small_batch()
    torch.manual_seed(2)
    parameters = dict(client.named_parameters())
    weights = tuple(parameters.values())
    with_generator = torch.autograd.grad(client.objective(images, labels).total, weights)
    alone = torch.autograd.grad(F.cross_entropy(client.logits(images), labels), weights)
    for name, one, other in zip(parameters, with_generator, alone, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-7) != name.startswith("head."), name


def test_labels_are_drawn_by_their_frequency() -> None:
    torch.manual_seed(0)
    drawn = torch.bincount(client_of()._generator.draw_labels(22_000), minlength=CLASSES)
    np.testing.assert_allclose(drawn / 1000, [8, 8, 5, 1, 0], atol=0.3)


def test_the_full_objective_also_distils_from_generated_features() -> None:
    client = client_of(completed_rounds=3, full=True, alpha=3.0, beta=5.0, decay=0.5)
    images, labels = small_batch()
    torch.manual_seed(4)
    objective = client.objective(images, labels)
    torch.manual_seed(4)
    client._generator.features(client._generator.draw_labels(len(labels)))
    targets = client.head(client._generator.features(labels)).detach().double().softmax(dim=1).tolist()
    outputs = client.logits(images).detach().double().softmax(dim=1).tolist()
    latent = sum(
        q * math.log(q / p)
        for target, output in zip(targets, outputs, strict=True)
        for q, p in zip(target, output, strict=True)
    ) / len(labels)
    terms = {name: term.item() for name, term in objective.terms.items()}
    assert terms["latent"] == pytest.approx(latent, rel=1e-4)
    expected = terms["ce"] + (3.0 * terms["generated"] + 5.0 * latent) / 8  # halved in each of three rounds
    assert objective.total.item() == pytest.approx(expected, rel=1e-4)


def test_a_label_unknown_to_the_generator_adds_no_latent_term() -> None:
    client = client_of(full=True)
    logits = torch.randn(4, CLASSES, requires_grad=True)
    labels = torch.tensor([0, 4, 3, 4])
    (gradient,) = torch.autograd.grad(client._latent(logits, labels, client._generator), logits)
    assert not gradient[labels == 4].any()
    assert gradient[labels != 4].any(dim=1).all()


def test_the_generator_is_not_part_of_a_checkpoint() -> None:
    client = client_of()
    assert set(client.state_dict()) == set(small_trainer("local").state_dict())
    assert sum(p.numel() for p in client.parameters()) == sum(p.numel() for p in small_trainer("local").parameters())


# --- a federation


def test_a_federation_of_three_clients_learns() -> None:
    accuracies = run_in_process("fedgen").of("head")
    assert accuracies[-1] > accuracies[0] + 0.3
