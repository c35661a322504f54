"""One run of an experiment, identified by its configuration: experiments that share a run share its results."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from feddbp_common.config.run import RunConfig
from feddbp_lab.experiments.resources import Resources

NO_EXCHANGE: Final = "no-exchange"
_READABLE: Final = 150
"""Maximum characters of an id before the fingerprint; the id is the name of a directory."""


@dataclass(frozen=True)
class Cell:
    """A run, its id and its title."""

    run: RunConfig
    resources: Resources = field(default=Resources(), compare=False)

    @property
    def words(self) -> tuple[str, ...]:
        """The parts of the id, by which `--only` selects."""
        run = self.run
        return (
            run.method,
            *([NO_EXCHANGE] if run.exchange == "off" else []),
            *_changed_settings(run),
            run.data.dataset,
            f"a{run.data.alpha:g}",
            run.training.model_group,
            *([f"n{run.newcomer_samples}"] if run.newcomers else []),
            f"e{run.training.local_epochs}",
            f"r{run.rounds}",
            f"s{run.seed}",
        )

    @property
    def id(self) -> str:
        """The words, and the fingerprint of the whole configuration."""
        readable = re.sub(r"[^\w.=-]+", "_", "-".join(self.words), flags=re.ASCII)
        return f"{readable[:_READABLE]}-{self.run.fingerprint}"

    @property
    def title(self) -> str:
        run = self.run
        changed = "".join(f" {setting}" for setting in _changed_settings(run))
        where = f"{run.data.dataset}, α {run.data.alpha:g}, E {run.training.local_epochs}"
        alone = " without exchange" if run.exchange == "off" else ""
        return f"{run.method_spec.title}{changed}{alone} on {where}, seed {run.seed}"

    @property
    def cost(self) -> float:
        """Relative computing time, for estimates: epochs times pixels of an image."""
        pixels = (self.run.data.image_size or 1) ** 2
        return float(self.run.rounds * self.run.training.local_epochs * pixels)


def _changed_settings(run: RunConfig) -> list[str]:
    defaults = run.method_spec.settings().model_dump(mode="json")
    return [f"{name}={value}" for name, value in run.method_settings.items() if value != defaults[name]]
