"""FedDBP and local training on the client: objective, upload and predictions."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from safetensors.torch import save
from small_federations import run_in_process
from torch import Tensor, nn

from feddbp_client.losses import contrastive, directions, prototype_alignment
from feddbp_client.methods.base import Task
from feddbp_client.methods.feddbp import FedDBP, top_channels
from feddbp_client.methods.local import Local
from feddbp_client.methods.scores import NO_CLASS
from feddbp_client.training.class_statistics import PrototypeStatistics
from feddbp_common.methods import ExchangeShape, method_named
from feddbp_common.methods.feddbp import FedDBPSettings
from feddbp_common.methods.local import LocalSettings
from feddbp_common.wire import (
    FisherScores,
    Payload,
    PrototypeSet,
    TopChannels,
    WireType,
    check_manifest,
    check_values,
    decode,
    encode,
)

WIDTH, CLASSES, SAMPLES = 8, 5, 24
ABLATIONS: list[dict[str, Any]] = [{}, {"without_share": True}, {"without_decision": True}]
every_ablation = pytest.mark.parametrize("ablation", ABLATIONS, ids=["full", "without_share", "without_decision"])


def backbone() -> nn.Module:
    """With batch normalisation and dropout, so that a missing eval mode is detected."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH)
    )


def feddbp(
    *, top_channels_only: bool = False, head: Any = None, wire_type: WireType = WireType.FLOAT32, **settings: Any
) -> FedDBP:
    torch.manual_seed(0)
    settings.setdefault("k_top", 3)
    return FedDBP(
        backbone=backbone(),
        make_head=head or (lambda: nn.Linear(WIDTH, CLASSES)),
        settings=FedDBPSettings(**settings),
        task=Task(
            classes=CLASSES, feature_dim=WIDTH, rounds=2, top_channels_only=top_channels_only, wire_type=wire_type
        ),
    )


def local() -> Local:
    torch.manual_seed(0)
    return Local(
        backbone=backbone(),
        make_head=lambda: nn.Linear(WIDTH, CLASSES),
        settings=LocalSettings(),
        task=Task(classes=CLASSES, feature_dim=WIDTH, rounds=2),
    )


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Every class but the last occurs."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(SAMPLES) % (CLASSES - 1)
    return torch.randn(SAMPLES, 3, 2, 2, generator=generator), labels


def prototypes(class_ids: Sequence[int] = (0, 1, 3), vectors: Any = None) -> Payload:
    if vectors is None:
        vectors = np.random.default_rng(0).standard_normal((len(class_ids), WIDTH))
    return Payload(
        prototypes=PrototypeSet(
            class_ids=np.array(class_ids, dtype=np.int32), vectors=np.array(vectors, dtype=np.float32)
        )
    )


def dense(payload: Payload) -> tuple[Tensor, Tensor]:
    assert payload.prototypes is not None
    rows, known = torch.zeros(CLASSES, WIDTH), torch.zeros(CLASSES, dtype=torch.bool)
    for class_id, vector in zip(payload.prototypes.class_ids, payload.prototypes.vectors, strict=True):
        rows[int(class_id)] = torch.tensor(vector)
        known[int(class_id)] = True
    return rows, known


# --- the model


@every_ablation
@pytest.mark.parametrize("branch", ["linear", "relu", "mlp"])
@pytest.mark.parametrize("heads", ["shared", "separate"])
def test_the_same_seed_makes_the_same_model(branch: str, heads: str, ablation: dict[str, Any]) -> None:
    one, other = (feddbp(branch=branch, heads=heads, **ablation).state_dict() for _ in range(2))
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("branch", "layers"),
    [
        ("linear", [nn.Linear]),
        ("relu", [nn.Linear, nn.ReLU]),
        ("mlp", [nn.Linear, nn.ReLU, nn.Linear]),
    ],
)
def test_branches_have_the_configured_shape(branch: str, layers: list[type[nn.Module]]) -> None:
    method = feddbp(branch=branch)
    assert [[type(layer) for layer in b.children()] for b in method.branches.values()] == [layers, layers]


