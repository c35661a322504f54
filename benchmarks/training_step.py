"""Time of a FedDBP training step, relative to a step of the same backbone with cross-entropy only."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.measurement import Measurement, interleaved_ratio
from benchmarks.workload import batch, global_prototypes, method
from feddbp_common.wire import Payload


def _step_of(name: str, received: Payload) -> Callable[[], None]:
    trained = method(name)
    trained.train()
    trained.receive(received, completed_rounds=1)
    optimiser = torch.optim.SGD(trained.parameter_groups(0.01))
    images, labels = batch(32)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        trained.objective(images, labels).total.backward()
        optimiser.step()

    return step


def measure() -> list[Measurement]:
    ratio, ours, theirs = interleaved_ratio(
        _step_of("feddbp", global_prototypes()), _step_of("local", Payload()), repeats=40
    )
    return [
        Measurement(
            question="FedDBP training step against cross-entropy only, ResNet-18, B=32",
            value=ratio,
            bar=1.10,
            detail=f"{1000 * ours:.1f} ms against {1000 * theirs:.1f} ms",
        )
    ]
