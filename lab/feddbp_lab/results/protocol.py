"""The protocol: which round of a run its result is taken from. Status, tables, figures and files all use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from feddbp_common.config.nested import get


class Basis(StrEnum):
    """By what the round of a result was chosen."""

    VALIDATION = "validation"
    """Highest accuracy on the validation samples of all clients; test samples have no part in the choice."""
    BEST = "best"
    """Highest accuracy on the test samples themselves, for runs without validation samples: optimistic."""


def basis_of(config: Mapping[str, Any]) -> Basis:
    """The basis of a run with this configuration, as its summary holds it: settings at their default may be missing."""
    return Basis.VALIDATION if get(config, ("training", "validation")) else Basis.BEST


@dataclass(frozen=True, kw_only=True)
class Reported:
    """The result of a run."""

    accuracy: float | None
    """Between 0 and 1, over the test samples of all clients; None if no client evaluated."""
    basis: Basis

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> Reported:
        basis = basis_of(summary["config"])
        point = summary["accuracy"]["chosen" if basis is Basis.VALIDATION else "best"]
        return cls(accuracy=float(point["weighted"]) if point else None, basis=basis)
