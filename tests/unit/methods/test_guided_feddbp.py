"""FedDBP beside a guide: separate losses, averaged guides, and a decision by both."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shared_model_clients import IMAGE, sharing_trainer, tiny_batch
from small_federations import CLASSES, WIDTH, download_rules, over_the_wire, run_in_process, small_strategy, upload_of
from small_federations import upload_rules as rules_for_uploads

from feddbp_client.methods.guided_feddbp import distillation
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.feddbp import FedDBPSettings
from feddbp_common.methods.guide_network import GUIDES
from feddbp_common.wire import Payload

GUIDED: dict[str, Any] = {"guided": True, "inference": "both", "k_top": 2}


def client(client_id: int = 0, **settings: Any) -> Any:
    return sharing_trainer("feddbp", client_id=client_id, **{**GUIDED, **settings})


def gradients(method: Any, total: torch.Tensor) -> dict[str, torch.Tensor]:
    method.zero_grad()
    total.backward()
    return {name: weight.grad.clone() for name, weight in method.named_parameters() if weight.grad is not None}


def test_neither_network_has_a_gradient_of_the_others_loss() -> None:
    guided, plain = client(), client(guided=False, inference="head")
    images, labels = tiny_batch()
    objective = guided.objective(images, labels)
    both, own = gradients(guided, objective.total), gradients(plain, plain.objective(images, labels).total)
    assert all(torch.equal(both[name], own[name]) for name in own)
    assert {name for name in both if name not in own} == {
        f"guide.{name}" for name, _ in guided.guide.named_parameters()
    }
    guide_loss = guided.cross_entropy(guided.guide.head(guided.guide.body(images)), labels)
    alone = gradients(guided, guide_loss)
    assert all(torch.equal(alone[name], both[name]) for name in both if name.startswith("guide."))
    assert float(objective.terms["ce_guide"]) == pytest.approx(float(guide_loss.detach()))


def test_distillation_teaches_the_own_network_and_not_the_guide() -> None:
    without, distilling = client(), client(distillation=0.5, temperature=3.0)
    images, labels = tiny_batch()
    objectives = [method.objective(images, labels) for method in (without, distilling)]
    term = distilling.objective(images, labels).terms["distillation"]
    totals = [objective.total.item() for objective in objectives]
    assert totals[1] == pytest.approx(totals[0] + 0.5 * term.item(), rel=1e-5)
    before, after = (
        gradients(method, objective.total) for method, objective in zip((without, distilling), objectives, strict=True)
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert not any(name.startswith("guide.") for name in changed)


def test_distillation_is_the_softened_divergence_summed_over_branches() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, teacher = torch.randn(6, 2, CLASSES, generator=generator), torch.randn(6, CLASSES, generator=generator)
    expected = 0.0
    for row, target in zip(logits.tolist(), teacher.tolist(), strict=True):
        p = _softmax(target, 2.0)
        for branch in row:
            q = _softmax(branch, 2.0)
            expected += 4 * sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True)) / 6
    assert float(distillation(logits, teacher, 2.0)) == pytest.approx(expected, rel=1e-5)
    assert float(distillation(teacher.unsqueeze(1), teacher, 2.0)) == pytest.approx(0.0, abs=1e-6)


def test_the_guide_is_trained_and_asked_with_the_clients_class_frequencies() -> None:
    method = client()
    method.set_label_counts([6, 3, 1, 0, 0])
    prior = torch.tensor([6, 3, 1, 0.1, 0.1]) / 10.2
    torch.testing.assert_close(method.log_prior, prior.log())
    images, labels = tiny_batch()
    raw = method.guide.head(method.guide.body(images))
    expected = torch.nn.functional.cross_entropy(raw + prior.log(), labels)
    assert float(method.objective(images, labels).terms["ce_guide"]) == pytest.approx(float(expected.detach()))
    torch.testing.assert_close(method.scores(images)["guide"].values, raw + prior.log())
    assert "log_prior" in method.state_dict()  # a restored client predicts without its data


def test_a_client_of_one_class_learns_nothing_from_the_guide() -> None:
    images, labels = tiny_batch()
    method = client(distillation=1.0)
    method.set_label_counts([6, 3, 0, 0, 0])
    assert "distillation" in method.objective(images, labels).terms
    method.set_label_counts([0, 9, 0, 0, 0])
    assert "distillation" not in method.objective(images, labels).terms


@pytest.mark.parametrize(("scale", "is_clipped"), [(1.0, False), (1e4, True)])
def test_steps_of_the_own_network_that_are_far_too_long_are_clipped(scale: float, is_clipped: bool) -> None:
    method = client(distillation=1.0)
    before = gradients(method, scale * method.objective(*tiny_batch()).total)
    method.clip_gradients()
    after = {name: weight.grad for name, weight in method.named_parameters() if weight.grad is not None}
    own = [name for name in before if not name.startswith("guide.")]
    norm_before, norm = (torch.cat([found[name].flatten() for name in own]).norm() for found in (before, after))
    assert (float(norm_before) > 100) == is_clipped
    if is_clipped:
        assert float(norm) == pytest.approx(100, rel=1e-4)
    unchanged = {name for name in before if torch.equal(before[name], after[name])}
    assert unchanged == {name for name in before if not is_clipped or name.startswith("guide.")}


def test_without_the_prior_the_guide_is_left_as_it_is() -> None:
    method = client(guide_prior="none")
    method.set_label_counts([6, 3, 1, 0, 0])
    assert not method.log_prior.any()


def test_without_weights_of_prototypes_only_the_guide_is_exchanged() -> None:
    alone = {**GUIDED, "lambda_2": 0.0, "lambda_3": 0.0}
    method = client(**alone)
    sent = method.collect(*tiny_batch(), batch_size=8)
    assert sent.prototypes is None
    assert sent.fisher is None
    over_the_wire(sent, rules_for_uploads("feddbp", **alone))
    state = small_strategy("feddbp", **alone).aggregate(Payload(), [upload_of(0, sent, [2])], round_number=0)
    assert state.prototypes is None
    assert state.tensors.keys() == sent.tensors.keys()
    assert method.inference_rules == ("head", "guide", "both")
    assert set(method.predict(tiny_batch()[0])) == {"head", "guide", "both"}
    with pytest.raises(ConfigurationError, match="inference prototype needs prototypes"):
        FedDBPSettings(guided=True, lambda_2=0.0, lambda_3=0.0, inference="prototype")


def test_an_upload_has_prototypes_scores_and_the_guide_and_passes_the_rules() -> None:
    images, labels = tiny_batch()
    sent = client().collect(images, labels, batch_size=8)
    arrived = over_the_wire(sent, rules_for_uploads("feddbp", **GUIDED))
    assert arrived.prototypes is not None
    assert arrived.fisher is not None
    expected = GUIDES["guide_large"].shapes(channels=IMAGE[0], classes=CLASSES)
    assert {name: tensor.shape for name, tensor in arrived.tensors.items()} == expected


def test_guides_are_averaged_by_samples_and_prototypes_fused_as_without() -> None:
    images, labels = tiny_batch()
    uploads = [client(number).collect(images, labels, batch_size=8) for number in (0, 1)]
    for number, sent in enumerate(uploads):
        sent.tensors["head.bias"][:] = number
    weighted = [upload_of(0, uploads[0], [3] * CLASSES), upload_of(1, uploads[1], [1] * CLASSES)]
    guided, plain = small_strategy("feddbp", **GUIDED), small_strategy("feddbp", k_top=2)
    state, state_plain = (each.aggregate(Payload(), weighted, round_number=0) for each in (guided, plain))
    reply = over_the_wire(guided.reply(state, uploads[0]), download_rules("feddbp", **GUIDED))
    assert reply.tensors["head.bias"].tolist() == [0.25] * CLASSES
    assert reply.prototypes is not None
    np.testing.assert_array_equal(reply.prototypes.vectors, plain.reply(state_plain, uploads[0]).prototypes.vectors)


def test_a_received_guide_replaces_the_own_one() -> None:
    trained, other = client(), client(1)
    with torch.no_grad():
        trained.guide.head.bias.fill_(2.0)
    other.receive(Payload(tensors=trained.guide.tensors()), completed_rounds=1)
    assert other.guide.head.bias.tolist() == [2.0] * CLASSES
    assert other.task.feature_dim == WIDTH


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_both_networks_decide_by_the_weighted_geometric_mean_of_their_probabilities(weight: float) -> None:
    method = client(guide_weight=weight).eval()
    images, _ = tiny_batch()
    with torch.no_grad():
        scores = method.scores(images)
        head, guide = (scores[rule].values.softmax(dim=1) for rule in ("head", "guide"))
    torch.testing.assert_close(scores["both"].values.exp(), (head * guide**weight) ** (1 / (1 + weight)))
    assert method.inference == "both"


def test_a_rule_of_the_guide_needs_one() -> None:
    with pytest.raises(ConfigurationError, match="inference both needs guided"):
        FedDBPSettings(inference="both")


def _softmax(logits: list[float], temperature: float) -> list[float]:
    exponentials = [math.exp(logit / temperature) for logit in logits]
    return [value / sum(exponentials) for value in exponentials]


def test_a_federation_learns_and_survives_restarts_to_the_bit(tmp_path: Path) -> None:
    training = {"momentum": 0.9, "keep_optimizer": True, "schedule": "cosine"}
    expected = run_in_process("feddbp", settings=GUIDED, training=training)
    assert expected.of("both")[-1] > expected.of("both")[0] + 0.2
    assert run_in_process("feddbp", settings=GUIDED, training=training, restart_in=tmp_path) == expected
