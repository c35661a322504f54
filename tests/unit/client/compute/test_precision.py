"""Mixed precision ends with the backbone: losses, prototypes and Fisher scores are computed in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trained_samples import GREY, random_pixels, run_of

from feddbp_client.compute.plan import Compute
from feddbp_client.compute.precision import Precision
from feddbp_client.losses import alignment, angular_contrast, contrastive, normalized_distances, prototype_alignment
from feddbp_client.models.blocks import Backbone, backbones_in
from feddbp_client.training.class_statistics import prototypes_and_fisher
from feddbp_client.training.setup import build_method
from feddbp_common.methods import METHODS
from feddbp_server.strategies import RunFacts

CLASSES, WIDTH = 4, 16
BFLOAT16 = Compute(precision=Precision(half=torch.bfloat16))


def sample(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LABELS = torch.arange(8) % CLASSES
KNOWN = torch.tensor([True, True, True, False])
PROTOTYPES = sample(CLASSES, WIDTH, seed=1)
DIRECTIONS = F.normalize(PROTOTYPES.double())


@contextmanager
def only_backbones_in_half(module: nn.Module) -> Iterator[list[str]]:
    """Fails if a part outside of the backbones gets half precision; lists the parts that were run."""
    inside = {part for backbone in backbones_in(module) for part in backbone.modules()}
    seen: list[str] = []

    def check(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            assert not torch.is_autocast_enabled("cpu"), name
            assert all(tensor.dtype in (torch.float32, torch.float64) for tensor in inputs), name
            seen.append(name)

        return hook

    outside = [(name, part) for name, part in module.named_modules() if part not in inside]
    hooks = [part.register_forward_pre_hook(check(name)) for name, part in outside]
    yield seen
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", METHODS)
def test_everything_after_the_backbone_is_float32(name: str) -> None:
    config = run_of(name)
    method = build_method(config, 0, "mini_plain", "linear", GREY)
    BFLOAT16.prepare(method)
    strategy = config.method_spec.load_strategy()(config.settings, RunFacts.of(config))
    images, labels = random_pixels(12).float() / 255, torch.arange(12) % 3
    with only_backbones_in_half(method) as seen:
        # before the first round some methods receive nothing yet, others their first network
        method.receive(strategy.reply(strategy.initial(), None), completed_rounds=0)
        method.begin_epoch(0, 1)
        objective = method.train().objective(images, labels)
        predictions = method.predict(images)
        method.collect(images, labels, batch_size=8)
    assert seen
    assert all(term.dtype in (torch.float32, torch.float64) for term in objective.terms.values())
    assert set(predictions) == set(method.inference_rules)


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "prototype_alignment": lambda z: prototype_alignment(z, PROTOTYPES, LABELS, KNOWN, "mean"),
    "alignment": lambda z: alignment(z, PROTOTYPES, LABELS, KNOWN, "euclidean"),
    "normalized_distances": lambda z: normalized_distances(z, DIRECTIONS),
    "contrastive": lambda z: contrastive(z, DIRECTIONS, LABELS, KNOWN, tau=0.1, form="log", hard_negatives="reweight"),
    "angular_contrast": lambda z: angular_contrast(z, DIRECTIONS, torch.arange(CLASSES), LABELS, tau=0.1),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_a_loss_under_autocast_has_the_bits_it_has_without(loss: Callable[[Tensor], Tensor]) -> None:
    def value_and_gradient(*, half: bool) -> tuple[Tensor, Tensor]:
        z = sample(8, WIDTH).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            value = loss(z)
        return value.detach(), torch.autograd.grad(value.sum(), z)[0]

    expected, found = value_and_gradient(half=False), value_and_gradient(half=True)
    assert all(
        one.dtype == torch.float32 and torch.equal(one, other) for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize(
    "head",
    [nn.Linear(WIDTH, CLASSES), nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))],
    ids=["linear", "hidden"],
)
def test_prototypes_and_fisher_scores_under_autocast_have_the_bits_they_have_without(head: nn.Module) -> None:
    def statistics() -> Any:
        return prototypes_and_fisher(
            lambda images: images, head, sample(8, WIDTH), LABELS, width=WIDTH, batch_size=3, device=torch.device("cpu")
        )

    expected = statistics()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = statistics()
    assert found.prototypes.dtype == found.fisher.dtype == np.float32
    assert np.array_equal(found.prototypes, expected.prototypes)
    assert np.array_equal(found.fisher, expected.fisher)


def test_gradients_have_nothing_of_what_was_in_memory_before() -> None:
    """A map of one column meets only the middle of a kernel: the rest has a gradient of zero."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(64, 128, kernel_size=3, stride=2, padding=1, bias=False)
    backbone = Backbone(convolution, nn.Flatten())
    BFLOAT16.prepare(backbone)
    for _ in range(4):
        before = [torch.full((size,), torch.nan) for size in (convolution.weight.numel(), 100_000, 1_000_000)]
        del before
        convolution.weight.grad = None
        backbone(sample(4, 64, 1, 1)).square().sum().backward()
        assert convolution.weight.grad is not None
        assert convolution.weight.grad[..., 1, 1].abs().sum() > 0
        convolution.weight.grad[..., 1, 1] = 0
        assert not convolution.weight.grad.any()
