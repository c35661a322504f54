"""Every architecture by name: its size, its feature, and its errors."""

from __future__ import annotations

import functools
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from feddbp_client.models import ModelError, build_backbone, build_head
from feddbp_client.models.backbones import _BUILDERS
from feddbp_client.models.blocks import FeaturePool
from feddbp_common.config.catalog import MODEL_GROUPS

BODY_PARAMETERS = {
    "cnn4": 873_408,
    "googlenet": 5_599_904,
    "mobilenet_v2": 2_223_872,
    "resnet18": 11_176_512,
    "resnet34": 21_284_672,
    "resnet50": 23_508_032,
    "resnet101": 42_500_160,
    "resnet152": 58_143_808,
}
MINI = MODEL_GROUPS["mini-8"].bodies


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@functools.cache
def on_meta(architecture: str, image_shape: tuple[int, int, int]) -> nn.Module:
    """Built on the meta device: shapes only."""
    with torch.device("meta"):
        return build_backbone(architecture, image_shape).eval()


@pytest.mark.parametrize(("architecture", "expected"), BODY_PARAMETERS.items())
def test_bodies_have_the_published_number_of_parameters(architecture: str, expected: int) -> None:
    assert parameters_of(on_meta(architecture, (3, 32, 32))) == expected


def test_the_cnn_grows_with_the_image() -> None:
    assert parameters_of(on_meta("cnn4", (3, 64, 64))) == 5_592_000


@pytest.mark.parametrize("image_shape", [(3, 32, 32), (1, 64, 64)], ids=str)
@pytest.mark.parametrize("architecture", _BUILDERS)
def test_every_architecture_gives_the_common_feature(architecture: str, image_shape: tuple[int, int, int]) -> None:
    features = on_meta(architecture, image_shape)(torch.zeros(2, *image_shape, device="meta"))
    assert features.shape == (2, 512)


@pytest.mark.parametrize("group", MODEL_GROUPS)
def test_every_architecture_of_every_group_can_be_built(group: str) -> None:
    members = MODEL_GROUPS[group]
    assert set(members.bodies) <= set(_BUILDERS)
    assert all(build_head(kind, 7)(torch.zeros(2, 512)).shape == (2, 7) for kind in members.heads)


def test_mini_architectures_are_eight_different_networks() -> None:
    assert len({str(on_meta(name, (3, 32, 32))) for name in MINI}) == len(MINI) == 8


@pytest.mark.parametrize("size", [8, 16, 37])
@pytest.mark.parametrize("architecture", MINI)
def test_mini_architectures_train_on_two_images_of_any_size(architecture: str, size: int) -> None:
    torch.manual_seed(0)
    model = build_backbone(architecture, (1, size, size))
    model(torch.randn(2, 1, size, size)).square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_features_of_1280_are_pooled_over_overlapping_windows() -> None:
    features = torch.randn(3, 1280)
    pooled = FeaturePool(512)(features)
    for channel in range(512):
        low, high = (channel * 5) // 2, -(-(channel + 1) * 5 // 2)
        torch.testing.assert_close(pooled[:, channel], features[:, low:high].mean(dim=1))


def test_the_same_seed_gives_the_same_weights() -> None:
    def weights() -> list[Tensor]:
        torch.manual_seed(7)
        return list(build_backbone("mini_residual", (3, 16, 16)).parameters())

    assert all(torch.equal(first, second) for first, second in zip(weights(), weights(), strict=True))


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("architecture", ["googlenet", "mobilenet_v2", "resnet10"])
def test_stems_have_the_same_initial_scale_for_any_number_of_channels(architecture: str, channels: int) -> None:
    def stem(channels: int) -> nn.Conv2d:
        torch.manual_seed(0)
        model = build_backbone(architecture, (channels, 32, 32))
        return next(module for module in model.modules() if isinstance(module, nn.Conv2d))

    usual, fitted = stem(3), stem(channels)
    assert fitted.in_channels == fitted.weight.shape[1] == channels
    assert fitted.weight.std().item() == pytest.approx(usual.weight.std().item(), rel=0.2)


