"""Time of a training step with augmentation, relative to the same step without, cross-entropy only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import torch

from benchmarks import bars
from benchmarks.measurement import Measurement, interleaved_ratio
from benchmarks.workload import IMAGE_SHAPE, method, split
from feddbp_client.data.batches import channels_first, scaled
from feddbp_client.training.augmentation import build_augmentation
from feddbp_common.wire import Payload

BATCH: Final = 32


class Case(NamedTuple):
    architecture: str
    title: str
    bars: dict[str, float]
    repeats: int


CASES: Final = (
    Case("resnet18", "ResNet-18", {"flip-crop": bars.FLIP_CROP, "randaugment": bars.RANDAUGMENT}, repeats=40),
    # the fastest of the eight small networks
    Case("mini_plain", "mini", {"flip-crop": bars.SMALL_FLIP_CROP, "randaugment": bars.SMALL_RANDAUGMENT}, repeats=400),
)


def _step_of(architecture: str, name: str) -> Callable[[], None]:
    trained = method("local", architecture)
    trained.train()
    trained.receive(Payload(), completed_rounds=1)
    optimiser = torch.optim.SGD(trained.parameter_groups(0.01))
    stored = split(BATCH)
    pixels, labels = channels_first(stored.images[np.arange(BATCH)]), stored.labels
    augment, generator = build_augmentation(name, IMAGE_SHAPE), torch.Generator().manual_seed(0)

    def step() -> None:
        seen = pixels if augment is None else augment(pixels, generator)
        optimiser.zero_grad(set_to_none=True)
        trained.objective(scaled(seen), labels).total.backward()
        optimiser.step()

    return step


def measure() -> list[Measurement]:
    measured = []
    for case in CASES:
        for name, bar in case.bars.items():
            ratio, ours, theirs = interleaved_ratio(
                _step_of(case.architecture, name), _step_of(case.architecture, "none"), repeats=case.repeats
            )
            measured.append(
                Measurement(
                    question=f"training step with {name} against none, {case.title}, B={BATCH}",
                    value=ratio,
                    bar=bar,
                    detail=f"{1000 * ours:.2f} ms against {1000 * theirs:.2f} ms",
                )
            )
    return measured