@every_ablation
@pytest.mark.parametrize("heads", ["shared", "separate"])
def test_a_checkpoint_holds_every_parameter_once(heads: str, ablation: dict[str, Any]) -> None:
    method = feddbp(heads=heads, **ablation)
    single = bool(ablation)
    assert len(method.branches) == (1 if single else 2)
    assert len(method.heads) == (1 if single or heads == "shared" else 2)
    assert save(method.state_dict())  # safetensors refuses tensors that share memory


def test_a_download_is_not_part_of_the_models_state() -> None:
    method = feddbp()
    before = set(method.state_dict())
    method.receive(prototypes(), completed_rounds=1)
    assert set(method.state_dict()) == before


# --- the objective


@pytest.mark.parametrize("heads", ["shared", "separate"])
def test_without_prototypes_the_objective_is_two_cross_entropies(heads: str) -> None:
    method = feddbp(lambda_1=0.25, heads=heads).eval()
    method.receive(Payload(), completed_rounds=0)
    images, labels = batch()
    objective = method.objective(images, labels)
    hidden = method.backbone(images)
    head_s, *_, head_d = [*method.heads.values()] * 2
    assert (head_s is head_d) == (heads == "shared")
    ce_s = F.cross_entropy(head_s(method.branches["shared"](hidden)), labels)
    ce_d = F.cross_entropy(head_d(method.branches["decision"](hidden)), labels)
    assert list(objective.terms) == ["ce_shared", "ce_decision"]
    torch.testing.assert_close(objective.terms["ce_shared"], ce_s.detach())
    torch.testing.assert_close(objective.terms["ce_decision"], ce_d.detach())
    torch.testing.assert_close(objective.total, ce_s + 0.25 * ce_d)


def test_with_prototypes_both_branches_have_a_prototype_term() -> None:
    method = feddbp(lambda_1=0.5, lambda_2=3.0, lambda_3=0.7, hard_negatives="boundary", tau=0.2).eval()
    sent = prototypes()
    method.receive(sent, completed_rounds=1)
    images, labels = batch()
    objective = method.objective(images, labels)
    hidden = method.backbone(images)
    rows, known = dense(sent)
    l_s = prototype_alignment(method.branches["shared"](hidden), rows, labels, known, "mean")
    l_d = contrastive(
        method.branches["decision"](hidden),
        directions(rows),
        labels,
        known,
        tau=0.2,
        form="log",
        hard_negatives="boundary",
    )
    terms = objective.terms
    torch.testing.assert_close(terms["l_s"], l_s.detach())
    torch.testing.assert_close(terms["l_d"], l_d.detach())
    expected = terms["ce_shared"] + 0.5 * terms["ce_decision"] + 3.0 * terms["l_s"] + 0.7 * terms["l_d"]
    torch.testing.assert_close(objective.total.detach(), expected)


@pytest.mark.parametrize(
    ("form", "hard_negatives", "reduction"),
    [*itertools.product(["log", "ratio"], ["reweight", "printed", "boundary", "none"], ["mean", "sum"])],
)
def test_every_form_of_the_loss_reaches_every_parameter(form: str, hard_negatives: str, reduction: str) -> None:
    method = feddbp(l_d_form=form, hard_negatives=hard_negatives, l_s_reduction=reduction)
    method.receive(prototypes(), completed_rounds=1)
    torch.autograd.backward(method.objective(*batch()).total)
    for name, parameter in method.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_an_empty_payload_removes_the_prototypes() -> None:
    method = feddbp()
    method.receive(prototypes(), completed_rounds=1)
    assert "l_s" in method.objective(*batch()).terms
    for nothing in (Payload(), prototypes([], np.zeros((0, WIDTH)))):
        method.receive(nothing, completed_rounds=1)
        assert "l_s" not in method.objective(*batch()).terms


def test_terms_do_not_keep_the_graph_alive() -> None:
    method = feddbp()
    method.receive(prototypes(), completed_rounds=1)
    objective = method.objective(*batch())
    assert objective.total.requires_grad
    assert not any(term.requires_grad for term in objective.terms.values())


def test_read_only_prototypes_from_the_wire_are_accepted() -> None:
    encoded = encode(prototypes())
    received = decode(encoded.manifest, encoded.body())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of read-only memory
        method = feddbp()
        method.receive(received, completed_rounds=1)
    assert {"l_s", "l_d"} <= set(method.objective(*batch()).terms)


