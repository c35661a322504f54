"""LG-FedAvg: clients keep their feature extractors and share one head."""

from __future__ import annotations

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

from feddbp_common.config.catalog import MODEL_GROUPS
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.wire import Payload, decode, encode

DIFFERENT_HEADS = [name for name, group in MODEL_GROUPS.items() if set(group.heads) != {"linear"}]


def head(seed: int = 0, *, classes: int = CLASSES, width: int = WIDTH) -> Payload:
    random = np.random.default_rng(seed)
    return Payload(
        tensors={
            "head.weight": random.standard_normal((classes, width)).astype(np.float32),
            "head.bias": random.standard_normal(classes).astype(np.float32),
        }
    )


def body(payload: Payload) -> bytes:
    return encode(payload).body()


# --- model groups


def test_some_groups_have_different_heads() -> None:
    assert DIFFERENT_HEADS == ["htfe-8-htc-4", "res34-htc-4", "htm-10"]


@pytest.mark.parametrize("method", ["lg-fedavg", "fedgen"])
@pytest.mark.parametrize("group", DIFFERENT_HEADS)
def test_different_heads_are_refused_in_one_line(method: str, group: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RunConfig(method=method, training=TrainingConfig(model_group=group))
    message = str(caught.value)
    assert message.startswith(f"{method} shares one linear head among all clients, but those of model group {group}")
    assert "\n" not in message


@pytest.mark.parametrize("group", MODEL_GROUPS)
def test_other_methods_accept_any_group(group: str) -> None:
    RunConfig(method="fedlfp", training=TrainingConfig(model_group=group))


@pytest.mark.parametrize("method", ["lg-fedavg", "fedgen"])
@pytest.mark.parametrize("group", sorted(set(MODEL_GROUPS) - set(DIFFERENT_HEADS)))
def test_equal_heads_are_accepted(method: str, group: str) -> None:
    RunConfig(method=method, training=TrainingConfig(model_group=group))


# --- the client


def test_a_client_trains_and_predicts_with_the_head_it_received() -> None:
    client, sent = small_trainer("lg-fedavg").eval(), head()
    backbone = {name: tensor.clone() for name, tensor in client.backbone.state_dict().items()}
    client.receive(sent, completed_rounds=3)
    images, labels = small_batch()
    logits = client.features(images) @ torch.tensor(sent.tensors["head.weight"]).T + torch.tensor(
        sent.tensors["head.bias"]
    )
    torch.testing.assert_close(client.objective(images, labels).total, F.cross_entropy(logits, labels))
    assert torch.equal(client.predict(images)["head"], logits.argmax(dim=1))
    assert all(torch.equal(backbone[name], tensor) for name, tensor in client.backbone.state_dict().items())


def test_the_objective_is_cross_entropy_only() -> None:
    assert list(small_trainer("lg-fedavg").objective(*small_batch()).terms) == ["ce"]


def test_an_upload_is_a_copy_of_the_trained_head() -> None:
    client = small_trainer("lg-fedavg")
    sent = over_the_wire(client.collect(*small_batch(), batch_size=8), upload_rules("lg-fedavg"))
    weight = client.head.weight.detach().clone()
    with torch.no_grad():
        client.head.weight.zero_()
    np.testing.assert_array_equal(sent.tensors["head.weight"], weight.numpy())
    assert list(sent.tensors) == ["head.weight", "head.bias"]


@pytest.mark.parametrize(("classes", "size"), [(10, 20_520), (100, 205_200)])
def test_payloads_have_their_documented_size(classes: int, size: int) -> None:
    strategy = small_strategy("lg-fedavg", classes=classes, width=512)
    up = over_the_wire(head(classes=classes, width=512), upload_rules("lg-fedavg", classes=classes, width=512))
    state = strategy.aggregate(strategy.initial(), [upload_of(0, up, [1] * classes)], round_number=0)
    down = over_the_wire(strategy.reply(state, None), download_rules("lg-fedavg", classes=classes, width=512))
    assert encode(up).manifest.total_bytes == encode(down).manifest.total_bytes == size


# --- the server


def test_all_clients_start_from_one_head_of_the_usual_distribution() -> None:
    strategy = small_strategy("lg-fedavg", classes=100, width=512)
    first = over_the_wire(strategy.reply(strategy.initial(), None), download_rules("lg-fedavg", classes=100, width=512))
    weight, bias = first.tensors["head.weight"], first.tensors["head.bias"]
    reference = torch.nn.Linear(512, 100).weight.detach().numpy()
    bound = 512**-0.5
    assert np.abs(weight).max() <= bound
    assert np.abs(bias).max() <= bound
    assert weight.std() == pytest.approx(reference.std(), rel=0.02)
    assert abs(weight.mean()) < 0.02 * bound


def test_the_initial_head_depends_on_the_run_seed_only() -> None:
    bodies = [body(small_strategy("lg-fedavg", seed=seed).initial()) for seed in (0, 0, 1)]
    assert bodies[0] == bodies[1] != bodies[2]


def test_heads_are_weighted_by_training_samples() -> None:
    strategy = small_strategy("lg-fedavg")
    counts = [[3, 0, 0, 4, 0], [1, 1, 0, 0, 0], [90, 0, 0, 0, 1]]
    sent = [head(seed) for seed in range(3)]
    uploads = [upload_of(i, payload, counts[i]) for i, payload in enumerate(sent)]
    found = strategy.aggregate(strategy.initial(), iter(uploads), round_number=0)
    for name in ("head.weight", "head.bias"):
        expected = (
            7.0 * sent[0].tensors[name].astype(float)
            + 2.0 * sent[1].tensors[name].astype(float)
            + 91.0 * sent[2].tensors[name].astype(float)
        ) / 100
        assert found.tensors[name].dtype == np.float32
        np.testing.assert_allclose(found.tensors[name], expected, rtol=1e-6, atol=1e-7)


def test_heads_can_be_weighted_equally() -> None:
    strategy = small_strategy("lg-fedavg", weighted=False)
    uploads = [upload_of(0, head(0), [1, 0, 0, 0, 0]), upload_of(1, head(1), [99, 0, 0, 0, 0])]
    found = strategy.aggregate(strategy.initial(), uploads, round_number=0)
    expected = (head(0).tensors["head.weight"].astype(float) + head(1).tensors["head.weight"]) / 2
    np.testing.assert_allclose(found.tensors["head.weight"], expected, rtol=1e-6)


def test_equal_heads_stay_equal_to_the_bit() -> None:
    strategy = small_strategy("lg-fedavg")
    uploads = [upload_of(i, head(5), [i + 1, 3, 0, 0, 7 * i]) for i in range(7)]
    assert body(strategy.aggregate(strategy.initial(), uploads, round_number=0)) == body(head(5))


def test_a_round_without_uploads_keeps_the_head() -> None:
    strategy = small_strategy("lg-fedavg")
    state = strategy.initial()
    assert body(strategy.aggregate(state, [], round_number=0)) == body(state)


def test_the_global_state_can_be_stored_and_restored() -> None:
    strategy = small_strategy("lg-fedavg")
    encoded = encode(strategy.aggregate(strategy.initial(), [upload_of(0, head(2), [1] * 5)], round_number=0))
    assert body(decode(encoded.manifest, encoded.body())) == body(head(2))


# --- a federation


def test_a_federation_of_three_clients_learns() -> None:
    one: Any = run_in_process("lg-fedavg")
    accuracies = one.of("head")
    assert accuracies[-1] > accuracies[0] + 0.3
