"""The model and batch of the training benchmarks: ResNet-18, C=100, images of 32x32, one thread."""

from __future__ import annotations

import torch
from torch import Tensor

from feddbp_client.data import Split
from feddbp_client.methods.base import LocalMethod
from feddbp_client.training.setup import build_method
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.wire import Payload, PrototypeSet

CLASSES = 100
IMAGE_SHAPE = (3, 32, 32)


def method(name: str, architecture: str = "resnet18") -> LocalMethod:  # type: ignore[type-arg]
    torch.set_num_threads(1)
    config = RunConfig(method=name, data=DataConfig(dataset="cifar100"))
    return build_method(config, 0, architecture, "linear", IMAGE_SHAPE)


def global_prototypes(width: int = 512) -> Payload:
    vectors = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(0)).numpy()
    class_ids = torch.arange(CLASSES, dtype=torch.int32).numpy()
    return Payload(prototypes=PrototypeSet(class_ids=class_ids, vectors=vectors))


def split(size: int) -> Split:
    """Labelled images as a client stores them."""
    images, labels = batch(size)
    return Split(images.mul(64).add(128).clamp(0, 255).byte().permute(0, 2, 3, 1).numpy(), labels)


def batch(size: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    return torch.randn(size, *IMAGE_SHAPE, generator=random), torch.randint(CLASSES, (size,), generator=random)
