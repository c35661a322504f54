"""One run of an experiment, identified by its configuration: experiments that share a run share its results."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

from feddbp_common.config.exchange import GuideConfig, RealType
from feddbp_common.config.run import RunConfig
from feddbp_common.methods import PRESET_MARK
from feddbp_lab.experiments.resources import Resources
from feddbp_lab.experiments.run_options import presets_in

NO_EXCHANGE: Final = "no-exchange"
_READABLE: Final = 150
"""Maximum characters of an id before the fingerprint; the id is the name of a directory."""


@dataclass(frozen=True)
class Cell:
    """A run, and how it is called."""

    run: RunConfig
    resources: Resources = field(default=Resources(), compare=False)

    @property
    def words(self) -> tuple[str, ...]:
        """The parts of the id."""
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
    def names(self) -> frozenset[str]:
        """What `--only` selects by before it looks for parts of the id.

        Words, METHOD:PRESET, exchange, and with fine-tuning finetune_state=own or last.
        """
        run, preset = self.run, _preset_of(self.run)
        named = [
            *([f"{run.method}{PRESET_MARK}{preset}"] if preset else []),
            *(["exchange"] if run.exchange == "on" else []),
            *([f"finetune_state={run.finetune_state}"] if run.finetune_rounds else []),
        ]
        return frozenset((*self.words, *named))

    @property
    def title(self) -> str:
        run, preset = self.run, _preset_of(self.run)
        of_preset = run.method_spec.presets[preset].settings if preset else {}
        changed = [
            *_changed_settings(run, but=of_preset),
            *([run.guide.network] if run.guide != GuideConfig() else []),
            *([run.wire.wire_dtype.value] if run.wire.wire_dtype is not RealType.FLOAT32 else []),
        ]
        method = " ".join([f"{run.method_spec.title}{PRESET_MARK if preset else ''}{preset}", *changed])
        alone = " without exchange" if run.exchange == "off" else ""
        where = f"{run.data.dataset}, α {run.data.alpha:g}, E {run.training.local_epochs}"
        return f"{method}{alone} on {where}, seed {run.seed}"

    @property
    def cost(self) -> float:
        """Relative computing time, for estimates: epochs times pixels of an image."""
        pixels = (self.run.data.image_size or 1) ** 2
        return float(self.run.rounds * self.run.training.local_epochs * pixels)


def _changed_settings(run: RunConfig, *, but: Container[str] = ()) -> list[str]:
    defaults = run.method_spec.settings().model_dump(mode="json")
    return [
        f"{name}={value}" for name, value in run.method_settings.items() if value != defaults[name] and name not in but
    ]


def _preset_of(run: RunConfig) -> str:
    """Empty if the run has the settings of none."""
    return next(reversed(presets_in(run.method_spec, run.method_settings)), "")
