"""Data sets and model groups by name, as facts that the server can check without torch."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

FEATURE_DIM: Final = 512
"""Default width of features, and so of prototypes, for all architectures."""

CUSTOM_DATASET: Final = "custom"
"""Each client has data of its own; the run must declare the number of classes."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A public data set that clients load and split by name."""

    title: str
    classes: int
    image_size: int
    channels: int = 3


DATASETS: Final = MappingProxyType(
    {
        "digits": DatasetInfo(title="scikit-learn digits", classes=10, image_size=16, channels=1),
        "cifar10": DatasetInfo(title="CIFAR-10", classes=10, image_size=32),
        "cifar100": DatasetInfo(title="CIFAR-100", classes=100, image_size=32),
        "flowers102": DatasetInfo(title="Oxford Flowers-102", classes=102, image_size=64),
        "tiny-imagenet": DatasetInfo(title="Tiny-ImageNet-200", classes=200, image_size=64),
    }
)


@dataclass(frozen=True, kw_only=True)
class ModelGroup:
    """Architectures assigned by client id: client i has body i mod |bodies| and head i mod |heads|."""

    bodies: tuple[str, ...]
    heads: tuple[str, ...] = ("linear",)

    def body_of(self, client_id: int) -> str:
        return self.bodies[client_id % len(self.bodies)]

    def head_of(self, client_id: int) -> str:
        return self.heads[client_id % len(self.heads)]


_HTFE_8 = ("cnn4", "googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
_HTC_4 = ("linear", "hidden512", "hidden256", "hidden128")

MODEL_GROUPS: Final = MappingProxyType(
    {
        "mini-8": ModelGroup(
            bodies=(
                "mini_plain",
                "mini_residual",
                "mini_depthwise",
                "mini_inception",
                "mini_dense",
                "mini_squeeze",
                "mini_mixer",
                "mini_dilated",
            )
        ),
        "htfe-2": ModelGroup(bodies=("cnn4", "resnet18")),
        "htfe-3": ModelGroup(bodies=("resnet10", "resnet18", "resnet34")),
        "htfe-4": ModelGroup(bodies=("cnn4", "googlenet", "mobilenet_v2", "resnet18")),
        "htfe-5": ModelGroup(bodies=("googlenet", "mobilenet_v2", "resnet18", "resnet34", "resnet50")),
        "htfe-8": ModelGroup(bodies=_HTFE_8),
        "htfe-9": ModelGroup(
            bodies=(
                "resnet4",
                "resnet6",
                "resnet8",
                "resnet10",
                "resnet18",
                "resnet34",
                "resnet50",
                "resnet101",
                "resnet152",
            )
        ),
        "htfe-8-htc-4": ModelGroup(bodies=_HTFE_8, heads=_HTC_4),
        "res34-htc-4": ModelGroup(bodies=("resnet34",), heads=_HTC_4),
        "htm-10": ModelGroup(bodies=(*_HTFE_8, "vit_b_16", "vit_b_32"), heads=("linear",) * 8 + ("tanh768",) * 2),
    }
)
