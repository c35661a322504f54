"""Several linear layers as one product: the values and gradients of the layers one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from feddbp_client.models import parallel_linear as module
from feddbp_client.models.parallel_linear import onednn_product, parallel_linear, place_side_by_side

SAMPLES, INPUTS, OUTPUTS = 6, 20, 12


def layers_of(count: int, dtype: torch.dtype = torch.float32) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(INPUTS, OUTPUTS, dtype=dtype) for _ in range(count)]


def features(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(SAMPLES, INPUTS, generator=torch.Generator().manual_seed(1), dtype=dtype, requires_grad=True)


def one_by_one(x: Tensor, layers: list[nn.Linear]) -> Tensor:
    return torch.stack([layer(x) for layer in layers], dim=1)


def output_and_gradients(out: Tensor, x: Tensor, layers: list[nn.Linear]) -> list[Tensor]:
    weights = torch.arange(out.numel(), dtype=out.dtype).view_as(out).cos()
    inputs = [x, *(parameter for layer in layers for parameter in layer.parameters())]
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]


@pytest.mark.parametrize("by_onednn", [True, False])
@pytest.mark.parametrize("side_by_side", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_outputs_and_gradients_are_those_of_the_layers_one_by_one(
    count: int, side_by_side: bool, by_onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_onednn:
        monkeypatch.setattr(module, "onednn_product", lambda: None)
    layers, x = layers_of(count), features()
    expected = output_and_gradients(one_by_one(x, layers), x, layers)
    if side_by_side:
        place_side_by_side(layers)
    found = output_and_gradients(parallel_linear(x, layers), x, layers)
    assert found[0].shape == (SAMPLES, count, OUTPUTS)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_torchs_product_by_onednn_is_available_on_processors_with_wide_vectors() -> None:
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():
        assert onednn_product() is None
        return
    product = onednn_product()
    assert product is not None
    layer, x = layers_of(1)[0], features()
    with torch.no_grad():
        torch.testing.assert_close(product(x, layer.weight, layer.bias), layer(x))


def test_placing_changes_no_value_and_no_parameter_object() -> None:
    layers = layers_of(2)
    before = [(parameter, parameter.detach().clone()) for layer in layers for parameter in layer.parameters()]
    place_side_by_side(layers)
    after = [parameter for layer in layers for parameter in layer.parameters()]
    for (parameter, value), same in zip(before, after, strict=True):
        assert same is parameter
        assert torch.equal(same, value)


def test_layers_side_by_side_are_multiplied_without_a_copy() -> None:
    layers = layers_of(3)
    weights = [layer.weight for layer in layers]
    assert module._joined(weights).data_ptr() != weights[0].data_ptr()
    place_side_by_side(layers)
    joined = module._joined(weights)
    assert joined.data_ptr() == weights[0].data_ptr()
    assert torch.equal(joined, torch.cat(list(weights)))


def test_an_optimisers_step_on_placed_layers_reaches_the_next_product() -> None:
    layers, x = layers_of(2), features()
    place_side_by_side(layers)
    optimiser = torch.optim.SGD([parameter for layer in layers for parameter in layer.parameters()], lr=0.1)
    torch.autograd.backward(parallel_linear(x, layers).square().sum())
    optimiser.step()
    torch.testing.assert_close(parallel_linear(x, layers), one_by_one(x, layers))


def test_an_input_without_gradient_gets_none() -> None:
    layers = layers_of(2)
    x = features().detach()
    torch.autograd.backward(parallel_linear(x, layers).sum())
    assert x.grad is None
    assert all(parameter.grad is not None for layer in layers for parameter in layer.parameters())


def test_other_precisions_are_kept() -> None:
    wide = features(torch.float64)
    assert parallel_linear(wide, layers_of(2, torch.float64)).dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert parallel_linear(features(), layers_of(2)).dtype == torch.bfloat16
