"""Class means and Fisher scores against a reference for one sample at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from feddbp_client.training.class_statistics import (
    ClassMeans,
    class_means,
    evaluation,
    log_likelihood_gradients,
    prototypes_and_fisher,
)

CPU = torch.device("cpu")


def split(seed: int = 0, *, samples: int = 23, width: int = 4) -> tuple[Tensor, Tensor]:
    """Images that are vectors, and labels in 0..6 without class 3."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0, 1, 2, 4, 5, 6])[torch.randint(6, (samples,), generator=generator)]
    return torch.randn(samples, width, generator=generator), labels


def means_of(images: Tensor, labels: Tensor, *, batch_size: int = 8) -> ClassMeans:
    width = images.shape[1]
    return class_means(lambda x, _: x, images, labels, width=width, batch_size=batch_size, device=CPU)


def heads(width: int, classes: int) -> dict[str, nn.Module]:
    torch.manual_seed(3)
    return {
        "linear": nn.Linear(width, classes),
        "without bias": nn.Linear(width, classes, bias=False),
        "hidden layer": nn.Sequential(nn.Linear(width, 9), nn.Tanh(), nn.Linear(9, classes)),
    }


def gradient_of_one(head: nn.Module, z: Tensor, label: int) -> Tensor:
    """By the definition: log-softmax of a single sample, one backward pass for it alone; the head is float64."""
    row = z.double().clone().requires_grad_()
    (found,) = torch.autograd.grad(head(row.unsqueeze(0)).log_softmax(dim=1)[0, label], row)
    return found


# --- class means


def test_means_are_taken_class_by_class_and_absent_classes_are_left_out() -> None:
    images, labels = split()
    found = means_of(images, labels)
    rows: dict[int, list[list[float]]] = {}
    for row, label in zip(images.tolist(), labels.tolist(), strict=True):
        rows.setdefault(label, []).append(row)
    assert found.class_ids.tolist() == sorted(rows)
    assert found.counts.tolist() == [len(rows[c]) for c in sorted(rows)]
    expected = [[sum(column) / len(rows[c]) for column in zip(*rows[c], strict=True)] for c in sorted(rows)]
    np.testing.assert_allclose(found.means, np.array(expected), rtol=1e-6)


def test_the_arrays_have_the_dtypes_of_the_wire_format() -> None:
    found = means_of(*split())
    assert [a.dtype.name for a in (found.class_ids, found.counts, found.means)] == ["int32", "int32", "float32"]


@given(seed=st.integers(0, 2**31), batch_size=st.integers(1, 30), data=st.data())
@settings(max_examples=40)
def test_neither_batch_size_nor_order_changes_a_mean_of_given_vectors(
    seed: int, batch_size: int, data: st.DataObject
) -> None:
    images, labels = split(seed)
    order = torch.tensor(data.draw(st.permutations(range(len(images)))))
    one, other = means_of(images, labels), means_of(images[order], labels[order], batch_size=batch_size)
    assert np.array_equal(one.class_ids, other.class_ids)
    assert np.array_equal(one.counts, other.counts)
    # sums are float64: the order changes at most the last bit of the rounded mean
    np.testing.assert_allclose(one.means, other.means, rtol=2e-7, atol=1e-12)


def test_large_offsets_do_not_cancel_small_differences() -> None:
    images = torch.full((50_000, 1), 1000.0)
    images[1::2] += 0.5
    found = means_of(images, torch.zeros(50_000, dtype=torch.int64), batch_size=4096)
    assert found.means.tolist() == [[1000.25]]


