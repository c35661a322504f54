"""The ledger of what a client has released under differential privacy, over all its runs.

A line per release, on disk before the release is sent. Lines are never removed: the budget is of the samples, and what
was learnt of them stays known.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from feddbp_common.atomic_files import replace_lines
from feddbp_common.differential_privacy.accountant import composed, epsilon_of
from feddbp_common.errors import ConfigurationError
from feddbp_common.file_lock import FileLock
from feddbp_common.humanize import quantity

EPSILON_BUDGET: Final = 8.0
"""What a client spends at most over all its runs, unless its operator allows more."""
_ROUNDING: Final = 1 + 1e-6


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One release."""

    run_id: str
    noise_multiplier: float
    epsilon: float
    delta: float


class Ledger:
    """A client's releases, in a file of its state directory."""

    def __init__(self, path: Path, *, client_id: int, budget: float) -> None:
        self.path = path
        self._client_id = client_id
        self._budget = budget

    def has(self, run_id: str) -> bool:
        return any(entry.run_id == run_id for entry in self._entries())

    def spent(self, delta: float) -> float:
        """Epsilon of all releases together."""
        return _epsilon(self._entries(), delta)

    def check(self, entry: Entry) -> None:
        """Raises ConfigurationError if the budget has no room for a release that is not in the ledger yet."""
        self._check(self._entries(), entry)

    def record(self, entry: Entry) -> None:
        """Adds a release, durably, unless it is there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_suffix(".lock"), wait=True):
            entries = self._entries()
            if any(other.run_id == entry.run_id for other in entries):
                return
            self._check(entries, entry)
            replace_lines(self.path, [json.dumps(asdict(known)) for known in (*entries, entry)])

    def _check(self, entries: Sequence[Entry], entry: Entry) -> None:
        if any(other.run_id == entry.run_id for other in entries):
            return
        after = _epsilon([*entries, entry], entry.delta)
        if after <= self._budget * _ROUNDING:
            return
        number = quantity(len(entries), "release")
        spent = f"has spent epsilon {_epsilon(entries, entry.delta):.2f} in {number} and " if entries else ""
        raise ConfigurationError(
            f"client {self._client_id} {spent}may spend {self._budget:g} in all, but this run's release would make "
            f"it {after:.2f} (delta {entry.delta:g}, ledger {self.path}): raise --epsilon-budget, or leave the run"
        )

    def _entries(self) -> list[Entry]:
        if not self.path.exists():
            return []
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
            return [_entry(json.loads(line)) for line in lines]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(
                f"{self.path}, which has what client {self._client_id} has released, cannot be read: {error}; restore "
                "it from a backup"
            ) from None


def _entry(values: dict[str, object]) -> Entry:
    numbers = {name: float(str(values[name])) for name in ("noise_multiplier", "epsilon", "delta")}
    if not all(number > 0 for number in numbers.values()):
        raise ValueError("a number is not positive")
    return Entry(run_id=str(values["run_id"]), **numbers)


def _epsilon(entries: Sequence[Entry], delta: float) -> float:
    return epsilon_of(composed(entry.noise_multiplier for entry in entries), delta) if entries else 0.0
