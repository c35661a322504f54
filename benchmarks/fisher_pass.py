"""Time to compute prototypes and Fisher scores, relative to a forward pass over the same data."""

from __future__ import annotations

import torch

from benchmarks import bars
from benchmarks.measurement import Measurement, interleaved_ratio
from benchmarks.workload import batch, method

SAMPLES = 1024
BATCH = 256


def measure() -> list[Measurement]:
    collecting, forward = method("feddbp"), method("local")
    images, labels = batch(SAMPLES)
    forward.eval()

    @torch.no_grad()
    def forward_only() -> None:
        for part in images.split(BATCH):
            forward.predict(part)

    ratio, ours, theirs = interleaved_ratio(
        lambda: collecting.collect(images, labels, batch_size=BATCH), forward_only, repeats=12, warm_up=1
    )
    return [
        Measurement(
            question="prototypes and Fisher scores against a forward pass, ResNet-18",
            value=ratio,
            bar=bars.FISHER_PASS,
            detail=f"{ours:.2f} s against {theirs:.2f} s for {SAMPLES} images",
        )
    ]
