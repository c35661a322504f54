"""The protocol: which round and which clients of a run its result is of. Status, tables, figures and files use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from feddbp_common.config.nested import get
from feddbp_common.evaluation import accuracy_over_clients


class Basis(StrEnum):
    """By what the round of a result was chosen."""

    VALIDATION = "validation"
    """Highest accuracy on the validation samples of all clients; test samples have no part in the choice."""
    BEST = "best"
    """Highest accuracy on the test samples themselves, for runs without validation samples: optimistic."""
    LAST = "last"
    """The last round, for runs with newcomers, who have too few samples to choose on."""


def basis_of(config: Mapping[str, Any]) -> Basis:
    """The basis of a run with this configuration, as its summary holds it: settings at their default may be missing."""
    if config.get("newcomers"):
        return Basis.LAST
    return Basis.VALIDATION if get(config, ("training", "validation")) else Basis.BEST


def counts_in_result(config: Mapping[str, Any], client_id: int) -> bool:
    """Whether the result is of this client: of newcomers alone in a run that has some."""
    newcomers = config.get("newcomers", 0)
    return not newcomers or client_id >= config["clients"] - newcomers


@dataclass(frozen=True, kw_only=True)
class Reported:
    """The result of a run."""

    accuracy: float | None
    """Between 0 and 1, over the test samples of its clients; None if no client evaluated."""
    basis: Basis
    clients: int
    """Over how many clients the accuracy is."""
    expected_clients: int
    """The clients the result is of: newcomers alone in a run that has some, otherwise all."""

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> Reported:
        config = summary["config"]
        basis, expected = basis_of(config), expected_clients(summary)
        if basis is Basis.LAST:
            accuracy, clients = _last_of_newcomers(summary)
            return cls(accuracy=accuracy, basis=basis, clients=clients, expected_clients=expected)
        point = summary["accuracy"]["chosen" if basis is Basis.VALIDATION else "best"]
        return cls(
            accuracy=float(point["weighted"]) if point else None,
            basis=basis,
            clients=point["clients"] if point else 0,
            expected_clients=expected,
        )

    def __str__(self) -> str:
        return accuracy_over_clients(self.accuracy, self.clients, self.expected_clients)


def expected_clients(summary: Mapping[str, Any]) -> int:
    """How many clients the result of a run is of."""
    return int(summary["config"].get("newcomers", 0) or summary["clients"])


def _last_of_newcomers(summary: Mapping[str, Any]) -> tuple[float | None, int]:
    newcomers = [
        client
        for client in summary["per_client"]
        if counts_in_result(summary["config"], client["client"]) and client["accuracy"] is not None
    ]
    samples = sum(client["test_samples"] for client in newcomers)
    correct = sum(client["accuracy"] * client["test_samples"] for client in newcomers)
    return (correct / samples if samples else None), len(newcomers)
