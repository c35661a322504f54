"""Checkpoints of clients that took part in a round, made without a server."""

from __future__ import annotations

from typing import Any

import torch
from small_federations import upload_of

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.data.pixels import BYTES, PixelRange
from feddbp_client.methods.base import LocalMethod
from feddbp_client.training.checkpoint import Checkpoint
from feddbp_client.training.setup import build_method
from feddbp_client.training.trainer import TrainerState
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig, run_to_proto
from feddbp_common.config.training import TrainingConfig
from feddbp_common.wire import Payload, decode, encode
from feddbp_server.strategies import RunFacts

# as in a client
torch.set_num_threads(1)

NAMES = ("cat", "dog", "emu", "fox")
GREY = (1, 16, 16)
"""The smallest images that the networks shared by FedKD and FedMRL take."""

SETTINGS: dict[str, dict[str, Any]] = {
    "fedmrl": {"small_dim": 8},
    "fedtgp": {"server_epochs": 2},
    "fedgen": {"server_steps": 1},
}
"""Settings of methods whose defaults need larger features, or much work of the server."""


def run_of(method: str, **settings: Any) -> RunConfig:
    return RunConfig(
        method=method,
        method_settings={**SETTINGS.get(method, {}), **settings},
        clients=2,
        rounds=3,
        data=DataConfig(dataset="custom", class_names=NAMES),
        training=TrainingConfig(feature_dim=32),
    )


def checkpoint_of(
    method: str = "feddbp",
    *,
    architecture: str = "mini_plain",
    image_shape: tuple[int, int, int] = GREY,
    rounds: int = 1,
    pixels: PixelRange = BYTES,
    **settings: Any,
) -> Checkpoint:
    """A checkpoint of client 0 after so many rounds without training; no client has class 3, fox."""
    config = run_of(method, **settings)
    local = build_method(config, 0, architecture, "linear", image_shape)
    strategy = config.method_spec.load_strategy()(config.settings, RunFacts.of(config))
    known, own = strategy.initial(), None
    received = encode(strategy.reply(known, own))
    for number in range(rounds):
        own = contribution_of(local, decode(received.manifest, received.body()), number)
        known = strategy.aggregate(known, iter([upload_of(0, own, [8, 8, 8, 0])]), round_number=number)
        received = encode(strategy.reply(known, own))
    local.receive(decode(received.manifest, received.body()), completed_rounds=rounds)
    return Checkpoint(
        run_id="sample",
        client_id=0,
        round=rounds,
        architecture=architecture,
        head="linear",
        image_shape=image_shape,
        pixels=pixels,
        class_names=NAMES,
        config=run_to_proto(config),
        state=TrainerState(model={name: tensor.clone() for name, tensor in local.state_dict().items()}),
        metrics=pb.RoundMetrics(),
        received=received,
    )


def contribution_of(local: LocalMethod[Any], received: Payload, number: int) -> Payload:
    local.receive(received, completed_rounds=number)
    labels = torch.arange(24) % 3
    sent = encode(local.collect(random_pixels(24, local.task.image_shape).float() / 255, labels, batch_size=24))
    return decode(sent.manifest, sent.body())


def random_pixels(count: int, image_shape: tuple[int, int, int] = GREY, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, *image_shape), generator=generator, dtype=torch.uint8)


def as_arrays(pixels: torch.Tensor) -> list[Any]:
    """Arrays as decoded from image files: [H, W, C]."""
    return list(pixels.permute(0, 2, 3, 1).numpy())
