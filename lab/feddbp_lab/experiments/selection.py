"""Which of an experiment's cells are to be run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from feddbp_common.errors import ConfigurationError
from feddbp_lab.experiments.cell import Cell


def selected(cells: Iterable[Cell], only: Sequence[str]) -> list[Cell]:
    """Cells that every entry of `only` finds; an entry may name several words, any of which will do."""
    chosen = list(cells)
    for entry in only:
        words = [word.strip() for word in entry.split(",") if word.strip()]
        found = [set(_found(word, chosen)) for word in words]
        chosen = [cell for cell in chosen if any(cell.id in ids for ids in found)]
        if not chosen:
            raise ConfigurationError(f"--only {entry}: no cell of the experiment has this in its name")
    return chosen


def _found(word: str, cells: Sequence[Cell]) -> list[str]:
    """Cells with the very word, if there are any: whoever says cifar10 does not mean cifar100."""
    exact = [cell.id for cell in cells if word in cell.words]
    return exact or [cell.id for cell in cells if word in cell.id]
