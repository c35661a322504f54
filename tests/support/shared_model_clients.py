"""Clients of methods that share a small network, with tiny images, and helpers for tests of those methods."""

from __future__ import annotations

from typing import Any

import torch
from small_federations import CLASSES, WIDTH
from torch import Tensor, nn

from feddbp_client.methods.base import Task
from feddbp_common.methods import method_named
from feddbp_common.methods.small_model import SMALL_MODEL
from feddbp_common.wire import Payload, encode

IMAGE = (1, 16, 16)
"""The smallest image that the shared network takes."""

ROUNDS = 4


def tiny_backbone(image_shape: tuple[int, int, int] = IMAGE) -> nn.Module:
    channels, height, width = image_shape
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(channels * height * width // 16, WIDTH), nn.Tanh())


def sharing_trainer(
    name: str,
    *,
    client_id: int = 0,
    run_seed: int = 0,
    image_shape: tuple[int, int, int] = IMAGE,
    classes: int = CLASSES,
    feature_dim: int = WIDTH,
    **settings: Any,
) -> Any:
    """The trainer of a method; its own weights depend on the client, as in a run."""
    method = method_named(name)
    torch.manual_seed(1000 + client_id)
    return method.load_trainer()(
        backbone=tiny_backbone(image_shape),
        make_head=lambda: nn.Linear(feature_dim, classes),
        settings=method.settings(**settings),
        task=Task(classes=classes, feature_dim=feature_dim, rounds=ROUNDS, seed=run_seed, image_shape=image_shape),
    )


def tiny_batch(seed: int = 0, samples: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, *IMAGE, generator=generator), torch.arange(samples) % CLASSES


def train_steps(method: Any, *, seed: int = 0, steps: int = 2, learning_rate: float = 0.1) -> None:
    optimiser = torch.optim.SGD(method.parameter_groups(learning_rate))
    method.train()
    for step in range(steps):
        optimiser.zero_grad()
        method.objective(*tiny_batch(seed + step)).total.backward()
        method.clip_gradients()
        optimiser.step()


def do_round(method: Any, received: Payload, number: int) -> Payload:
    """One round of a client: receive, train, collect the upload."""
    method.receive(received, completed_rounds=number)
    train_steps(method, seed=10 * number)
    payload: Payload = method.collect(*tiny_batch(), batch_size=8)
    return payload


def bytes_of(payload: Payload) -> int:
    return int(encode(payload).manifest.total_bytes)


def digest_of_payload(payload: Payload) -> str:
    return encode(payload).manifest.sha256.hex()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return dict(zip(SMALL_MODEL, (weight.detach().clone() for weight in model.parameters()), strict=True))
