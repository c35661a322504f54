"""FedMRL: own and shared features in one representation, whose first channels are the shared head's input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from shared_model_clients import (
    bytes_of,
    digest_of_payload,
    do_round,
    sharing_trainer,
    tiny_batch,
    train_steps,
    weights_of,
)
from small_federations import CLASSES, WIDTH, download_rules, over_the_wire, run_in_process, small_strategy, upload_of
from small_federations import upload_rules as rules_for_uploads
from torch import Tensor

from feddbp_client.models import ModelError
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.errors import ConfigurationError, PayloadError
from feddbp_common.methods.small_model import SMALL_MODEL
from feddbp_common.wire import Payload

SMALL = 3


def fedmrl(**options: Any) -> Any:
    return sharing_trainer("fedmrl", **{"small_dim": SMALL, **options})


def strategy(**settings: Any) -> Any:
    return small_strategy("fedmrl", **{"small_dim": SMALL, **settings})


def small_tensors(seed: int, *, channels: int = 1) -> dict[str, Any]:
    shapes = {
        "conv1.weight": (32, channels, 5, 5),
        "conv1.bias": (32,),
        "conv2.weight": (64, 32, 5, 5),
        "conv2.bias": (64,),
        "fc.weight": (512, 64),
        "fc.bias": (512,),
        "head.weight": (CLASSES, SMALL),
        "head.bias": (CLASSES,),
    }
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shapes[name]).astype(np.float32) for name in SMALL_MODEL}


# --- the loss


def reference_loss(method: Any, images: Tensor, labels: Tensor) -> float:
    """Sample by sample, in double precision."""
    shared, own = method.small.body(images).tolist(), method.backbone(images).tolist()
    total = 0.0
    for i, label in enumerate(labels.tolist()):
        joint = shared[i] + own[i]
        r = affine(method.projector, joint)
        for logits in (affine(method.head, r), affine(method.small.head, r[:SMALL])):
            total += math.log(sum(math.exp(value) for value in logits)) - logits[label]
    return total / len(labels)


def affine(layer: Any, inputs: list[float]) -> list[float]:
    return [
        bias + sum(weight * value for weight, value in zip(row, inputs, strict=True))
        for row, bias in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    ]


def test_the_loss_agrees_with_its_definition() -> None:
    method = fedmrl().double()
    for seed in range(2):
        images, labels = tiny_batch(seed)
        objective = method.objective(images.double(), labels)
        assert objective.total.item() == pytest.approx(reference_loss(method, images.double(), labels), rel=1e-10)
        assert objective.total.item() == pytest.approx(float(sum(objective.terms.values())))


def test_all_three_parts_are_trained() -> None:
    method = fedmrl()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    train_steps(method)
    unchanged = [name for name, value in method.state_dict().items() if torch.equal(value, before[name])]
    assert not unchanged


def test_the_shared_head_uses_the_first_channels_only() -> None:
    method = fedmrl()
    method.objective(*tiny_batch()).total.backward()
    with_both = method.projector.weight.grad.clone()
    method.zero_grad()
    with torch.no_grad():
        method.head.weight.zero_()
    method.objective(*tiny_batch()).total.backward()
    coarse_only = method.projector.weight.grad
    assert coarse_only[:SMALL].any()
    assert not coarse_only[SMALL:].any()
    assert with_both[SMALL:].any()


def test_gradients_are_clipped_only_if_configured() -> None:
    for bound in (0, 0.1):
        method = fedmrl(max_grad_norm=bound)
        method.objective(*tiny_batch()).total.backward()
        unbounded = math.sqrt(sum(float(p.grad.square().sum()) for p in method.parameters()))
        method.clip_gradients()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in method.parameters()))
        assert unbounded > 0.1
        assert norm == pytest.approx(bound or unbounded, rel=1e-4)


# --- the exchange


def test_all_clients_start_from_the_same_small_model_and_their_own_projector() -> None:
    first, second = fedmrl(client_id=0), fedmrl(client_id=1)
    for one, other in zip(first.small.parameters(), second.small.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first.projector.weight, second.projector.weight)


def test_the_small_model_does_not_change_the_clients_own_initial_weights() -> None:
    with_small, alone = fedmrl(client_id=3), sharing_trainer("local", client_id=3)
    assert torch.equal(with_small.backbone[2].weight, alone.backbone[2].weight)
    assert torch.equal(with_small.head.weight, alone.head.weight)


@pytest.mark.parametrize(
    ("classes", "image", "expected"),
    [(10, 32, 3_498_792), (100, 32, 3_545_232), (102, 64, 22_420_632), (200, 64, 22_471_200)],
)
def test_both_directions_have_the_documented_size(classes: int, image: int, expected: int) -> None:
    method = fedmrl(classes=classes, feature_dim=512, small_dim=128, image_shape=(3, image, image))
    sent = method.collect(*tiny_batch(), batch_size=8)
    options = {"classes": classes, "width": 512, "small_dim": 128}
    assert bytes_of(over_the_wire(sent, rules_for_uploads("fedmrl", **options))) == expected
    server = strategy(**options)
    state = server.aggregate(Payload(), iter([upload_of(0, sent)]), round_number=0)
    assert bytes_of(over_the_wire(server.reply(state, None), download_rules("fedmrl", **options))) == expected


def test_a_download_replaces_the_small_model() -> None:
    method, tensors = fedmrl(), small_tensors(1)
    method.receive(Payload(tensors=tensors), completed_rounds=1)
    for name, weight in weights_of(method.small).items():
        assert np.array_equal(weight.numpy(), tensors[name])


def test_a_model_for_other_images_is_refused_by_the_client() -> None:
    with pytest.raises(ConfigurationError, match=r"conv1\.weight .* images of 1 x 16 x 16; all clients"):
        fedmrl().receive(Payload(tensors=small_tensors(0, channels=3)), completed_rounds=1)


def test_a_model_that_lacks_a_tensor_is_refused_by_the_client() -> None:
    tensors = small_tensors(0)
    del tensors["fc.bias"]
    with pytest.raises(ConfigurationError, match=r"fc\.bias of the shared model is missing"):
        fedmrl().receive(Payload(tensors=tensors), completed_rounds=1)


def test_images_too_small_for_the_small_model_are_refused_at_once() -> None:
    with pytest.raises(ModelError, match="at least 16x16"):
        fedmrl(image_shape=(1, 8, 8))


def test_a_coarse_part_wider_than_the_feature_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="small_dim is 128, but features have only 64"):
        RunConfig(method="fedmrl", training=TrainingConfig(feature_dim=64))


# --- the server


@pytest.mark.parametrize("weighted", [False, True])
def test_the_server_takes_the_mean_of_the_small_models(weighted: bool) -> None:
    sent = [small_tensors(seed) for seed in range(3)]
    samples = [[1, 2, 0, 0, 0], [10, 0, 0, 5, 0], [0, 0, 0, 0, 7]]
    uploads = [upload_of(i, Payload(tensors=tensors), samples[i]) for i, tensors in enumerate(sent)]
    state = strategy(weighted=weighted).aggregate(Payload(), iter(uploads), round_number=0)
    weights = [sum(counts) if weighted else 1 for counts in samples]
    for name in SMALL_MODEL:
        total = sum(weight * tensors[name].astype(np.float64) for weight, tensors in zip(weights, sent, strict=True))
        assert np.allclose(state.tensors[name], total / sum(weights), atol=1e-6)
        assert state.tensors[name].dtype == np.float32


def test_the_same_uploads_give_the_same_bits() -> None:
    def state() -> Payload:
        uploads = [upload_of(client, Payload(tensors=small_tensors(client)), [3]) for client in range(3)]
        payload: Payload = strategy().aggregate(Payload(), iter(uploads), round_number=0)
        return payload

    assert digest_of_payload(state()) == digest_of_payload(state())


def test_uploads_that_cannot_be_averaged_are_an_error_that_names_the_client() -> None:
    uploads = [
        upload_of(4, Payload(tensors=small_tensors(0))),
        upload_of(7, Payload(tensors=small_tensors(0, channels=3))),
    ]
    with pytest.raises(PayloadError, match=r"conv1\.weight: .* in client 7"):
        strategy().aggregate(Payload(), iter(uploads), round_number=0)


def test_the_layout_has_all_tensors() -> None:
    shapes = {name: tensor.shape for name, tensor in small_tensors(0).items()}
    assert strategy().layout(shapes) == shapes


# --- rounds


def test_the_projector_persists_over_rounds_and_in_evaluation() -> None:
    method = fedmrl()
    do_round(method, Payload(), 0)
    trained = method.projector.weight.detach().clone()
    method.receive(Payload(tensors=small_tensors(0)), completed_rounds=1)
    assert torch.equal(method.projector.weight, trained)
    images, _ = tiny_batch()
    joint = torch.cat([method.small.body(images), method.backbone(images)], dim=1)
    r = joint @ trained.T + method.projector.bias
    predicted = method.predict(images)
    assert torch.equal(predicted["head"], method.head(r).argmax(dim=1))
    assert torch.equal(predicted["small"], method.small.head(r[:, :SMALL]).argmax(dim=1))
    assert method.inference == "head"
    assert r.shape == (len(images), WIDTH)


def test_a_client_that_was_killed_resumes_with_the_same_bits() -> None:
    def final_upload(*, killed: bool) -> str:
        method, shared, sent = fedmrl(), Payload(), Payload()
        for number in range(3):
            if killed:
                state = {name: value.clone() for name, value in method.state_dict().items()}
                assert save(state)  # safetensors refuses tensors that share memory
                method = fedmrl(client_id=9)
                method.load_state_dict(state)
                shared = over_the_wire(shared, download_rules("fedmrl", small_dim=SMALL))
            sent = do_round(method, shared, number)
            shared = strategy().aggregate(shared, iter([upload_of(0, sent)]), round_number=number)
        return digest_of_payload(sent)

    assert final_upload(killed=True) == final_upload(killed=False)


def test_three_rounds_with_different_architectures_improve_accuracy() -> None:
    outcome = run_in_process("fedmrl", settings={"small_dim": 16})
    for rule in ("head", "small"):
        assert outcome.of(rule)[-1] > outcome.of(rule)[0] + 0.3
