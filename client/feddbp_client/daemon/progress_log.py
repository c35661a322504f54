"""What a client logs of its work: a line for every round, and signs of progress while something takes long."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.humanize import human_bytes, human_seconds, percent

log = logging.getLogger("feddbp.client")

QUIET_SECONDS: Final = 15.0
"""Longest time without a line while something is happening."""


@asynccontextmanager
async def progress_logged(what: Callable[[], str], *, every: float = QUIET_SECONDS) -> AsyncIterator[None]:
    """Logs what is happening, and for how long already, until the context ends; nothing if that is soon."""
    started = time.monotonic()

    async def repeat() -> None:
        while True:
            await asyncio.sleep(every)
            log.info("%s, for %s so far", what(), human_seconds(time.monotonic() - started))

    repeating = asyncio.create_task(repeat())
    try:
        yield
    finally:
        repeating.cancel()


def results_text(number: int, metrics: pb.RoundMetrics) -> str:
    """Accuracy, loss, time and traffic of a round; a client evaluates what it downloaded, and then trains.

    Without the accuracy before the first training, when an inference rule may lack its prototypes.
    """
    parts = []
    if number:
        parts.append(f"accuracy {percent(_accuracy(metrics))}{' before training' if metrics.losses else ''}")
    parts += [f"loss {term.value:.4g}" for term in metrics.losses if term.name == "total"]
    if metrics.seconds.train:
        parts.append(f"trained for {human_seconds(metrics.seconds.train)}")
    if metrics.bytes_up:
        parts.append(f"{human_bytes(metrics.bytes_up)} uploaded")
    return ", ".join(parts) or "evaluated"


def _accuracy(metrics: pb.RoundMetrics) -> float | None:
    correct = {entry.rule: entry.correct for entry in metrics.accuracies}.get(metrics.inference)
    return None if correct is None or not metrics.test_samples else correct / metrics.test_samples
