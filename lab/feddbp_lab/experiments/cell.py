"""One run of an experiment, named by its content: whatever experiments want it, it is run once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from feddbp_common.config.catalog import DATASETS
from feddbp_common.config.run import RunConfig

_READABLE: Final = 150
"""Characters of an id at most before the fingerprint: it is the name of a directory."""


@dataclass(frozen=True)
class Cell:
    """A run, and the words by which people know it."""

    run: RunConfig

    @property
    def words(self) -> tuple[str, ...]:
        run = self.run
        return (
            run.method,
            *_changed_settings(run),
            run.data.dataset,
            f"a{run.data.alpha:g}",
            run.training.model_group,
            f"e{run.training.local_epochs}",
            f"r{run.rounds}",
            f"s{run.seed}",
        )

    @property
    def id(self) -> str:
        """Readable, and with the fingerprint of the whole configuration at its end."""
        readable = re.sub(r"[^\w.=-]+", "_", "-".join(self.words), flags=re.ASCII)
        return f"{readable[:_READABLE]}-{self.run.fingerprint}"

    @property
    def title(self) -> str:
        run = self.run
        changed = "".join(f" {setting}" for setting in _changed_settings(run))
        where = f"{run.data.dataset}, α {run.data.alpha:g}, E {run.training.local_epochs}"
        return f"{run.method_spec.title}{changed} on {where}, seed {run.seed}"

    @property
    def cost(self) -> float:
        """How much there is to compute, for guessing how long it takes: epochs over images of a size."""
        known = DATASETS.get(self.run.data.dataset)
        pixels = known.image_size**2 if known else 1
        return float(self.run.rounds * self.run.training.local_epochs * pixels)


def _changed_settings(run: RunConfig) -> list[str]:
    defaults = run.method_spec.settings().model_dump(mode="json")
    return [f"{name}={value}" for name, value in run.method_settings.items() if value != defaults[name]]