@pytest.mark.parametrize(
    ("architecture", "image_shape", "message"),
    [
        ("resnet81", (3, 32, 32), "did you mean 'resnet8' or 'resnet18'"),
        ("nothing-like-it", (3, 32, 32), "there are:"),
        ("cnn4", (1, 8, 8), "at least 16x16"),
        ("googlenet", (1, 8, 8), "at least 15x15"),
        ("vit_b_32", (3, 48, 48), "patches of 32"),
        ("no_such_package.models:net", (3, 32, 32), "cannot import 'no_such_package.models'"),
        ("torch.nn:NoSuchThing", (3, 32, 32), "has no 'NoSuchThing'"),
        (":net", (3, 32, 32), "not of the form package.module:function"),
        ("own_models:", (3, 32, 32), "not of the form package.module:function"),
        ("..own_models:net", (3, 32, 32), "not of the form package.module:function"),
        ("models_with_a_fault:net", (3, 32, 32), "cannot import 'models_with_a_fault': nothing here works"),
        ("own_models:width", (3, 32, 32), "is not a function"),
        ("own_models:broken", (3, 32, 32), "failed: no luck, and on two lines"),
        ("own_models:not_a_module", (3, 32, 32), "returned int"),
        ("own_models:four_dimensional", (3, 32, 32), "not [2, features]"),
        ("own_models:wants_grey", (3, 32, 32), "does not take images"),
        ("own_models:whole_numbers", (3, 32, 32), "in floating point"),
        ("own_models:tied", (3, 32, 32), "1.weight and 2.weight are the same tensor"),
    ],
)
def test_a_model_that_cannot_be_built_is_described_in_one_line(
    architecture: str, image_shape: tuple[int, int, int], message: str, own_models: None
) -> None:
    with pytest.raises(ModelError) as refusal:
        build_backbone(architecture, image_shape)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_users_own_model_is_pooled_like_the_others(own_models: None) -> None:
    model = build_backbone("own_models:net", (3, 8, 8))
    assert model(torch.zeros(4, 3, 8, 8)).shape == (4, 512)
    assert model.training


def test_a_part_that_the_user_put_into_eval_mode_stays_in_it(own_models: None) -> None:
    model = build_backbone("own_models:half_frozen", (3, 8, 8))
    assert [type(part) for part in model.modules() if not part.training] == [nn.BatchNorm2d]


class WholeNumbers(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1).long()


@pytest.fixture
def own_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Modules as a user might write them."""
    (tmp_path / "models_with_a_fault.py").write_text("raise ValueError('nothing here works')")
    monkeypatch.syspath_prepend(tmp_path)
    module = types.ModuleType("own_models")

    def net(shape: tuple[int, int, int]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 700))

    def broken(shape: tuple[int, int, int]) -> nn.Module:
        raise RuntimeError("no luck,\nand on two lines")

    def half_frozen(shape: tuple[int, int, int]) -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(shape[0]).eval(), nn.Flatten())

    module.__dict__.update(
        net=net,
        broken=broken,
        half_frozen=half_frozen,
        whole_numbers=lambda shape: WholeNumbers(),
        tied=lambda shape: nn.Sequential(nn.Flatten(), *[nn.Linear(3072, 3072)] * 2),
        width=512,
        not_a_module=lambda shape: 3,
        four_dimensional=lambda shape: nn.Conv2d(shape[0], 8, 3),
        wants_grey=lambda shape: nn.Conv2d(1, 8, 3),
    )
    monkeypatch.setitem(sys.modules, "own_models", module)


def test_torchvision_is_loaded_only_where_it_is_needed() -> None:
    code = (
        "import sys, torch\n"
        "from feddbp_client.models import build_backbone\n"
        "build_backbone('mini_plain', (1, 16, 16))\n"
        "assert 'torchvision' not in sys.modules\n"
        "build_backbone('resnet10', (1, 32, 32))\n"
        "assert 'torchvision' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
