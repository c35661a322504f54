"""FedKD: mutual distillation of two models, one of which is exchanged in compressed form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from shared_model_clients import (
    ROUNDS,
    bytes_of,
    digest_of_payload,
    do_round,
    sharing_trainer,
    tiny_batch,
    train_steps,
    weights_of,
)
from small_federations import CLASSES, download_rules, over_the_wire, run_in_process, small_strategy, upload_of
from small_federations import upload_rules as rules_for_uploads
from torch import Tensor

from feddbp_client.models import ModelError
from feddbp_common.errors import ConfigurationError, FedDBPError, PayloadError
from feddbp_common.methods.fedkd import FedKDSettings
from feddbp_common.methods.small_model import SMALL_MODEL
from feddbp_common.wire import Payload, WireType, check_values, decode, encode
from feddbp_common.wire.svd import compress, decompress
from feddbp_server.strategies import UnusableStateError

EITHER_TARGET = pytest.mark.parametrize("target", ["params", "update"])


def fedkd(**options: Any) -> Any:
    return sharing_trainer("fedkd", **options)


def strategy(**settings: Any) -> Any:
    return small_strategy("fedkd", **settings)


def mentee_tensors(seed: int, *, scale: float = 1.0, rank: int = 2, fc: int = 64, channels: int = 1) -> dict[str, Any]:
    """Weights of which only fc compresses well."""
    random = np.random.default_rng(seed)
    shapes = {
        "conv1.weight": (32, channels, 5, 5),
        "conv1.bias": (32,),
        "conv2.weight": (64, 32, 5, 5),
        "conv2.bias": (64,),
        "fc.bias": (512,),
        "head.weight": (CLASSES, 8),
        "head.bias": (CLASSES,),
    }
    tensors = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    tensors["fc.weight"] = random.standard_normal((512, rank)) @ random.standard_normal((rank, fc)) / 10
    return {name: (scale * tensors[name]).astype(np.float32) for name in SMALL_MODEL}


def upload(client_id: int, tensors: dict[str, Any], energy: float = 0.95) -> Any:
    return upload_of(client_id, Payload(tensors=compress(tensors, energy)))


# --- the loss


def softmax(logits: list[float]) -> list[float]:
    exponentials = [math.exp(value) for value in logits]
    return [value / sum(exponentials) for value in exponentials]


def reference_loss(method: Any, images: Tensor, labels: Tensor) -> float:
    """Sample by sample and class by class, in double precision."""
    z, z_mentee = method.backbone(images), method.mentee.body(images)
    mapped = (z_mentee @ method.alignment.weight.T).tolist()
    logits, logits_mentee = method.head(z).tolist(), method.mentee.head(z_mentee).tolist()
    ce_mentor = ce_mentee = divergence = squares = 0.0
    samples, width = z.shape
    for i, label in enumerate(labels.tolist()):
        p, q = softmax(logits[i]), softmax(logits_mentee[i])
        ce_mentor -= math.log(p[label]) / samples
        ce_mentee -= math.log(q[label]) / samples
        for c in range(CLASSES):
            divergence += q[c] * math.log(q[c] / p[c]) / (samples * CLASSES)
            divergence += p[c] * math.log(p[c] / q[c]) / (samples * CLASSES)
        for j, value in enumerate(z[i].tolist()):
            squares += (value - mapped[i][j]) ** 2 / (samples * width)
    return ce_mentor + ce_mentee + (divergence + 2 * squares) / (ce_mentor + ce_mentee)


def test_the_loss_agrees_with_its_definition() -> None:
    method = fedkd().double()
    for seed in range(2):
        images, labels = tiny_batch(seed)
        found = method.objective(images.double(), labels).total.item()
        assert found == pytest.approx(reference_loss(method, images.double(), labels), rel=1e-10)


def test_the_total_is_made_of_the_terms() -> None:
    objective = fedkd().objective(*tiny_batch())
    terms = {name: float(value) for name, value in objective.terms.items()}
    certainty = terms["ce_mentor"] + terms["ce_mentee"]
    assert objective.total.item() == pytest.approx(
        certainty + (terms["kl"] + 2 * terms["features"]) / certainty, rel=1e-6
    )
    assert not any(value.requires_grad for value in objective.terms.values())


def test_nothing_is_detached() -> None:
    """The directional derivative in all parameters agrees with finite differences, so no path is detached."""
    method = fedkd().double()
    images, labels = tiny_batch()[0].double(), tiny_batch()[1]
    method.objective(images, labels).total.backward()
    generator = torch.Generator().manual_seed(5)
    directions = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in method.parameters()]
    slope = sum(float((p.grad * d).sum()) for p, d in zip(method.parameters(), directions, strict=True))
    values = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for parameter, direction in zip(method.parameters(), directions, strict=True):
                parameter += step * direction
            values.append(reference_loss(method, images, labels))
    assert slope == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4)


def test_a_client_that_fits_its_samples_perfectly_has_finite_gradients() -> None:
    method = fedkd()
    images, labels = tiny_batch()[0], torch.zeros(12, dtype=torch.int64)
    with torch.no_grad():
        for head in (method.head, method.mentee.head):
            head.bias[0] += 200.0
    objective = method.objective(images, labels)
    assert float(objective.terms["ce_mentor"]) == 0.0
    assert math.isfinite(objective.total.item())
    objective.total.backward()
    method.clip_gradients()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in method.parameters())


# --- the optimiser


def test_the_mentee_has_its_own_step_size_and_every_parameter_one_group() -> None:
    method = fedkd(mentee_learning_rate=0.3)
    own, mentee = method.parameter_groups(0.07)
    assert (own["lr"], mentee["lr"]) == (0.07, 0.3)
    assert [group["lr"] for group in fedkd().parameter_groups(0.07)] == [0.07, 0.07]
    assert {id(p) for p in mentee["params"]} == {id(p) for p in method.mentee.parameters()}
    grouped = [id(p) for p in (*own["params"], *mentee["params"])]
    assert sorted(grouped) == sorted(id(p) for p in method.parameters())


def norm(parameters: Any) -> float:
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in parameters))


def test_gradients_of_mentor_mentee_and_w_are_clipped_separately() -> None:
    method = fedkd(max_grad_norm=0.5)
    method.objective(*tiny_batch()).total.backward()
    with torch.no_grad():
        for parameter in method.mentee.parameters():
            parameter.grad *= 1e4
        method.alignment.weight.grad *= 1e-6
    small = method.alignment.weight.grad.clone()
    method.clip_gradients()
    assert norm([*method.backbone.parameters(), *method.head.parameters()]) <= 0.5 + 1e-6
    assert norm(method.mentee.parameters()) == pytest.approx(0.5, rel=1e-4)
    assert torch.equal(method.alignment.weight.grad, small)


# --- the shared model


def test_all_clients_start_from_the_same_mentee() -> None:
    first, second = fedkd(client_id=0), fedkd(client_id=1)
    for one, other in zip(first.mentee.parameters(), second.mentee.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.alignment.weight, second.alignment.weight)


def test_another_run_starts_from_another_mentee() -> None:
    first, second = fedkd(run_seed=0), fedkd(run_seed=1)
    assert not torch.equal(first.mentee.head.weight, second.mentee.head.weight)


def test_the_mentee_does_not_change_the_clients_own_initial_weights() -> None:
    with_mentee, alone = fedkd(client_id=3), sharing_trainer("local", client_id=3)
    drawn_after = torch.rand(1)
    assert torch.equal(with_mentee.backbone[2].weight, alone.backbone[2].weight)
    assert torch.equal(with_mentee.head.weight, alone.head.weight)
    torch.manual_seed(1003)
    sharing_trainer("local", client_id=3)
    assert torch.equal(drawn_after, torch.rand(1))


def test_images_too_small_for_the_mentee_are_refused_at_once() -> None:
    with pytest.raises(ModelError, match="at least 16x16"):
        fedkd(image_shape=(1, 8, 8))


@pytest.mark.parametrize(
    ("target", "classes", "image", "dense_bytes"),
    [
        ("params", 10, 32, 3_514_152),
        ("update", 10, 32, 3_514_152),
        ("params", 100, 32, 3_698_832),
        ("params", 102, 64, 22_577_304),
        ("params", 200, 64, 22_778_400),
    ],
)
def test_an_upload_has_at_most_the_documented_size(target: str, classes: int, image: int, dense_bytes: int) -> None:
    """A full-energy upload is dense: random weights and random updates have no low rank."""
    method = fedkd(
        classes=classes,
        feature_dim=512,
        image_shape=(3, image, image),
        target=target,
        energy_start=1,
        energy_end=1,
    )
    with torch.no_grad():
        for weight in method.mentee.parameters():
            weight += 0.01 * torch.randn(weight.shape)
    sent = method.collect(*tiny_batch(), batch_size=8)
    assert bytes_of(sent) == dense_bytes + (4 if target == "update" else 0)
    over_the_wire(sent, rules_for_uploads("fedkd", classes=classes, width=512, target=target))


def test_an_upload_whose_factors_are_smaller_has_fewer_bytes() -> None:
    tensors = mentee_tensors(0)
    dense = bytes_of(Payload(tensors=tensors))
    saved = 4 * (512 * 64 - 2 * (512 + 64 + 1))
    assert bytes_of(upload(0, tensors, energy=0.999).payload) == dense - saved


# --- rounds


def test_the_energy_rises_from_start_to_end() -> None:
    settings = FedKDSettings()
    assert [settings.energy(t, 4) for t in range(4)] == pytest.approx([0.95, 0.9575, 0.965, 0.9725])
    assert FedKDSettings(energy_start=0.5, energy_end=1.0).energy(50, 100) == pytest.approx(0.75)


def test_an_upload_is_the_mentee_compressed_to_the_rounds_energy() -> None:
    method = fedkd(energy_start=0.5, energy_end=0.9)
    sent = do_round(method, Payload(), 2)
    expected = compress({name: w.numpy() for name, w in weights_of(method.mentee).items()}, 0.5 + 2 / ROUNDS * 0.4)
    assert list(sent.tensors) == list(expected)
    assert any(name.endswith(".sigma") for name in expected)
    assert all(np.array_equal(sent.tensors[name], expected[name]) for name in expected)


def test_a_download_replaces_the_mentee_and_nothing_else() -> None:
    method = fedkd()
    own = {name: value.clone() for name, value in method.state_dict().items() if not name.startswith("mentee.")}
    tensors = mentee_tensors(3)
    method.receive(Payload(tensors=compress(tensors, 0.9999)), completed_rounds=1)
    for name, weight in weights_of(method.mentee).items():
        assert np.allclose(weight.numpy(), tensors[name], atol=1e-5)
    assert all(torch.equal(method.state_dict()[name], value) for name, value in own.items())


def test_an_empty_download_does_not_change_the_mentee() -> None:
    method, untouched = fedkd(), fedkd()
    method.receive(Payload(), completed_rounds=0)
    assert torch.equal(method.mentee.head.weight, untouched.mentee.head.weight)


@EITHER_TARGET
def test_a_model_for_other_images_is_refused_by_the_client(target: str) -> None:
    """Without this check one channel would be broadcast over three, unnoticed by the average."""
    method = fedkd(target=target)
    prefix = "total." if target == "update" else ""
    received = {prefix + name: tensor for name, tensor in mentee_tensors(0, channels=3).items()}
    if target == "update":
        received["round"] = np.array([1], dtype=np.int32)
    with pytest.raises(ConfigurationError, match=r"conv1\.weight .* images of 1 x 16 x 16; all clients"):
        method.receive(Payload(tensors=received), completed_rounds=1)


def test_both_models_predict_and_the_mentors_rule_is_the_main_one() -> None:
    method = fedkd()
    images, _ = tiny_batch()
    predicted = method.predict(images)
    assert method.inference == "head"
    assert set(predicted) == set(method.inference_rules)
    assert torch.equal(predicted["head"], method.head(method.backbone(images)).argmax(dim=1))
    assert torch.equal(predicted["mentee"], method.mentee.head(method.mentee.body(images)).argmax(dim=1))


# --- the server


def reference_mean(uploads: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: (sum(tensors[name].astype(np.float64) for tensors in uploads) / len(uploads)).astype(np.float32)
        for name in SMALL_MODEL
    }


def test_the_server_sends_the_compressed_mean_of_the_uploads() -> None:
    sent = [mentee_tensors(seed) for seed in range(3)]
    uploads = [upload(client, tensors) for client, tensors in enumerate(sent)]
    state = strategy().aggregate(Payload(), iter(uploads), round_number=0)
    mean = reference_mean([decompress(each.payload.tensors) for each in uploads])
    expected = compress(mean, 0.95)
    assert "fc.weight.u" in expected
    assert list(state.tensors) == list(expected)
    assert all(np.array_equal(state.tensors[name], expected[name]) for name in expected)
    assert strategy().reply(state, uploads[0].payload) is state


def test_the_server_has_no_state_before_the_first_round() -> None:
    server = strategy()
    assert not server.reply(server.initial(), None).tensors


def test_the_mean_loses_no_more_than_the_energy_allows() -> None:
    uploads = [upload(client, mentee_tensors(client), energy=1.0) for client in range(2)]
    mean = reference_mean([mentee_tensors(0), mentee_tensors(1)])
    restored = decompress(strategy().aggregate(Payload(), iter(uploads), round_number=0).tensors)
    for name, tensor in mean.items():
        lost = np.square(restored[name].astype(np.float64) - tensor).sum()
        assert lost <= 0.05 * np.square(tensor.astype(np.float64)).sum()


@EITHER_TARGET
def test_the_same_uploads_give_the_same_bits(target: str) -> None:
    def state() -> Payload:
        server, payload = strategy(target=target), Payload()
        for number in range(2):
            uploads = [upload(client, mentee_tensors(10 * number + client)) for client in range(3)]
            payload = server.aggregate(payload, iter(uploads), round_number=number)
        return payload

    assert digest_of_payload(state()) == digest_of_payload(state())


@EITHER_TARGET
def test_both_directions_pass_the_methods_own_rules(target: str) -> None:
    server, method = strategy(target=target), fedkd(target=target)
    sent = over_the_wire(do_round(method, Payload(), 0), rules_for_uploads("fedkd", target=target))
    state = server.aggregate(Payload(), iter([upload_of(0, sent)]), round_number=0)
    for own in (sent, None):
        over_the_wire(server.reply(state, own), download_rules("fedkd", target=target))
    over_the_wire(server.reply(server.initial(), None), download_rules("fedkd", target=target))


def shapes(tensors: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in tensors.items()}


@EITHER_TARGET
def test_layouts_of_dense_and_factored_uploads_agree(target: str) -> None:
    server = strategy(target=target)
    dense, compressed = mentee_tensors(0), compress(mentee_tensors(1), 0.9)
    assert "fc.weight.u" in compressed
    assert server.layout(shapes(dense)) == server.layout(shapes({**compressed, "round": np.zeros(1)})) == shapes(dense)
    assert server.layout(shapes(mentee_tensors(0, fc=128))) != shapes(dense)


def test_an_upload_that_lacks_a_tensor_is_refused() -> None:
    tensors = mentee_tensors(0)
    del tensors["conv2.weight"]
    with pytest.raises(PayloadError, match=r"conv2\.weight: is missing"):
        strategy().layout(shapes(tensors))


def test_uploads_that_cannot_be_averaged_are_an_error_that_names_the_client() -> None:
    uploads = [upload(4, mentee_tensors(0)), upload(7, mentee_tensors(1, channels=3))]
    with pytest.raises(PayloadError, match=r"conv1\.weight: .* in client 7"):
        strategy().aggregate(Payload(), iter(uploads), round_number=0)


def test_malicious_factors_cannot_make_a_mean_overflow_the_wire_type() -> None:
    server, width = strategy(wire_type=WireType.FLOAT16), 256
    tensors = mentee_tensors(0, fc=width)
    del tensors["fc.weight"]
    tensors["fc.weight.u"] = np.ones((512, width), np.float32)
    tensors["fc.weight.sigma"] = np.full(width, 1e3, np.float32)
    tensors["fc.weight.v"] = np.ones((width, width), np.float32)
    check_values(Payload(tensors=tensors), rules_for_uploads("fedkd"), real_type=WireType.FLOAT16)
    state = server.aggregate(Payload(), iter([upload_of(0, Payload(tensors=tensors))]), round_number=0)
    encode(server.reply(state, None), real_type=WireType.FLOAT16)


# --- updates instead of weights


@pytest.mark.parametrize(("wire_type", "change"), [(WireType.FLOAT16, 4e4), (WireType.FLOAT32, 6e5)])
def test_updates_that_sum_to_an_overflow_leave_the_shared_model_as_it_is(wire_type: WireType, change: float) -> None:
    server = strategy(target="update", wire_type=wire_type)
    tensors = {**mentee_tensors(0), "fc.bias": np.full(512, change, np.float32), "round": np.zeros(1, np.int32)}
    check_values(Payload(tensors=tensors), rules_for_uploads("fedkd", target="update"), real_type=wire_type)
    state = server.aggregate(Payload(), iter([upload_of(0, Payload(tensors=tensors))]), round_number=0)
    encode(server.reply(state, None), real_type=wire_type)
    again = Payload(tensors={**tensors, "round": np.ones(1, np.int32)})
    with pytest.raises(
        UnusableStateError, match=r"the shared model is out of bounds: .*; total\.fc\.bias: has a"
    ) as error:
        server.aggregate(state, iter([upload_of(0, again)]), round_number=1)
    after = error.value.instead
    assert after.tensors["round"].tolist() == [2]
    for own_upload, unchanged in ((None, state.tensors["total.fc.bias"]), (again, np.zeros(512, np.float32))):
        reply = server.reply(after, own_upload)  # a client that took part adds nothing, any other has all of before
        sent = reply.tensors["total.fc.bias" if own_upload is None else "fc.bias"]
        np.testing.assert_array_equal(sent, unchanged)


def test_the_total_update_is_the_sum_of_the_aggregated_updates() -> None:
    server, state = strategy(target="update", wire_type=WireType.FLOAT16), Payload()
    received: dict[str, Any] = {}
    for number in range(4):
        tensors = {**mentee_tensors(number), "round": np.array([number], np.int32)}
        payload = Payload(tensors=tensors)
        state = server.aggregate(state, iter([upload_of(0, payload)]), round_number=number)
        sent = encode(server.reply(state, payload), real_type=WireType.FLOAT16)
        arrived = {name: t for name, t in decode(sent.manifest, sent.body()).tensors.items() if name != "round"}
        for name, change in decompress(arrived).items():
            received[name] = received[name] + change if number else change
    for name, total in received.items():
        assert np.array_equal(state.tensors[f"total.{name}"], total), name


class Federation:
    """A server that averages updates, and clients that take part in some rounds."""

    def __init__(self, clients: int, **settings: Any) -> None:
        self.server = strategy(target="update", **settings)
        self.clients = [fedkd(client_id=client, target="update", **settings) for client in range(clients)]
        self.known = self.server.initial()
        self.uploads: dict[int, Payload] = {}
        self.round = 0

    def reply(self, client: int) -> Payload:
        reply: Payload = self.server.reply(self.known, self.uploads.get(client))
        return over_the_wire(reply, download_rules("fedkd", target="update"))

    def play(self, *participants: int) -> None:
        sent = {client: do_round(self.clients[client], self.reply(client), self.round) for client in participants}
        uploads = [upload_of(client, payload) for client, payload in sorted(sent.items())]
        self.known = self.server.aggregate(self.known, iter(uploads), round_number=self.round)
        self.uploads.update(sent)
        self.round += 1

    def mentee_now(self, client: int) -> dict[str, Tensor]:
        self.clients[client].receive(self.reply(client), completed_rounds=self.round)
        return weights_of(self.clients[client].mentee)


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name in SMALL_MODEL:
        assert torch.allclose(one[name], other[name], atol=1e-6), name


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name in SMALL_MODEL:
        assert torch.equal(one[name], other[name]), name


def test_an_upload_is_the_update_of_the_round() -> None:
    method = fedkd(target="update", energy_start=1, energy_end=1)
    before = weights_of(method.mentee)
    sent = decompress({name: t for name, t in do_round(method, Payload(), 0).tensors.items() if name != "round"})
    for name, after in weights_of(method.mentee).items():
        assert np.array_equal(sent[name], (after - before[name]).numpy())
        assert sent[name].any()


def test_lossless_updates_lead_where_lossless_weights_do() -> None:
    lossless = {"energy_start": 1.0, "energy_end": 1.0}
    by_update = Federation(2, **lossless)
    by_params = [fedkd(client_id=client, **lossless) for client in range(2)]
    server, state = strategy(**lossless), Payload()
    for number in range(3):
        by_update.play(0, 1)
        sent = [upload_of(client, do_round(method, state, number)) for client, method in enumerate(by_params)]
        state = server.aggregate(state, iter(sent), round_number=number)
    by_params[0].receive(state, completed_rounds=3)
    found, expected = by_update.mentee_now(0), weights_of(by_params[0].mentee)
    for name in SMALL_MODEL:
        assert torch.allclose(found[name], expected[name], atol=1e-4), name


def test_participants_receive_the_last_update_and_other_clients_the_total() -> None:
    federation = Federation(3)
    federation.play(0, 1, 2)
    federation.play(0, 1)
    last, missed, newcomer = federation.reply(0), federation.reply(2), federation.server.reply(federation.known, None)
    assert not any(name.startswith("total.") for name in last.tensors)
    assert set(missed.tensors) == set(newcomer.tensors) == {"round", *(f"total.{name}" for name in SMALL_MODEL)}
    assert bytes_of(last) <= bytes_of(missed)


def test_the_last_update_and_the_total_lead_to_the_same_mentee() -> None:
    federation = Federation(3)
    federation.play(0, 1, 2)
    federation.play(0, 1)
    federation.play(0)
    one, other = federation.mentee_now(0), federation.mentee_now(1)
    assert_close(one, other)
    assert_close(one, federation.mentee_now(2))
    federation.clients.append(fedkd(client_id=3, target="update"))
    assert_equal(other, federation.mentee_now(3))


def test_receiving_the_same_download_twice_changes_nothing() -> None:
    federation = Federation(2)
    federation.play(0, 1)
    assert_equal(federation.mentee_now(0), federation.mentee_now(0))


def test_a_round_without_training_keeps_the_anchor() -> None:
    federation = Federation(2)
    federation.play(0, 1)
    federation.mentee_now(1)
    federation.play(0)
    federation.mentee_now(1)
    federation.play(0, 1)
    assert_close(federation.mentee_now(0), federation.mentee_now(1))


def test_a_checkpoint_of_the_round_before_can_be_used_to_predict() -> None:
    federation = Federation(1)
    federation.play(0)
    received = federation.reply(0)
    federation.play(0)
    federation.clients[0].receive(received, completed_rounds=1)


def test_a_client_that_lost_its_state_raises_an_error() -> None:
    federation = Federation(2)
    for _ in range(2):
        federation.play(0, 1)
    federation.clients[1] = fedkd(client_id=1, target="update")
    with pytest.raises(FedDBPError, match="the update of round 2, but this client no longer has the weights before it"):
        federation.mentee_now(1)
    federation.play(0)
    assert_close(federation.mentee_now(0), federation.mentee_now(1))


# --- crashes


@EITHER_TARGET
def test_a_client_that_was_killed_resumes_with_the_same_bits(target: str) -> None:
    def final_upload(*, killed: bool) -> str:
        server, method, shared = strategy(target=target), fedkd(target=target), Payload()
        own: Payload | None = None
        for number in range(3):
            if killed:
                state = {name: value.clone() for name, value in method.state_dict().items()}
                assert save(state)  # safetensors refuses tensors that share memory
                method = fedkd(client_id=9, target=target)
                method.load_state_dict(state)
                shared = over_the_wire(shared, download_rules("fedkd", target=target))
            own = do_round(method, server.reply(shared, own), number)
            shared = server.aggregate(shared, iter([upload_of(0, own)]), round_number=number)
        assert own is not None
        return digest_of_payload(own)

    assert final_upload(killed=True) == final_upload(killed=False)


def test_the_own_parts_persist_over_rounds() -> None:
    method = fedkd()
    first = method.alignment.weight.detach().clone()
    train_steps(method)
    trained = method.alignment.weight.detach().clone()
    assert not torch.equal(trained, first)
    method.receive(Payload(tensors=mentee_tensors(0)), completed_rounds=1)
    assert torch.equal(method.alignment.weight, trained)


# --- a federation


def test_three_rounds_with_different_architectures_improve_accuracy() -> None:
    outcome = run_in_process("fedkd", settings={"mentee_learning_rate": 0.2})
    mentor, mentee = outcome.of("head"), outcome.of("mentee")
    assert mentor[-1] > mentor[0] + 0.4
    assert max(mentee[1:]) > mentee[0] + 0.05
