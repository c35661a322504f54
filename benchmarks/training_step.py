"""Time of FedDBP's training steps, relative to steps of the same backbone with cross-entropy only."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean

import torch

from benchmarks import bars
from benchmarks.measurement import Measurement, interleaved_ratio
from benchmarks.workload import batch, global_prototypes, method
from feddbp_client.training.trainer import PASS_BATCH
from feddbp_common.config.catalog import MODEL_GROUPS
from feddbp_common.wire import Payload

BATCH = 32


def _steps_of(name: str, architecture: str, received: Payload, *, steps: int) -> Callable[[], None]:
    """Several steps at a time, as in an epoch: a step after another model's finds its weights out of the cache."""
    trained = method(name, architecture)
    trained.receive(received, completed_rounds=1)
    # a round begins with an evaluation, which decides how much freed memory the C library keeps for the steps
    trained.predict(batch(PASS_BATCH)[0])
    trained.train()
    optimiser = torch.optim.SGD(trained.parameter_groups(0.01))
    images, labels = batch(BATCH)

    def run() -> None:
        for _ in range(steps):
            optimiser.zero_grad(set_to_none=True)
            trained.objective(images, labels).total.backward()
            optimiser.step()

    return run


def _ratio(architecture: str, *, steps: int, repeats: int) -> tuple[float, float, float]:
    """The ratio, and the milliseconds of a step of both."""
    ratio, ours, theirs = interleaved_ratio(
        _steps_of("feddbp", architecture, global_prototypes(), steps=steps),
        _steps_of("local", architecture, Payload(), steps=steps),
        repeats=repeats,
    )
    return ratio, 1000 * ours / steps, 1000 * theirs / steps


def _measure() -> list[Measurement]:
    large, ours, theirs = _ratio("resnet18", steps=2, repeats=20)
    small = {
        architecture.removeprefix("mini_"): _ratio(architecture, steps=10, repeats=30)
        for architecture in MODEL_GROUPS["mini-8"].bodies
    }
    return [
        Measurement(
            question=f"FedDBP training step against cross-entropy only, ResNet-18, B={BATCH}",
            value=large,
            bar=bars.TRAINING_STEP,
            detail=f"{ours:.1f} ms against {theirs:.1f} ms",
        ),
        Measurement(
            question="the same, mean of mini-8",
            value=fmean(ratio for ratio, _, _ in small.values()),
            bar=bars.SMALL_TRAINING_STEP,
            detail=", ".join(
                f"{name} {ratio:.2f} ({ours:.1f}/{theirs:.1f} ms)" for name, (ratio, ours, theirs) in small.items()
            ),
        ),
    ]


def measure() -> list[Measurement]:
    # in a thread, as in a daemon: glibc returns memory that the main thread frees to the system at every step
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_measure).result()
