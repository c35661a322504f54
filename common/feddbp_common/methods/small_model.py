"""The small network some methods share between unlike clients: HtFLlib's four-layer CNN, as it travels.

How large it is depends on the images, which the server never sees: rules bound its tensors, and all clients of a run
have to agree on the rest.
"""

from __future__ import annotations

from typing import Final

from feddbp_common.methods.cargo import REAL_BYTES, ImageShape
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
"""Its tensors in the order of the layers."""

_MOST_CHANNELS: Final = 16
"""Of an image; satellites have a dozen."""
_LARGEST_SIDE: Final = 53
"""Of the last feature map, for images of 224 x 224."""
_KERNEL: Final = Dim.exactly(5)


def small_model_rules(*, feature_dim: int, classes: int) -> tuple[TensorRule, ...]:
    """Bounds on the network whose feature is pooled to a width and followed by a linear head."""
    maps, features, outputs = Dim.exactly(64), Dim.exactly(512), Dim.exactly(classes)
    shapes = {
        "conv1.weight": (Dim.exactly(32), Dim(1, _MOST_CHANNELS), _KERNEL, _KERNEL),
        "conv1.bias": (Dim.exactly(32),),
        "conv2.weight": (maps, Dim.exactly(32), _KERNEL, _KERNEL),
        "conv2.bias": (maps,),
        "fc.weight": (features, Dim(maps.low, maps.high * _LARGEST_SIDE**2)),
        "fc.bias": (features,),
        "head.weight": (outputs, Dim.exactly(feature_dim)),
        "head.bias": (outputs,),
    }
    return tuple(TensorRule(name=name, shape=shapes[name]) for name in SMALL_MODEL)


def small_model_bytes(image: ImageShape, *, feature_dim: int, classes: int) -> int:
    """Of the whole network as it is; compression may make less of it."""
    channels, *_ = image
    body = (channels * 25 + 1) * 32 + (32 * 25 + 1) * 64 + (flattened_width(image) + 1) * 512
    return REAL_BYTES * (body + classes * (feature_dim + 1))


def flattened_width(image: ImageShape) -> int:
    """Numbers in the last feature map."""
    _, height, width = image
    return 64 * _after_two_blocks(height) * _after_two_blocks(width)


def _after_two_blocks(size: int) -> int:
    """Two times a 5x5 convolution without padding, then halved."""
    return ((size - 4) // 2 - 4) // 2
