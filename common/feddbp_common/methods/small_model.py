"""The tensors of HtFLlib's four-layer CNN, which some methods share between clients with different models.

Its size depends on the images. If a run leaves the image size to the clients, the rules only bound the tensors, and the
clients must agree on their exact shapes.
"""

from __future__ import annotations

from typing import Final

from feddbp_common.errors import ConfigurationError
from feddbp_common.methods.contract import MOST_CHANNELS, ExchangeShape
from feddbp_common.methods.payload_size import REAL_BYTES, ImageShape
from feddbp_common.wire import Dim, TensorRule

SMALL_MODEL: Final = (
    "conv1.weight",
    "conv1.bias",
    "conv2.weight",
    "conv2.bias",
    "fc.weight",
    "fc.bias",
    "head.weight",
    "head.bias",
)
"""Names of its tensors in the order of the layers."""

_LARGEST_SIDE: Final = 53
"""Side of the last feature map for images of 224 x 224."""
SMALLEST_IMAGE: Final = 16
"""The last feature map of smaller images would be empty."""
_KERNEL: Final = Dim.exactly(5)


def small_model_rules(shape: ExchangeShape, *, feature_dim: int) -> tuple[TensorRule, ...]:
    """Returns the rules for the network with a feature of this width and a linear head."""
    maps, features, outputs = Dim.exactly(64), Dim.exactly(512), Dim.exactly(shape.classes)
    channels = Dim(1, MOST_CHANNELS) if shape.channels is None else Dim.exactly(shape.channels)
    shapes = {
        "conv1.weight": (Dim.exactly(32), channels, _KERNEL, _KERNEL),
        "conv1.bias": (Dim.exactly(32),),
        "conv2.weight": (maps, Dim.exactly(32), _KERNEL, _KERNEL),
        "conv2.bias": (maps,),
        "fc.weight": (features, _flattened(maps, shape.image_size)),
        "fc.bias": (features,),
        "head.weight": (outputs, Dim.exactly(feature_dim)),
        "head.bias": (outputs,),
    }
    return tuple(TensorRule(name=name, shape=shapes[name]) for name in SMALL_MODEL)


def _flattened(maps: Dim, image_size: int | None) -> Dim:
    if image_size is None:
        return Dim(maps.low, maps.high * _LARGEST_SIDE**2)
    if image_size < SMALLEST_IMAGE:
        raise ConfigurationError(
            f"the network this method shares needs images with a side of at least {SMALLEST_IMAGE}, not {image_size}"
        )
    return Dim.exactly(flattened_width((1, image_size, image_size)))


def small_model_bytes(image: ImageShape, *, feature_dim: int, classes: int) -> int:
    """Returns the bytes of the uncompressed network."""
    channels, *_ = image
    body = (channels * 25 + 1) * 32 + (32 * 25 + 1) * 64 + (flattened_width(image) + 1) * 512
    return REAL_BYTES * (body + classes * (feature_dim + 1))


def flattened_width(image: ImageShape) -> int:
    """Returns the number of values in the last feature map."""
    _, height, width = image
    return 64 * _after_two_blocks(height) * _after_two_blocks(width)


def _after_two_blocks(size: int) -> int:
    """Returns the side after two blocks of a 5x5 convolution without padding and 2x2 pooling."""
    return ((size - 4) // 2 - 4) // 2