@every_ablation
def test_mixed_precision_changes_the_loss_by_rounding_only(ablation: dict[str, Any]) -> None:
    method = feddbp(**ablation).eval()
    method.receive(prototypes(), completed_rounds=1)
    exact = method.objective(*batch())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = method.objective(*batch())
    torch.autograd.backward(mixed.total)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())
    for name, term in mixed.terms.items():
        assert term.dtype == torch.float32
        torch.testing.assert_close(term, exact.terms[name], rtol=0.05, atol=0.05)


# --- what prototypes train, and from when on


def gradients(method: FedDBP, *, completed_rounds: int = 1) -> dict[str, Tensor]:
    """The gradient of every parameter on one batch, in eval mode: dropout would differ between two calls."""
    method.eval().receive(prototypes(), completed_rounds=completed_rounds)
    total = method.objective(*batch()).total
    return dict(
        zip(dict(method.named_parameters()), torch.autograd.grad(total, list(method.parameters())), strict=True)
    )


@every_ablation
@pytest.mark.parametrize("branch", ["linear", "relu", "mlp"])
def test_prototype_terms_may_train_the_branches_alone(branch: str, ablation: dict[str, Any]) -> None:
    everything = gradients(feddbp(branch=branch, **ablation))
    branches_alone = gradients(feddbp(branch=branch, prototype_gradient="branches", **ablation))
    no_prototypes = gradients(feddbp(branch=branch, lambda_2=0, lambda_3=0, **ablation))
    for name, found in branches_alone.items():
        expected = no_prototypes if name.startswith("backbone.") else everything
        torch.testing.assert_close(found, expected[name], msg=name)
    assert any(not torch.allclose(everything[name], no_prototypes[name]) for name in everything if "backbone" in name)


def test_what_prototype_terms_train_changes_no_value_of_a_term() -> None:
    everything, branches_alone = (feddbp(prototype_gradient=part).eval() for part in ("all", "branches"))
    for method in (everything, branches_alone):
        method.receive(prototypes(), completed_rounds=1)
    found, expected = branches_alone.objective(*batch()), everything.objective(*batch())
    assert {name: term.item() for name, term in found.terms.items()} == {
        name: term.item() for name, term in expected.terms.items()
    }


@pytest.mark.parametrize(("completed_rounds", "share"), [(0, 0.0), (1, 0.25), (3, 0.75), (4, 1.0), (9, 1.0)])
def test_the_weights_of_prototype_terms_rise_over_the_warm_up(completed_rounds: int, share: float) -> None:
    method = feddbp(warmup_rounds=4, lambda_1=0.5, lambda_2=8.0, lambda_3=2.0).eval()
    method.receive(prototypes(), completed_rounds=completed_rounds)
    objective = method.objective(*batch())
    terms = objective.terms
    expected = terms["ce_shared"] + 0.5 * terms["ce_decision"] + share * (8 * terms["l_s"] + 2 * terms["l_d"])
    torch.testing.assert_close(objective.total.detach(), expected)


def test_without_a_warm_up_prototype_terms_have_their_weight_from_the_first_round_on() -> None:
    early, late = (gradients(feddbp(), completed_rounds=completed) for completed in (1, 50))
    assert all(torch.equal(early[name], late[name]) for name in early)