def test_an_empty_split_has_no_rows() -> None:
    found = means_of(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert found.means.shape == (0, 4)
    assert found.class_ids.shape == found.counts.shape == (0,)


def test_the_same_pass_twice_gives_the_same_bits() -> None:
    images, labels = split(samples=500, width=64)
    head = nn.Linear(64, 7)
    one, other = (
        prototypes_and_fisher(lambda x: x, head, images, labels, width=64, batch_size=128, device=CPU) for _ in range(2)
    )
    assert one.prototypes.tobytes() == other.prototypes.tobytes()
    assert one.fisher.tobytes() == other.fisher.tobytes()


# --- Fisher scores


@pytest.mark.parametrize("kind", ["linear", "without bias", "hidden layer"])
def test_scores_are_mean_squares_of_every_samples_own_gradient(kind: str) -> None:
    images, labels = split(1)
    head = heads(4, 7)[kind]
    found = prototypes_and_fisher(lambda x: 2 * x, head, images, labels, width=4, batch_size=5, device=CPU)
    precise = heads(4, 7)[kind].double()
    for row, class_id in enumerate(found.class_ids.tolist()):
        members = [2 * z for z, y in zip(images, labels.tolist(), strict=True) if y == class_id]
        squares = [gradient_of_one(precise, z, class_id) ** 2 for z in members]
        np.testing.assert_allclose(found.fisher[row], sum(squares[1:], squares[0]) / len(members), rtol=1e-5)
        mean = sum((z.double() for z in members[1:]), members[0].double()) / len(members)
        np.testing.assert_allclose(found.prototypes[row], mean, rtol=1e-6, atol=1e-7)
    assert found.counts.sum() == len(images)


@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.1, 1.0, 10.0, 100.0]))
@settings(max_examples=40, deadline=None)
def test_the_closed_form_agrees_with_autograd_to_float32_rounding(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(16, 32, generator=generator)
    labels = torch.randint(7, (16,), generator=generator)
    torch.manual_seed(seed)
    head = nn.Linear(32, 7)
    closed = log_likelihood_gradients(head, z, labels)
    # wrapped, the head is no longer recognised as linear
    by_autograd = log_likelihood_gradients(nn.Sequential(head), z, labels)
    # logits grow with the scale, and so does the rounding error of their exponentials
    torch.testing.assert_close(closed, by_autograd, rtol=1e-4, atol=1e-6 * max(1.0, scale / 10))


def test_the_closed_form_is_the_one_of_the_paper() -> None:
    images, labels = split(2)
    head = nn.Linear(4, 7)
    found = log_likelihood_gradients(head, images, labels)
    for z, y, row in zip(images, labels.tolist(), found, strict=True):
        torch.testing.assert_close(row, head.weight[y] - head(z).softmax(0) @ head.weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("wrapped", [False, True])
def test_perfectly_fitted_samples_keep_meaningful_scores(wrapped: bool) -> None:
    torch.manual_seed(5)
    head = nn.Linear(8, 4)
    z, labels = torch.randn(6, 8), torch.tensor([0, 1, 2, 3, 0, 1])
    # far in the direction of their class: p_y is one in float32, and 1 - p_y down to 1e-20
    z = z + 150 * head.weight.detach()[labels]
    found = log_likelihood_gradients(nn.Sequential(head) if wrapped else head, z, labels)
    precise = nn.Linear(8, 4).double()
    precise.load_state_dict(head.state_dict())
    for row, vector, y in zip(found, z, labels.tolist(), strict=True):
        logits = precise(vector.double()).detach()
        # 1 - p_y by the other classes' share: exact in float64 where 1.0 - p_y would not be
        odds = torch.stack([torch.exp(logits[c] - logits[y]) * (c != y) for c in range(4)])
        expected = sum((odds[c] * (precise.weight[y] - precise.weight[c]) for c in range(4)), torch.zeros(8).double())
        assert 0 < odds.sum() < 2e-8
        torch.testing.assert_close(row.double(), expected / (1 + odds.sum()), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("kind", ["linear", "hidden layer"])
def test_scores_stay_finite_and_not_negative_at_extreme_logits(kind: str) -> None:
    images, labels = split(3)
    head = heads(4, 7)[kind]
    found = prototypes_and_fisher(lambda x: 1e5 * x, head, images, labels, width=4, batch_size=8, device=CPU)
    assert np.isfinite(found.fisher).all()
    assert (found.fisher >= 0).all()


def test_a_subclass_of_linear_is_not_taken_for_one() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return 2 * super().forward(input)

    torch.manual_seed(0)
    head = Doubled(4, 7)
    images, labels = split(4)
    found = log_likelihood_gradients(head, images, labels)
    precise = head.double()
    for z, y, row in zip(images, labels.tolist(), found, strict=True):
        torch.testing.assert_close(row.double(), gradient_of_one(precise, z, y), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["linear", "hidden layer"])
def test_the_pass_leaves_no_graph_and_no_gradients(kind: str) -> None:
    backbone, head = nn.Linear(4, 4), heads(4, 7)[kind]
    features: list[Tensor] = []
    backbone.register_forward_hook(lambda _, __, out: features.append(out))
    prototypes_and_fisher(backbone, head, *split(5), width=4, batch_size=8, device=CPU)
    assert len(features) == 3
    assert not any(feature.requires_grad for feature in features)
    assert all(p.grad is None for p in (*backbone.parameters(), *head.parameters()))


# --- evaluation mode


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_restores_the_mode(training: bool) -> None:
    module = nn.Sequential(nn.Dropout()).train(training)
    with evaluation(module):
        assert not module[0].training
        assert not torch.is_grad_enabled()
    assert module[0].training is training


def test_evaluation_restores_the_mode_after_a_failure() -> None:
    module = nn.Dropout()
    with pytest.raises(RuntimeError), evaluation(module):
        raise RuntimeError
    assert module.training
    assert torch.is_grad_enabled()
