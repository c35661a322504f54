"""Errors of local training."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from feddbp_common.errors import FedDBPError, one_line

log = logging.getLogger("feddbp.client")


class TrainingError(FedDBPError):
    """Local training failed or was stopped."""


class DivergedError(TrainingError):
    """Training gave values that are not finite or out of bounds."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"training diverged: {cause}; try a smaller --learning-rate or --clip-norm 10")
        self.cause = cause


class WeightsMismatchError(TrainingError):
    """Stored weights are of another network."""


@contextmanager
def as_training_error() -> Iterator[None]:
    """Converts any error of a library, a device or a user's model into a TrainingError with its first line."""
    try:
        yield
    except FedDBPError:
        raise
    except Exception as error:
        log.debug("local training failed", exc_info=True)
        kind, line = type(error).__name__, one_line(error, first=True)
        raise TrainingError(kind if line == kind else f"{kind}: {line}") from error
