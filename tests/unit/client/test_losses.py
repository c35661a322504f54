"""Losses against a reference for one sample and one class at a time, in decimal arithmetic."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from feddbp_client.losses import (
    ContrastiveForm,
    HardNegatives,
    _squares_of_differences,
    contrastive,
    contrastive_boundary,
    directions,
    normalized_distances,
    prototype_alignment,
    squared_distances,
)

FORMS: tuple[ContrastiveForm, ...] = ("log", "ratio")
HARD_NEGATIVES: tuple[HardNegatives, ...] = ("reweight", "printed", "boundary", "none")
EVERY_VARIANT = list(itertools.product(FORMS, HARD_NEGATIVES))
every_variant = pytest.mark.parametrize(("form", "hard_negatives"), EVERY_VARIANT)

Rows = list[list[float]]


def direction(row: list[float]) -> list[float]:
    length = math.hypot(*row)
    return [value / length for value in row] if length else row


def reference_distances(z: Rows, prototypes: Rows) -> list[list[Decimal]]:
    return [[Decimal(math.dist(direction(a), direction(b))) for b in prototypes] for a in z]


def reference_boundary(distances: list[list[Decimal]], labels: list[int], known: list[bool]) -> Decimal:
    positives = [row[y] for row, y in zip(distances, labels, strict=True) if known[y]]
    negatives = [
        d
        for row, y in zip(distances, labels, strict=True)
        if known[y]
        for c, d in enumerate(row)
        if known[c] and c != y
    ]
    means = [sum(group, Decimal(0)) / max(len(group), 1) for group in (positives, negatives)]
    return sum(means, Decimal(0)) / 2


def reference_addend(distance: Decimal, m: Decimal, tau: Decimal, hard_negatives: str) -> Decimal:
    inside = max(Decimal(0), m - distance)
    match hard_negatives:
        case "printed":
            return (-inside / tau).exp()
        case "boundary":
            return (inside / tau).exp()
        case "reweight":
            return (-distance / tau).exp() if distance < m else Decimal(0)
    return Decimal(0)


def reference_contrastive(
    z: Tensor, prototypes: Tensor, labels: Tensor, known: Tensor, *, tau: float, form: str, hard_negatives: str
) -> float:
    distances = reference_distances(z.tolist(), prototypes.tolist())
    has = known.tolist()
    m, t, total = reference_boundary(distances, labels.tolist(), has), Decimal(tau), Decimal(0)
    for row, y in zip(distances, labels.tolist(), strict=True):
        if not has[y]:
            continue
        classes = [c for c in range(len(row)) if has[c]]
        numerator = (-row[y] / t).exp()
        denominator = sum(((-row[c] / t).exp() for c in classes), Decimal(0))
        denominator += sum((reference_addend(row[c], m, t, hard_negatives) for c in classes if c != y), Decimal(0))
        quotient = numerator / denominator
        total -= quotient.ln() if form == "log" else quotient
    return float(total / len(z))


def problem(
    seed: int, *, samples: int = 7, classes: int = 5, width: int = 6, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, prototypes, labels and known classes; class 0 is always known, class 1 never."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(samples, width, generator=generator, dtype=dtype)
    prototypes = torch.randn(classes, width, generator=generator, dtype=dtype)
    labels = torch.randint(classes, (samples,), generator=generator)
    labels[:2] = torch.tensor([0, 1])
    known = torch.ones(classes, dtype=torch.bool)
    known[1] = False
    prototypes[1] = 0
    return z, prototypes, labels, known


def unit_distances(z: Tensor, prototypes: Tensor) -> Tensor:
    return normalized_distances(z, directions(prototypes))


def l_d(z: Tensor, prototypes: Tensor, labels: Tensor, known: Tensor, **settings: Any) -> Tensor:
    return contrastive(z, directions(prototypes), labels, known, **settings)


def gradient(loss: Tensor, z: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss, z)
    return found


# --- L_s


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_alignment_is_the_mean_squared_distance_with_unknown_classes_as_zero(reduction: Any) -> None:
    z, prototypes, labels, known = problem(0)
    total = 0.0
    for row, y in zip(z.tolist(), labels.tolist(), strict=True):
        if known[y]:
            total += sum((a - b) ** 2 for a, b in zip(row, prototypes[y].tolist(), strict=True))
    expected = total / len(z) / (z.shape[1] if reduction == "mean" else 1)
    assert prototype_alignment(z, prototypes, labels, known, reduction).item() == pytest.approx(expected, rel=1e-12)


def test_alignment_over_known_classes_only_is_the_usual_mean_squared_error() -> None:
    z, prototypes, labels, _ = problem(1)
    everything = torch.ones(len(prototypes), dtype=torch.bool)
    loss = prototype_alignment(z, prototypes, labels, everything, "mean")
    torch.testing.assert_close(loss, torch.nn.functional.mse_loss(z, prototypes[labels]))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_alignment_has_the_right_gradient(reduction: Any) -> None:
    z, prototypes, labels, known = problem(2)
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda a: prototype_alignment(a, prototypes, labels, known, reduction), (z,))


# --- distances


def test_distances_are_those_between_unit_vectors() -> None:
    z, prototypes, _, _ = problem(3)
    found = unit_distances(z, prototypes)
    expected = reference_distances(z.tolist(), prototypes.tolist())
    torch.testing.assert_close(found, torch.tensor([[float(d) for d in row] for row in expected], dtype=z.dtype))
    assert found.min() >= 0
    assert found.max() <= 2


@pytest.mark.parametrize("separation", [1.0, 1e-2, 1e-4, 1e-6])
def test_small_distances_keep_their_precision_in_float32(separation: float) -> None:
    generator = torch.Generator().manual_seed(4)
    prototypes = torch.randn(3, 512, generator=generator)
    z = prototypes + separation * torch.randn(3, 512, generator=generator)
    found = unit_distances(z, prototypes).diagonal()
    expected = [math.dist(direction(a), direction(b)) for a, b in zip(z.tolist(), prototypes.tolist(), strict=True)]
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, rel=1e-3)


def test_distances_have_the_right_gradient() -> None:
    z, prototypes, _, _ = problem(5)
    inputs = (z.requires_grad_(), prototypes[[0, 2, 3]].requires_grad_())
    assert torch.autograd.gradcheck(unit_distances, inputs)


def test_the_gradient_at_distance_zero_is_zero() -> None:
    prototypes = torch.tensor([[0.0, 4.0], [1.0, 0.0]])
    z = torch.tensor([[0.0, 1.0]], requires_grad=True)
    distances = unit_distances(z, prototypes)
    assert distances[0, 0] == 0
    assert torch.equal(gradient(distances[0, 0], z), torch.zeros(1, 2))


def test_a_zero_vector_is_at_distance_one_and_gets_no_gradient() -> None:
    z = torch.zeros(1, 4, requires_grad=True)
    distances = unit_distances(z, torch.eye(4))
    assert torch.equal(distances, torch.ones(1, 4))
    assert torch.equal(gradient(distances.sum(), z), torch.zeros(1, 4))


def test_squared_distances_are_exact_for_far_away_neighbours() -> None:
    far = torch.full((1, 512), 1000.0)
    near = far.clone()
    near[0, 0] += 0.125
    assert squared_distances(far, near).item() == pytest.approx(0.125**2, rel=1e-6)
    assert squared_distances(far, far).item() == 0


def test_distances_without_float64_are_the_same_to_float32_rounding() -> None:
    z, prototypes, _, _ = problem(3, width=512, dtype=torch.float32)
    by_product = squared_distances(z, prototypes)
    torch.testing.assert_close(_squares_of_differences(z, prototypes), by_product.float())


def test_features_in_half_precision_give_distances_in_single() -> None:
    z, prototypes, labels, known = problem(3, dtype=torch.float32)
    half = z.bfloat16()
    found = unit_distances(half, prototypes)
    assert found.dtype == torch.float32
    assert torch.equal(found, unit_distances(half.float(), prototypes))
    loss = l_d(half, prototypes, labels, known, tau=0.07, form="log", hard_negatives="boundary")
    assert loss.dtype == torch.float32


# --- L_d


@every_variant
@pytest.mark.parametrize("tau", [0.5, 0.07])
def test_contrastive_loss_agrees_with_the_definition(
    form: ContrastiveForm, hard_negatives: HardNegatives, tau: float
) -> None:
    for seed in range(5):
        case = problem(seed)
        found = l_d(*case, tau=tau, form=form, hard_negatives=hard_negatives)
        expected = reference_contrastive(*case, tau=tau, form=form, hard_negatives=hard_negatives)
        assert found.item() == pytest.approx(expected, rel=1e-9)


@every_variant
def test_float32_agrees_with_the_definition_at_a_tiny_temperature(
    form: ContrastiveForm, hard_negatives: HardNegatives
) -> None:
    for seed in range(3):
        case = problem(seed, width=64, dtype=torch.float32)
        found = l_d(*case, tau=1e-3, form=form, hard_negatives=hard_negatives)
        expected = reference_contrastive(*case, tau=1e-3, form=form, hard_negatives=hard_negatives)
        assert found.item() == pytest.approx(expected, rel=1e-3, abs=1e-6)


def both_precisions(z: Tensor, prototypes: Tensor, labels: Tensor, **settings: Any) -> list[tuple[Tensor, Tensor]]:
    """L_d and its gradient, computed in float32 and in float64."""
    known = torch.ones(len(prototypes), dtype=torch.bool)
    results = []
    for dtype in (torch.float32, torch.float64):
        features = z.to(dtype, copy=True).requires_grad_()
        loss = l_d(features, prototypes.to(dtype), labels, known, tau=0.07, **settings)
        results.append((loss.detach().double(), gradient(loss, features).double()))
    return results


@every_variant
@pytest.mark.parametrize("separation", [1.0, 1e-1, 1e-2, 1e-3, 1e-4])
def test_float32_is_enough_for_features_at_any_distance_from_their_prototype(
    form: ContrastiveForm, hard_negatives: HardNegatives, separation: float
) -> None:
    generator = torch.Generator().manual_seed(15)
    prototypes = torch.randn(100, 512, generator=generator)
    labels = torch.randint(100, (32,), generator=generator)
    z = prototypes[labels] + separation * torch.randn(32, 512, generator=generator)
    (loss, slope), (exact_loss, exact_slope) = both_precisions(
        z, prototypes, labels, form=form, hard_negatives=hard_negatives
    )
    # beside its prototype a sample may have a probability that float32 rounds to one, and with it the loss to zero
    torch.testing.assert_close(loss, exact_loss, rtol=1e-6, atol=2e-7)
    # the difference of two unit vectors is as exact as they are
    assert (slope - exact_slope).norm() <= (2e-5 + 1e-7 / separation) * exact_slope.norm() + 2e-8


@pytest.mark.parametrize(("separation", "tolerance"), [(1.0, 1e-4), (0.1, 1e-4), (1e-2, 1e-2), (1e-4, 1.0)])
def test_features_on_the_prototype_of_another_class_are_pushed_away_with_bounded_error(
    separation: float, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(16)
    prototypes = torch.randn(100, 512, generator=generator)
    labels = torch.arange(32)
    z = prototypes[labels + 1] + separation * torch.randn(32, 512, generator=generator)
    (loss, slope), (exact_loss, exact_slope) = both_precisions(
        z, prototypes, labels, form="log", hard_negatives="reweight"
    )
    torch.testing.assert_close(loss, exact_loss, rtol=1e-3, atol=0)
    assert (slope - exact_slope).norm() <= tolerance * exact_slope.norm()


@every_variant
@pytest.mark.parametrize("tau", [1e-3, 1e-6, 1e-12])
def test_nothing_overflows_in_float32(form: ContrastiveForm, hard_negatives: HardNegatives, tau: float) -> None:
    z, prototypes, labels, known = problem(6, dtype=torch.float32)
    z[0] = prototypes[0]
    z[3] = -prototypes[labels[3]]
    z.requires_grad_()
    loss = l_d(z, prototypes, labels, known, tau=tau, form=form, hard_negatives=hard_negatives)
    assert loss.isfinite()
    assert gradient(loss, z).isfinite().all()


@every_variant
def test_contrastive_loss_has_the_right_gradient(form: ContrastiveForm, hard_negatives: HardNegatives) -> None:
    z, prototypes, labels, known = problem(7)
    # the boundary is detached, so it must be fixed for finite differences
    m = contrastive_boundary(unit_distances(z, prototypes), labels, known)

    def loss(features: Tensor) -> Tensor:
        return l_d(features, prototypes, labels, known, tau=0.3, form=form, hard_negatives=hard_negatives, boundary=m)

    assert torch.autograd.gradcheck(loss, (z.requires_grad_(),))


@pytest.mark.parametrize("hard_negatives", HARD_NEGATIVES)
def test_the_batch_boundary_is_detached_from_the_gradient(hard_negatives: HardNegatives) -> None:
    z, prototypes, labels, known = problem(8)
    z.requires_grad_()
    m = contrastive_boundary(unit_distances(z, prototypes), labels, known)
    assert not m.requires_grad
    free, held = (
        l_d(z, prototypes, labels, known, tau=0.3, form="log", hard_negatives=hard_negatives, boundary=boundary)
        for boundary in (None, m)
    )
    assert torch.equal(gradient(free, z), gradient(held, z))


def test_the_boundary_lies_halfway_between_positives_and_negatives() -> None:
    z, prototypes, labels, known = problem(9)
    found = contrastive_boundary(unit_distances(z, prototypes), labels, known)
    distances = reference_distances(z.tolist(), prototypes.tolist())
    assert found.item() == pytest.approx(float(reference_boundary(distances, labels.tolist(), known.tolist())))


@every_variant
def test_a_sample_without_prototype_has_no_gradient_and_no_influence(
    form: ContrastiveForm, hard_negatives: HardNegatives
) -> None:
    z, prototypes, labels, known = problem(10)
    z.requires_grad_()
    stranger = ~known[labels]
    assert stranger.any()

    def both(rows: Tensor) -> Tensor:
        features, classes = z[rows], labels[rows]
        pull = prototype_alignment(features, prototypes, classes, known, "mean")
        return pull + l_d(features, prototypes, classes, known, tau=0.07, form=form, hard_negatives=hard_negatives)

    mixed = gradient(both(torch.ones_like(stranger)), z)
    apart = gradient(both(~stranger), z)
    assert torch.equal(mixed[stranger], torch.zeros_like(mixed[stranger]))
    share = (~stranger).double().mean()
    torch.testing.assert_close(mixed, apart * share)


@every_variant
def test_rows_of_unknown_classes_have_no_influence(form: ContrastiveForm, hard_negatives: HardNegatives) -> None:
    z, prototypes, labels, known = problem(11)
    litter = prototypes.clone()
    litter[~known] = 1e3
    clean, littered = (
        l_d(z, rows, labels, known, tau=0.07, form=form, hard_negatives=hard_negatives) for rows in (prototypes, litter)
    )
    assert torch.equal(clean, littered)


@every_variant
def test_a_single_prototype_leaves_nothing_to_contrast(form: ContrastiveForm, hard_negatives: HardNegatives) -> None:
    z, prototypes, _, _ = problem(12)
    labels = torch.zeros(len(z), dtype=torch.int64)
    z.requires_grad_()
    only = torch.tensor([True, False, False, False, False])
    loss = l_d(z, prototypes, labels, only, tau=0.07, form=form, hard_negatives=hard_negatives)
    assert loss.item() == (0 if form == "log" else -1)
    assert torch.equal(gradient(loss, z), torch.zeros_like(z))


@every_variant
def test_without_any_prototype_the_loss_is_zero(form: ContrastiveForm, hard_negatives: HardNegatives) -> None:
    z, prototypes, labels, known = problem(13)
    z.requires_grad_()
    loss = l_d(z, prototypes, labels, torch.zeros_like(known), tau=0.07, form=form, hard_negatives=hard_negatives)
    assert loss.item() == 0
    assert torch.equal(gradient(loss, z), torch.zeros_like(z))


@every_variant
def test_features_on_their_prototype_have_a_finite_gradient(
    form: ContrastiveForm, hard_negatives: HardNegatives
) -> None:
    _, prototypes, _, known = problem(14, width=512, dtype=torch.float32)
    labels = torch.tensor([0, 2, 3, 4])
    z = (2.5 * prototypes[labels]).requires_grad_()
    loss = l_d(z, prototypes, labels, known, tau=0.07, form=form, hard_negatives=hard_negatives)
    assert gradient(loss, z).isfinite().all()


def on_circle(distance: float) -> list[float]:
    """The unit vector of the plane at this distance from (1, 0)."""
    angle = 2 * math.asin(distance / 2)
    return [math.cos(angle), math.sin(angle)]


def pull_on_negative(hard_negatives: HardNegatives, positive: float, negative: float) -> float:
    """Change of the distance of a single negative by a descent step on L_d; negative if it comes closer."""
    z = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    own = torch.tensor([on_circle(positive)], dtype=torch.float64)
    # the negative itself is moved: a step on z would also change the distance through the positive's term
    other = torch.tensor([on_circle(negative)], dtype=torch.float64, requires_grad=True)
    everything = torch.tensor([True, True])
    loss = l_d(
        z,
        torch.cat([own, other]),
        torch.tensor([0]),
        everything,
        tau=0.07,
        form="log",
        hard_negatives=hard_negatives,
    )
    moved = other.detach() - 1e-6 * gradient(loss, other)
    return (unit_distances(z, moved) - negative).item()


@given(positive=st.floats(0.6, 1.8), share=st.floats(0.55, 0.95))  # the negative's distance as a share of the boundary
def test_printed_draws_a_hard_negative_closer_where_the_other_forms_push_it_away(positive: float, share: float) -> None:
    # m = (positive + negative) / 2 and negative = share * m
    negative = share * positive / (2 - share)
    assert pull_on_negative("printed", positive, negative) < 0
    assert pull_on_negative("reweight", positive, negative) > 0
    assert pull_on_negative("boundary", positive, negative) > 0


def test_printed_pushes_away_only_what_is_closer_than_half_the_boundary() -> None:
    assert pull_on_negative("printed", 1.0, 0.30) > 0  # m = 0.65
    assert pull_on_negative("printed", 1.0, 0.36) < 0  # m = 0.68


@given(seed=st.integers(0, 2**31), variant=st.sampled_from(EVERY_VARIANT), data=st.data())
@settings(max_examples=50)
def test_the_order_of_a_batch_does_not_matter(
    seed: int, variant: tuple[ContrastiveForm, HardNegatives], data: st.DataObject
) -> None:
    z, prototypes, labels, known = problem(seed)
    order = torch.tensor(data.draw(st.permutations(range(len(z)))))
    form, hard_negatives = variant
    here, there = (
        l_d(a, prototypes, y, known, tau=0.07, form=form, hard_negatives=hard_negatives)
        + prototype_alignment(a, prototypes, y, known, "mean")
        for a, y in ((z, labels), (z[order], labels[order]))
    )
    torch.testing.assert_close(here, there, rtol=1e-10, atol=1e-12)


@given(seed=st.integers(0, 2**31), form=st.sampled_from(FORMS), tau=st.sampled_from([1.0, 0.07, 1e-3]))
@settings(max_examples=50)
def test_hard_negatives_never_lower_the_loss(seed: int, form: ContrastiveForm, tau: float) -> None:
    case = problem(seed, dtype=torch.float32)
    losses = {name: l_d(*case, tau=tau, form=form, hard_negatives=name).item() for name in HARD_NEGATIVES}
    # a similarity has float32's rounding error, and the loss its exponential after division by tau
    rounding = (1e-5 + 2e-7 / tau) * abs(losses["none"])
    assert all(loss >= losses["none"] - rounding for loss in losses.values())
    if form == "log":
        assert losses["none"] >= 0
    else:
        assert all(-1 <= loss <= 0 for loss in losses.values())


@given(seed=st.integers(0, 2**31), scale=st.floats(1e-3, 1e3))
@settings(max_examples=25)
def test_contrastive_loss_depends_on_directions_only(seed: int, scale: float) -> None:
    z, prototypes, labels, known = problem(seed)
    plain, scaled = (
        l_d(scale_z * z, prototypes / scale_z, labels, known, tau=0.07, form="log", hard_negatives="none")
        for scale_z in (1.0, scale)
    )
    torch.testing.assert_close(plain, scaled)
