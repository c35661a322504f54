"""Losses of the comparison methods against slow references, and where they must be zero."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from feddbp_client.losses import alignment, angular_contrast, directions
from feddbp_common.methods.fedproto import AlignmentDistance

DISTANCES: tuple[AlignmentDistance, ...] = ("mse", "squared", "euclidean")
every_distance = pytest.mark.parametrize("distance", DISTANCES)


def problem(seed: int, *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, prototypes, labels and the mask of known classes; class 1 has no prototype."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(7, 6, generator=generator, dtype=dtype)
    prototypes = torch.randn(5, 6, generator=generator, dtype=dtype)
    labels = torch.tensor([0, 1, 2, 3, 4, 1, 2])
    return z, prototypes, labels, torch.tensor([True, False, True, True, True])


def clusters(seed: int, *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Prototypes of length one, up to three per class and none for class 1."""
    generator = torch.Generator().manual_seed(seed + 100)
    classes = torch.tensor([0, 0, 2, 3, 3, 3, 4])
    return directions(torch.randn(len(classes), 6, generator=generator, dtype=dtype)).to(dtype), classes


def gradient(loss: Tensor, z: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss, z)
    return found


# --- alignment with the prototype of the class


def reference_alignment(
    z: Tensor, prototypes: Tensor, labels: Tensor, known: Tensor, distance: AlignmentDistance
) -> float:
    total = 0.0
    for vector, label in zip(z.tolist(), labels.tolist(), strict=True):
        if not known[label]:
            continue
        square = sum((a - b) ** 2 for a, b in zip(vector, prototypes[label].tolist(), strict=True))
        total += {"mse": square / len(vector), "squared": square, "euclidean": math.sqrt(square)}[distance]
    return total / len(z)


@every_distance
def test_the_alignment_agrees_with_its_definition(distance: AlignmentDistance) -> None:
    for seed in range(3):
        case = problem(seed)
        assert alignment(*case, distance).item() == pytest.approx(reference_alignment(*case, distance), rel=1e-12)


def test_with_all_classes_known_the_alignment_is_torchs_mean_squared_error() -> None:
    z, prototypes, labels, known = problem(0)
    found = alignment(z, prototypes, labels, torch.ones_like(known), "mse")
    torch.testing.assert_close(found, F.mse_loss(z, prototypes[labels]))


@every_distance
def test_the_alignment_has_the_right_gradient(distance: AlignmentDistance) -> None:
    z, prototypes, labels, known = problem(1)
    assert torch.autograd.gradcheck(lambda x: alignment(x, prototypes, labels, known, distance), (z.requires_grad_(),))


@every_distance
def test_a_class_without_prototype_has_no_gradient(distance: AlignmentDistance) -> None:
    z, prototypes, labels, known = problem(2)
    z.requires_grad_()
    found = gradient(alignment(z, prototypes, labels, known, distance), z)
    assert torch.equal(found[labels == 1], torch.zeros(2, 6, dtype=z.dtype))
    assert (found[labels != 1] != 0).all()


@every_distance
def test_a_feature_equal_to_its_prototype_has_no_gradient(distance: AlignmentDistance) -> None:
    _, prototypes, labels, known = problem(3, dtype=torch.float32)
    z = prototypes[labels].clone().requires_grad_()
    loss = alignment(z, prototypes, labels, known, distance)
    assert loss.item() == 0
    assert torch.equal(gradient(loss, z), torch.zeros_like(z))


# --- contrast with all prototypes


def reference_contrast(z: Tensor, rows: Tensor, classes: Tensor, labels: Tensor, tau: float) -> float:
    total = 0.0
    for vector, label in zip(z.tolist(), labels.tolist(), strict=True):
        length = math.sqrt(sum(x * x for x in vector))
        own = all_classes = 0.0
        for row, row_class in zip(rows.tolist(), classes.tolist(), strict=True):
            cosine = sum(a * b for a, b in zip(vector, row, strict=True)) / length
            all_classes += math.exp(cosine / tau)
            own += math.exp(cosine / tau) if row_class == label else 0.0
        total -= math.log(own / all_classes) if own else 0.0
    return total / len(z)


@pytest.mark.parametrize("tau", [1.0, 0.2, 0.02])
def test_the_contrast_agrees_with_its_definition(tau: float) -> None:
    for seed in range(3):
        z, _, labels, _ = problem(seed)
        rows, classes = clusters(seed)
        found = angular_contrast(z, rows, classes, labels, tau=tau)
        assert found.item() == pytest.approx(reference_contrast(z, rows, classes, labels, tau), rel=1e-10)


def test_with_one_prototype_per_class_the_contrast_is_a_cross_entropy_of_cosines() -> None:
    z, prototypes, labels, _ = problem(0)
    found = angular_contrast(z, directions(prototypes), torch.arange(5), labels, tau=0.5)
    cosines = F.cosine_similarity(z.unsqueeze(1), prototypes.unsqueeze(0), dim=2)
    torch.testing.assert_close(found, F.cross_entropy(cosines / 0.5, labels))


def test_the_contrast_has_the_right_gradient() -> None:
    z, _, labels, _ = problem(1)
    rows, classes = clusters(1)
    assert torch.autograd.gradcheck(
        lambda x: angular_contrast(x, rows, classes, labels, tau=0.3), (z.requires_grad_(),)
    )


def test_a_class_without_prototype_adds_zero_and_counts_in_the_average() -> None:
    z, _, labels, _ = problem(2)
    rows, classes = clusters(2)
    z.requires_grad_()
    mixed = angular_contrast(z, rows, classes, labels, tau=0.1)
    assert torch.equal(gradient(mixed, z)[labels == 1], torch.zeros(2, 6, dtype=z.dtype))
    known = labels != 1
    apart = angular_contrast(z[known], rows, classes, labels[known], tau=0.1)
    torch.testing.assert_close(mixed, apart * known.double().mean())


@pytest.mark.parametrize("tau", [1e-3, 1e-6])
def test_nothing_overflows_in_float32(tau: float) -> None:
    z, _, labels, _ = problem(3, dtype=torch.float32)
    rows, classes = clusters(3)
    z[0], z[2], z[3] = rows[0], -rows[2], 0.0
    z.requires_grad_()
    loss = angular_contrast(z, rows, classes, labels, tau=tau)
    assert loss.dtype == torch.float32
    assert loss.isfinite()
    assert gradient(loss, z).isfinite().all()


def test_features_in_half_precision_are_contrasted_in_single() -> None:
    z, _, labels, _ = problem(4, dtype=torch.float32)
    rows, classes = clusters(4)
    half = z.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = angular_contrast(half, rows, classes, labels, tau=0.02)
    assert found.dtype == torch.float32
    assert torch.equal(found, angular_contrast(half.float(), rows, classes, labels, tau=0.02))