@pytest.mark.parametrize("settings", [{"prototype_gradient": "branches"}, {"warmup_rounds": 2}])
def test_clients_that_restart_with_either_setting_end_with_the_same_bits(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    expected = run_in_process("feddbp", settings=settings)
    assert run_in_process("feddbp", settings=settings, restart_in=tmp_path) == expected
    assert run_in_process("feddbp").digests != expected.digests


# --- ablations


def test_without_share_the_decision_branch_is_used_for_both_features() -> None:
    method = feddbp(without_share=True, lambda_1=0.5).eval()
    sent = prototypes()
    method.receive(sent, completed_rounds=1)
    images, labels = batch()
    objective = method.objective(images, labels)
    z = method.branches["decision"](method.backbone(images))
    rows, known = dense(sent)
    l_d = contrastive(z, directions(rows), labels, known, tau=0.07, form="log", hard_negatives="reweight")
    assert list(objective.terms) == ["ce_shared", "ce_decision", "l_d"]
    torch.testing.assert_close(objective.total, 1.5 * F.cross_entropy(method.heads["decision"](z), labels) + l_d)


def test_without_decision_only_the_shared_branch_is_trained() -> None:
    method = feddbp(without_decision=True, lambda_2=2.0).eval()
    sent = prototypes()
    method.receive(sent, completed_rounds=1)
    images, labels = batch()
    objective = method.objective(images, labels)
    z = method.branches["shared"](method.backbone(images))
    rows, known = dense(sent)
    l_s = prototype_alignment(z, rows, labels, known, "mean")
    assert list(objective.terms) == ["ce_shared", "l_s"]
    torch.testing.assert_close(objective.total, F.cross_entropy(method.heads["shared"](z), labels) + 2 * l_s)


@every_ablation
def test_without_personalisation_changes_nothing_on_the_client(ablation: dict[str, Any]) -> None:
    plain, averaged = (
        feddbp(without_personalisation=flag, **ablation).eval().objective(*batch()).total for flag in (False, True)
    )
    assert torch.equal(plain, averaged)


# --- the upload


@every_ablation
def test_prototypes_are_means_of_the_shared_feature_in_eval_mode(ablation: dict[str, Any]) -> None:
    method = feddbp(**ablation).train()
    images, labels = batch()
    payload = method.collect(images, labels, batch_size=7)
    assert method.training
    assert payload.prototypes is not None
    assert payload.prototypes.counts is not None
    assert payload.prototypes.class_ids.tolist() == [0, 1, 2, 3]
    assert payload.prototypes.counts.tolist() == [SAMPLES // 4] * 4
    method.eval()
    branch = method.branches["decision" if "without_share" in ablation else "shared"]
    with torch.no_grad():
        z = branch(method.backbone(images))
    expected = np.stack([z[labels == c].double().mean(0) for c in range(4)])
    np.testing.assert_allclose(payload.prototypes.vectors, expected, rtol=1e-5, atol=1e-6)


def test_scores_come_from_the_head_of_the_shared_branch() -> None:
    method = feddbp(heads="separate")
    images, labels = batch()
    payload = method.collect(images, labels, batch_size=64)
    method.eval()
    head, class_2 = method.heads["shared"], images[labels == 2]
    squares = torch.zeros(WIDTH)
    for image in class_2:
        z = method.branches["shared"](method.backbone(image.unsqueeze(0))).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(F.log_softmax(head(z), dim=1)[0, 2], z)
        squares += gradient[0] ** 2
    assert isinstance(payload.fisher, FisherScores)
    np.testing.assert_allclose(payload.fisher.scores[2], squares / len(class_2), rtol=1e-4)


@pytest.mark.parametrize("head", [None, lambda: nn.Sequential(nn.Linear(WIDTH, CLASSES))])
def test_mixed_precision_uploads_single_precision(head: Any) -> None:
    method = feddbp(head=head)
    exact = method.collect(*batch(), batch_size=8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = method.collect(*batch(), batch_size=8)
    for (_, one), (_, other) in zip(exact.arrays(), mixed.arrays(), strict=True):
        assert other.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.02)


def test_collecting_does_not_change_the_model() -> None:
    method = feddbp()
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    method.collect(*batch(), batch_size=8)
    assert all(torch.equal(before[name], tensor) for name, tensor in method.state_dict().items())
    assert all(parameter.grad is None for parameter in method.parameters())


@pytest.mark.parametrize("only_top", [False, True])
@pytest.mark.parametrize("k_top", [0, 3, WIDTH])
def test_the_upload_passes_the_servers_checks(only_top: bool, k_top: int) -> None:
    method = feddbp(top_channels_only=only_top, k_top=k_top)
    payload = method.collect(*batch(), batch_size=8)
    shape = ExchangeShape(classes=CLASSES, feature_dim=WIDTH, top_channels_only=only_top)
    rules = method_named("feddbp").upload_rules(method.settings, shape)
    encoded = encode(payload)
    check_manifest(encoded.manifest, rules, max_bytes=10_000, label_counts=[6, 6, 6, 6, 0])
    check_values(decode(encoded.manifest, encoded.body()), rules)


def test_top_channels_are_those_of_the_scores() -> None:
    scores = feddbp().collect(*batch(), batch_size=8).fisher
    top = feddbp(top_channels_only=True).collect(*batch(), batch_size=8).fisher
    assert isinstance(scores, FisherScores)
    assert isinstance(top, TopChannels)
    assert top.channels.dtype == np.uint16
    for row, channels in zip(scores.scores.tolist(), top.channels.tolist(), strict=True):
        assert channels == sorted(range(WIDTH), key=lambda j: (-row[j], j))[:3]


@pytest.mark.parametrize("wire_type", [WireType.FLOAT16, WireType.BFLOAT16])
@pytest.mark.parametrize(
    ("smallest", "step"), [(1e-9, 1e-10), (1.0, 1e-5)], ids=["below float16's smallest", "closer than its digits"]
)
def test_scores_in_half_precision_have_the_top_channels_of_float32(
    wire_type: WireType, smallest: float, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores of a client that fits its samples well are tiny, and round to zero."""
    scores = (smallest + step * np.array([[0, 3, 1, 7, 2, 6, 4, 5]])).astype(np.float32)
    found = PrototypeStatistics(
        class_ids=np.array([2], dtype=np.int32),
        counts=np.array([4], dtype=np.int32),
        prototypes=np.zeros((1, WIDTH), dtype=np.float32),
        fisher=scores,
    )
    monkeypatch.setattr("feddbp_client.methods.feddbp.prototypes_and_fisher", lambda *_, **__: found)
    sent = encode(feddbp(wire_type=wire_type).collect(*batch(), batch_size=8), real_type=wire_type)
    arrived = decode(sent.manifest, sent.body()).fisher
    assert isinstance(arrived, FisherScores)
    assert set(top_channels(arrived.scores, 3)[0].tolist()) == {3, 5, 7}


def test_equal_scores_are_ordered_by_channel() -> None:
    scores = np.array([[1, 3, 3, 0, 3], [0, 0, 0, 0, 0], [0, 0, 0, 0, 5]], dtype=np.float32)
    assert top_channels(scores, 3).tolist() == [[1, 2, 4], [0, 1, 2], [4, 0, 1]]


@given(
    scores=st_numpy.arrays(np.float32, (3, 40), elements=st.sampled_from([0.0, 1e-30, 0.5, 1.0, 2.0])),
    k_top=st.integers(0, 40),
)
def test_top_channels_follow_score_then_index(scores: Any, k_top: int) -> None:
    ranked = [sorted((-score, channel) for channel, score in enumerate(row)) for row in scores.tolist()]
    assert top_channels(scores, k_top).tolist() == [[channel for _, channel in row[:k_top]] for row in ranked]


# --- inference


def transparent(**settings: Any) -> FedDBP:
    """The feature is the image itself; the head predicts the class of its largest channel."""
    method = FedDBP(
        backbone=nn.Flatten(),
        make_head=lambda: nn.Linear(WIDTH, CLASSES),
        settings=FedDBPSettings(**settings),
        task=Task(classes=CLASSES, feature_dim=WIDTH, rounds=2),
    )
    with torch.no_grad():
        for branch in method.branches.values():
            layer = next(branch.children())
            assert isinstance(layer, nn.Linear)
            layer.weight.copy_(torch.eye(WIDTH))
            layer.bias.zero_()
        for head in method.heads.values():
            assert isinstance(head, nn.Linear)
            head.weight.copy_(torch.eye(CLASSES, WIDTH))
            head.bias.zero_()
    return method


def vector(*values: float) -> list[float]:
    return [*values, *[0.0] * (WIDTH - len(values))]


def test_the_three_rules_each_follow_their_own_measure() -> None:
    method = transparent()
    # class 1 is in the direction of the sample but far away, class 3 near it in another direction
    method.receive(prototypes([1, 3], [vector(10.0, 0.0), vector(0.6, 0.8)]), completed_rounds=1)
    found = method.predict(torch.tensor([vector(1.0, 0.0)]))
    assert {rule: classes.tolist() for rule, classes in found.items()} == {
        "prototype_normalized": [1],
        "prototype": [3],
        "head": [0],
    }
    assert tuple(found) == FedDBP.inference_rules


def test_classes_without_prototype_are_never_predicted_by_prototypes() -> None:
    method = transparent()
    method.receive(prototypes([4], [vector(-1.0)]), completed_rounds=1)
    # class 0 is a zero row of the table: nearer by any measure, and unknown
    found = method.predict(torch.tensor([vector(0.1), vector(0.0)]))
    assert found["prototype"].tolist() == [4, 4]
    assert found["prototype_normalized"].tolist() == [4, 4]


def test_without_prototypes_only_the_head_predicts() -> None:
    method = transparent()
    method.receive(Payload(), completed_rounds=0)
    found = method.predict(torch.tensor([vector(0.0, 0.0, 1.0), vector(1.0)]))
    assert found["prototype"].tolist() == found["prototype_normalized"].tolist() == [NO_CLASS, NO_CLASS]
    assert found["head"].tolist() == [2, 0]


def test_prediction_uses_the_decision_feature_and_its_head() -> None:
    method = transparent(heads="separate")
    with torch.no_grad():
        for module in (method.branches["shared"], method.heads["shared"]):
            for parameter in module.parameters():
                parameter.fill_(float("nan"))
    method.receive(prototypes([0, 1], [vector(1.0), vector(0.0, 1.0)]), completed_rounds=1)
    found = method.predict(torch.tensor([vector(0.2, 0.9)]))
    assert [classes.item() for classes in found.values()] == [1, 1, 1]


@every_ablation
def test_prediction_is_in_eval_mode_and_restores_the_mode(ablation: dict[str, Any]) -> None:
    method = feddbp(**ablation).train()
    method.receive(prototypes(), completed_rounds=1)
    images, _ = batch()
    together = method.predict(images)
    assert method.training
    # in train mode dropout and the statistics of a batch of one would make this fail
    for rule, classes in together.items():
        alone = torch.cat([method.predict(image.unsqueeze(0))[rule] for image in images])
        assert torch.equal(classes, alone), rule


@pytest.mark.parametrize("rule", FedDBP.inference_rules)
def test_the_main_rule_is_the_configured_one(rule: str) -> None:
    assert feddbp(inference=rule).inference == rule


def test_a_federation_of_one_learns_its_classes() -> None:
    torch.manual_seed(0)
    centres = 3 * torch.randn(CLASSES, 3, 2, 2)
    labels = torch.arange(60) % CLASSES
    images = centres[labels] + 0.3 * torch.randn(60, 3, 2, 2)
    method = feddbp()
    for completed in range(3):
        optimiser = torch.optim.SGD(method.parameters(), lr=0.05)
        for _ in range(40):
            optimiser.zero_grad()
            torch.autograd.backward(method.objective(images, labels).total)
            optimiser.step()
        method.receive(method.collect(images, labels, batch_size=32), completed_rounds=completed + 1)
    for rule, classes in method.predict(images).items():
        assert (classes == labels).float().mean() > 0.95, rule


# --- local training


def test_local_training_minimises_cross_entropy_and_uploads_nothing() -> None:
    method = local().eval()
    images, labels = batch()
    method.receive(Payload(), completed_rounds=0)
    objective = method.objective(images, labels)
    logits = method.head(method.backbone(images))
    torch.testing.assert_close(objective.total, F.cross_entropy(logits, labels))
    assert list(objective.terms) == ["ce"]
    assert list(method.collect(images, labels, batch_size=8).arrays()) == []
    assert torch.equal(method.predict(images)["head"], logits.argmax(dim=1))


def test_local_training_predicts_in_eval_mode_and_restores_the_mode() -> None:
    method = local().train()
    images, _ = batch()
    alone = torch.cat([method.predict(image.unsqueeze(0))["head"] for image in images])
    assert torch.equal(method.predict(images)["head"], alone)
    assert method.training
    assert method.inference in method.inference_rules


@pytest.mark.parametrize(("name", "trainer"), [("feddbp", FedDBP), ("local", Local)])
def test_the_registry_names_these_trainers(name: str, trainer: type) -> None:
    spec = method_named(name)
    built = spec.load_trainer()(
        backbone=backbone(),
        make_head=lambda: nn.Linear(WIDTH, CLASSES),
        settings=spec.settings(),
        task=Task(classes=CLASSES, feature_dim=WIDTH, rounds=2),
    )
    assert type(built) is trainer
