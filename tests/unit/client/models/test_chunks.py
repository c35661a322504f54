"""A backbone that computes a batch in chunks, and pooling by matrix products."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feddbp_client.losses import contrastive
from feddbp_client.models import build_backbone
from feddbp_client.models.blocks import Backbone
from feddbp_client.models.pooling import pool_by_products

SHAPE = (3, 16, 16)


def backbone(architecture: str) -> Backbone:
    torch.manual_seed(0)
    return build_backbone(architecture, SHAPE, feature_dim=64)


def images(count: int) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def coupled_loss(z: Tensor) -> Tensor:
    """FedDBP's contrastive term, whose boundary depends on all samples of a batch."""
    prototypes = torch.randn(5, z.shape[1], generator=torch.Generator().manual_seed(2))
    labels = torch.arange(len(z)) % 5
    known = torch.ones(5, dtype=torch.bool)
    return contrastive(
        z, F.normalize(prototypes).double(), labels, known, tau=0.5, form="log", hard_negatives="reweight"
    )


def gradients(network: Backbone, batch: Tensor, *, chunk: int | None) -> dict[str, Tensor]:
    network.chunk = chunk
    torch.manual_seed(3)
    coupled_loss(network(batch)).backward()
    return {name: weight.grad for name, weight in network.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("architecture", ["mini_plain", "mini_mixer", "cnn4"])
@pytest.mark.parametrize(("count", "chunk"), [(8, 4), (8, 1), (7, 4), (7, 6)])
def test_the_gradient_of_a_loss_that_couples_samples_does_not_depend_on_chunks(
    architecture: str, count: int, chunk: int
) -> None:
    network, batch = backbone(architecture), images(count)
    chunked = gradients(copy.deepcopy(network), batch, chunk=chunk)
    whole = gradients(network, batch, chunk=None)
    assert chunked.keys() == whole.keys()
    for name, expected in whole.items():
        assert torch.allclose(chunked[name], expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()) + 1e-9), name


class SizeLog(nn.Module):
    """A body that records how many images it is given at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8))

    def forward(self, batch: Tensor) -> Tensor:
        self.sizes.append(len(batch))
        features: Tensor = self.layers(batch)
        return features


def test_no_more_than_a_chunk_is_computed_at_once_in_either_direction() -> None:
    body = SizeLog()
    network = Backbone(body)
    network.chunk = 3
    network(images(8)).sum().backward()
    assert body.sizes == [3, 3, 2, 2, 3, 3]  # the last chunk first in the backward pass
    body.sizes.clear()
    with torch.no_grad():
        network(images(8))
    assert body.sizes == [3, 3, 2]  # nothing is computed twice without gradients


def test_recomputation_leaves_running_statistics_as_one_pass_over_the_chunks_does() -> None:
    network, plain = backbone("resnet4"), backbone("resnet4")
    gradients(network, images(8), chunk=4)
    for part in images(8).split(4):
        plain(part)
    assert any("running" in name for name, _ in network.named_buffers())
    for (name, chunked), expected in zip(network.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(chunked, expected), name


class Counting(nn.Module):
    """A body with a buffer of its own that every pass changes and uses."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, batch: Tensor) -> Tensor:
        self.passes += 1
        return batch.flatten(1)[:, :4] * self.weight**2 * self.passes.clone()


def test_recomputation_finds_the_buffers_of_the_first_pass() -> None:
    network = Backbone(Counting())
    network.chunk = 1
    network(torch.ones(3, 3, 16, 16)).sum().backward()
    counting = network[0]
    assert isinstance(counting, Counting)
    assert counting.passes.item() == 3
    assert counting.weight.grad is not None
    assert counting.weight.grad.item() == 2 * 4 * (1 + 2 + 3)


def test_recomputation_drops_out_what_the_first_pass_did() -> None:
    network = Backbone(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8), nn.Dropout(0.5)))
    network.chunk = 2
    torch.manual_seed(0)
    features = network(images(6))
    features.sum().backward()
    bias = network[0][1].bias.grad  # type: ignore[index]
    assert torch.equal(bias, 2 * (features != 0).sum(dim=0).float())


@pytest.mark.parametrize("count", [4, 5, 7])
def test_batch_norm_never_gets_a_single_image(count: int) -> None:
    network = Backbone(nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8), nn.BatchNorm1d(8)))
    network.chunk = 2
    network(images(count)).sum().backward()  # batch norm raises an error for one


def test_a_chunk_changes_no_name_in_the_state_and_survives_a_copy() -> None:
    network = backbone("resnet4")
    names = list(network.state_dict())
    network.chunk, network.half_type = 4, torch.bfloat16
    assert list(network.state_dict()) == names
    assert names[0].startswith("0.")
    copied = copy.deepcopy(network)
    copied.load_state_dict(network.state_dict())
    assert (copied.chunk, copied.half_type) == (4, torch.bfloat16)


def test_half_precision_ends_with_the_backbone() -> None:
    network = backbone("mini_plain")
    exact = network(images(4))
    network.half_type = torch.bfloat16
    rounded = network(images(4))
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    assert torch.allclose(rounded, exact, atol=0.1)
    whole = gradients(copy.deepcopy(network), images(4), chunk=None)
    chunked = gradients(network, images(4), chunk=2)
    assert torch.allclose(network(images(4)), rounded, atol=1e-6)
    for name, expected in whole.items():  # recomputation is in half precision, too
        assert torch.allclose(chunked[name], expected, rtol=0.05, atol=0.05 * float(expected.abs().max())), name


@pytest.mark.parametrize(("length", "bins"), [(2048, 512), (1280, 512), (768, 512), (30, 32), (5, 1)])
def test_pooling_by_products_is_adaptive_average_pooling(length: int, bins: int) -> None:
    x = torch.randn(2, 1, length)
    assert torch.allclose(pool_by_products(x, bins), F.adaptive_avg_pool1d(x, bins), atol=1e-6)


@pytest.mark.parametrize("size", [(7, 7), (5, 9), (4, 4), (3, 8)])
def test_pooling_by_products_is_adaptive_average_pooling_of_maps(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size)
    assert torch.allclose(pool_by_products(x, 4, 4), F.adaptive_avg_pool2d(x, 4), atol=1e-6)
