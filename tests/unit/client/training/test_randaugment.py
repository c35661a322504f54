"""RandAugment: every operation against torchvision's, for every type of pixels; and how operations are drawn."""

from __future__ import annotations

import functools
import math
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from feddbp_client.models.torchvision_compat import torchvision
from feddbp_client.training.randaugment import Operation, RandAugment

SHAPES = ((3, 32, 32), (1, 32, 32), (3, 21, 34), (1, 2, 9))
GEOMETRIC = range(Operation.SHEAR_X, Operation.ROTATE + 1)


@functools.cache
def functional() -> Any:
    torchvision()
    return import_module("torchvision.transforms.v2.functional")


def expected(operation: Operation, sign: int, image: Tensor) -> Tensor:
    """What torchvision's RandAugment does with its default magnitude, 9 of 31 bins."""
    given, (height, width) = functional(), image.shape[-2:]
    match operation:
        case Operation.IDENTITY:
            changed = image
        case Operation.SHEAR_X | Operation.SHEAR_Y:
            shear = [math.degrees(math.atan(sign * 0.09)), 0.0]
            changed = given.affine(
                image,
                angle=0.0,
                translate=[0, 0],
                scale=1.0,
                shear=shear if operation == Operation.SHEAR_X else shear[::-1],
                center=[0, 0],
            )
        case Operation.TRANSLATE_X | Operation.TRANSLATE_Y:
            side = width if operation == Operation.TRANSLATE_X else height
            shift = [int(sign * 150 / 331 * side * 9 / 30), 0]
            changed = given.affine(
                image,
                angle=0.0,
                translate=shift if operation == Operation.TRANSLATE_X else shift[::-1],
                scale=1.0,
                shear=[0.0, 0.0],
            )
        case Operation.ROTATE:
            changed = given.rotate(image, angle=sign * 9.0)
        case Operation.BRIGHTNESS:
            changed = given.adjust_brightness(image, 1 + sign * 0.27)
        case Operation.COLOR:
            changed = given.adjust_saturation(image, 1 + sign * 0.27)
        case Operation.CONTRAST:
            changed = given.adjust_contrast(image, 1 + sign * 0.27)
        case Operation.SHARPNESS:
            changed = given.adjust_sharpness(image, 1 + sign * 0.27)
        case Operation.POSTERIZE:
            changed = given.posterize(image, 7)
        case Operation.SOLARIZE:
            changed = given.solarize(image, 0.7 if image.is_floating_point() else 0.7 * 255)
        case Operation.AUTOCONTRAST:
            changed = given.autocontrast(image)
        case Operation.EQUALIZE:
            changed = given.equalize(image)
    assert isinstance(changed, Tensor)
    return changed


def pictures(shape: tuple[int, int, int], count: int = 4) -> Tensor:
    """float32 images of 0..1 with soft shapes, some of little contrast and some of a single colour."""
    coarse = torch.rand(count, shape[0], 5, 5, generator=torch.Generator().manual_seed(0))
    images = F.interpolate(coarse, size=shape[1:], mode="bilinear")
    images[1::4].mul_(0.4).add_(0.1)
    images[2::4] = 0.3
    return images


