"""Small networks that all clients of a run have in common: the model of FedAvg, and the guide of FedDBP.

Their tensors have the same shapes for every image size, so the server can check an upload without building a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Final

from feddbp_common.methods.contract import MOST_CHANNELS, ExchangeShape
from feddbp_common.methods.payload_size import REAL_BYTES
from feddbp_common.wire import Dim, TensorRule

GRID: Final = 4
"""Side of the last feature map, for any image."""
STEM_KERNEL: Final = 5
KERNEL: Final = 3


@dataclass(frozen=True, kw_only=True)
class GuideNetwork:
    """Three convolutions with group normalisation, a normalised projection of the last map, and a linear head."""

    maps: tuple[int, int, int]
    """Channels after each convolution."""
    width: int
    """Width of the feature."""

    def shapes(self, *, channels: int, classes: int) -> dict[str, tuple[int, ...]]:
        """Shapes of its parameters by name, in the order of the layers."""
        first, second, third = self.maps
        return {
            "conv1.weight": (first, channels, STEM_KERNEL, STEM_KERNEL),
            "norm1.weight": (first,),
            "norm1.bias": (first,),
            "conv2.weight": (second, first, KERNEL, KERNEL),
            "norm2.weight": (second,),
            "norm2.bias": (second,),
            "conv3.weight": (third, second, KERNEL, KERNEL),
            "norm3.weight": (third,),
            "norm3.bias": (third,),
            "projection.weight": (self.width, third * GRID**2),
            "norm4.weight": (self.width,),
            "norm4.bias": (self.width,),
            "head.weight": (classes, self.width),
            "head.bias": (classes,),
        }

    def parameters(self, *, channels: int, classes: int) -> int:
        return sum(prod(shape) for shape in self.shapes(channels=channels, classes=classes).values())


GUIDES: Final = MappingProxyType(
    {
        "guide_small": GuideNetwork(maps=(24, 32, 48), width=96),
        "guide_medium": GuideNetwork(maps=(32, 48, 64), width=256),
        "guide_large": GuideNetwork(maps=(32, 64, 96), width=512),
    }
)
"""About 0.1, 0.3 and 0.9 million parameters."""


def guide_rules(shape: ExchangeShape, *, required: bool) -> tuple[TensorRule, ...]:
    """Rules for the tensors of the run's guide."""
    network = GUIDES[shape.guide]
    exact = network.shapes(channels=shape.channels or 1, classes=shape.classes)
    dims = {name: tuple(map(Dim.exactly, sizes)) for name, sizes in exact.items()}
    if shape.channels is None:
        outputs, _, *kernel = dims["conv1.weight"]
        dims["conv1.weight"] = (outputs, Dim(1, MOST_CHANNELS), *kernel)
    return tuple(TensorRule(name=name, shape=sizes, required=required) for name, sizes in dims.items())


def guide_bytes(shape: ExchangeShape, channels: int) -> int:
    """Bytes of the guide's tensors in float32."""
    return REAL_BYTES * GUIDES[shape.guide].parameters(channels=channels, classes=shape.classes)