def applied(operation: Operation, sign: int, pixels: Tensor) -> Tensor:
    height, width = pixels.shape[2:]
    operations = torch.full((1, len(pixels)), int(operation))
    return RandAugment(height, width).apply(pixels, operations, torch.full_like(operations, int(sign < 0)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("operation", Operation, ids=lambda operation: operation.name.lower())
def test_an_operation_does_what_torchvisions_does(
    operation: Operation, sign: int, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    pixels = pictures(shape).mul(255).to(torch.uint8)
    pixels = pixels if dtype == torch.uint8 else pixels / 255
    changed = applied(operation, sign, pixels)
    assert changed.dtype == dtype
    reference = torch.stack([expected(operation, sign, image) for image in pixels])
    difference = (changed.float() - reference.float()).abs()
    if operation in GEOMETRIC:
        assert difference.gt(0).float().mean() < 0.002  # a source on the border of two pixels
    else:
        assert difference.max() <= (1 if dtype == torch.uint8 else 1e-6)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.int16], ids=str)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("operation", Operation, ids=lambda operation: operation.name.lower())
def test_images_of_16_bits_change_as_those_of_8_bits_do(operation: Operation, sign: int, dtype: torch.dtype) -> None:
    eight = pictures((3, 32, 32)).mul(255).to(torch.uint8)
    sixteen = eight.int().mul(257).to(torch.uint16).view(dtype)
    changed = applied(operation, sign, sixteen)
    assert changed.dtype == dtype
    difference = changed.view(torch.uint16).float() / 257 - applied(operation, sign, eight).float()
    # 8 bits are truncated more, and posterized to steps of another size
    assert difference.abs().max() <= 2
    if operation in (*GEOMETRIC, Operation.IDENTITY, Operation.SOLARIZE, Operation.EQUALIZE):
        assert not difference.any()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("operation", Operation, ids=lambda operation: operation.name.lower())
def test_images_of_floats_change_in_their_own_range(operation: Operation, sign: int) -> None:
    usual = pictures((3, 32, 32)).mul(255).floor().div(255)
    wide = usual * 4000 - 1000
    operations = torch.full((1, len(usual)), int(operation))
    augment = RandAugment(32, 32, float_range=(-1000.0, 3000.0))
    changed = augment.apply(wide, operations, torch.full_like(operations, int(sign < 0)))
    difference = (changed + 1000) / 4000 - applied(operation, sign, usual)
    # a value on the border of two levels may go to either
    assert difference.abs().quantile(0.95) < 1e-6
    assert difference.abs().max() < 0.01


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32], ids=str)
def test_values_stay_in_the_range_of_their_type(dtype: torch.dtype) -> None:
    largest = 1.0 if dtype == torch.float32 else float(torch.iinfo(dtype).max)
    noise = torch.rand(500, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    pixels = noise.round().mul(largest).to(dtype)  # black and white: every enhancement would leave the range
    changed = RandAugment(16, 16)(pixels, torch.Generator().manual_seed(1))
    assert changed.dtype == dtype
    # an overflow would make grey of white, or white of black, in most samples
    assert changed.float().amin() == 0
    assert changed.float().amax() == largest


@pytest.mark.parametrize("channels", [2, 4])
def test_images_may_have_any_number_of_channels(channels: int) -> None:
    pixels = torch.randint(256, (200, channels, 9, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert RandAugment(9, 9)(pixels, torch.Generator().manual_seed(1)).shape == pixels.shape


def test_the_operations_of_a_sample_do_not_depend_on_the_others_in_its_batch() -> None:
    augment = RandAugment(20, 24)
    pairs = [(first, second) for first in Operation for second in Operation]
    operations = torch.tensor(pairs).T[:, torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))]
    negative = torch.arange(2 * len(pairs)).view(2, -1) % 2
    pixels = pictures((3, 20, 24), len(pairs)).mul(255).to(torch.uint8)
    together = augment.apply(pixels, operations, negative)
    for row in range(0, len(pairs), 7):
        one = slice(row, row + 1)
        alone = pixels[one]
        for turn in range(2):
            alone = augment.apply(alone, operations[turn : turn + 1, one], negative[turn : turn + 1, one])
        assert torch.equal(together[one], alone)


def test_two_operations_are_drawn_for_every_sample_and_each_in_both_directions() -> None:
    image = pictures((3, 24, 24), 1).mul(255).to(torch.uint8)
    batch = image.repeat(4000, 1, 1, 1)
    drawn = RandAugment(24, 24)(batch, torch.Generator().manual_seed(0))
    different = drawn.flatten(1).unique(dim=0)
    assert len(different) > 250
    for operation in Operation:
        for sign in (1, -1):  # with the identity as the other operation
            alone = applied(operation, sign, image)
            share = (drawn == alone).flatten(1).all(1).float().mean().item()
            assert share > 1 / 14**2 / 4, operation
    unchanged = (drawn == image).flatten(1).all(1).float().mean().item()
    assert unchanged < 0.03
