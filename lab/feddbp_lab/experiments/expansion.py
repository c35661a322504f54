"""Expands the specification of an experiment into its plan and its cells."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from feddbp_common.config.data import DataConfig
from feddbp_common.config.diagnostics import did_you_mean
from feddbp_common.config.nested import dotted
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import split_preset
from feddbp_common.wire import PayloadRules
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.plan import PLAN_VERSION, Axis, AxisValue, Part, Plan, Point, axis_title, value_label
from feddbp_lab.experiments.profiles import Profile, profile_named
from feddbp_lab.experiments.resources import Resources
from feddbp_lab.experiments.run_options import (
    METHOD,
    OPTIONS,
    SETTINGS,
    check_names,
    has_history,
    is_option,
    leaves_of,
    run_of,
    titles_of,
)
from feddbp_lab.experiments.spec import ExperimentSpec, PartSpec

_EPOCHS: Final = "training.local_epochs"
_EXCHANGE: Final = "exchange"
_FINETUNE: Final = "finetune_rounds"
_FINETUNE_STATE: Final = "finetune_state"
_HISTORY: Final = "its server keeps a state that no single upload gives"
_DEFAULT_SEEDS: Final = (0,)


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """A plan, and its cells by their ids."""

    plan: Plan
    cells: dict[str, Cell]


def seeds_of(spec: ExperimentSpec, profile: str | None) -> tuple[int, ...]:
    return spec.seeds or (profile_named(profile).seeds if profile else _DEFAULT_SEEDS)


def expand(
    spec: ExperimentSpec,
    *,
    seeds: Iterable[int],
    profile: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Expansion:
    check_names(overrides or {}, f"{spec.name}: --override")
    expander = _Expander(
        spec, profile=profile_named(profile) if profile else None, overrides=overrides or {}, seeds=seeds
    )
    try:
        parts = tuple(map(expander.expand_part, spec.parts))
    except ConfigurationError as error:
        raise ConfigurationError(f"{spec.name}: {error}") from None
    plan = Plan(
        name=spec.name,
        title=spec.title,
        note=" ".join(filter(None, (spec.note, expander.scaling_note(), *expander.notes))),
        profile=profile,
        overrides=expander.overrides,
        seeds=expander.seeds,
        parts=parts,
        version=PLAN_VERSION,
    )
    return Expansion(plan=plan, cells={cell_id: expander.cells[cell_id] for cell_id in plan.cell_ids})


def select_cells(cells: Iterable[Cell], only: Sequence[str]) -> list[Cell]:
    """Cells that match every entry of `only`; an entry lists words separated by commas, one of which has to match."""
    selected = list(cells)
    for entry in only:
        words = [word.strip() for word in entry.split(",") if word.strip()]
        matching = [set(_matching_ids(word, selected)) for word in words]
        selected = [cell for cell in selected if any(cell.id in ids for ids in matching)]
        if not selected:
            raise ConfigurationError(f"--only {entry}: no cell of the experiment has this in its name")
    return selected


def _matching_ids(word: str, cells: Sequence[Cell]) -> list[str]:
    """Cells of this name, if there are any, so that cifar10 does not select cifar100; else by substring of the id."""
    exact = [cell.id for cell in cells if word in cell.names]
    return exact or [cell.id for cell in cells if word in cell.id]


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """A value of an axis, and the options it sets."""

    value: AxisValue
    options: dict[str, Any]


class _Expander:
    """Expands the parts of one experiment, and collects their cells."""

    def __init__(
        self,
        spec: ExperimentSpec,
        *,
        profile: Profile | None,
        overrides: Mapping[str, Any],
        seeds: Iterable[int],
    ) -> None:
        self.overrides = dict(overrides)
        self.seeds = tuple(sorted(set(seeds)))
        self.cells: dict[str, Cell] = {}
        self.notes: list[str] = []
        self._spec = spec
        self._profile = profile

    def expand_part(self, part: PartSpec) -> Part:
        choices = {name: [self._choice(name, value) for value in values] for name, values in part.axes.items()}
        self._check_overrides(choices)
        base = {**leaves_of(self._spec.base, "base"), **leaves_of(part.base, "base"), **self.overrides}
        points = []
        for at in itertools.product(*(range(len(listed)) for listed in choices.values())):
            options = dict(base)
            for listed, index in zip(choices.values(), at, strict=True):
                options.update(listed[index].options)
            points.append(self._point(at, self._with_profile(options), part))
        axes = tuple(
            Axis(name=name, title=axis_title(name), values=tuple(choice.value for choice in listed))
            for name, listed in choices.items()
        )
        expanded = Part(title=part.title, axes=axes, report=part.report, points=tuple(points))
        _check_rows(expanded)
        return expanded

    def _with_profile(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if self._profile is None:
            return dict(given)
        options = {**self._profile.options_for(titles_of(given), given), **given}
        keeps_state = options.get(_FINETUNE_STATE) == "last"
        if _FINETUNE in options and _FINETUNE not in given and has_history(options) and not keeps_state:
            del options[_FINETUNE]
            self._note(f"{run_of(options).method_spec.title} has no fine-tuning rounds: {_HISTORY}.")
        if keeps_state and not options.get(_FINETUNE):
            del options[_FINETUNE_STATE]
            self._note("Without rounds of fine-tuning there is no state to keep in them.")
        return options

    def _point(self, at: tuple[int, ...], options: Mapping[str, Any], part: PartSpec) -> Point:
        runs = self._runs(options)
        self._note_special_options(runs[0])
        alone = self._runs({**options, _EXCHANGE: "off"}) if part.controls and self._has_control(runs[0]) else []
        cells, controls = (self._add_cells(listed, part.resources) for listed in (runs, alone))
        return Point(at=at, cells=cells, without_exchange=controls)

    def _has_control(self, run: RunConfig) -> bool:
        """Whether the run exchanges something, and can be run without."""
        spec = run.method_spec
        is_federated = spec.upload_rules(run.settings, run.exchange_shape) != PayloadRules()
        if not is_federated or run.exchange == "off":
            return False
        if spec.has_history(run.settings):
            self._note(f"{spec.title} has no control without exchange: {_HISTORY}.")
            return False
        return True

    def _runs(self, options: Mapping[str, Any]) -> list[RunConfig]:
        given = dict(options)
        if given.get(_EXCHANGE) == "off" and given.get(_FINETUNE_STATE) == "last":
            del given[_FINETUNE_STATE]
            self._note("Without exchange there is no last state to keep while fine-tuning.")
        return [run_of({**given, "seed": seed}) for seed in self.seeds]

    def _add_cells(self, runs: Iterable[RunConfig], resources: Resources) -> dict[int, str]:
        """The ids of the cells by seed."""
        by_seed = {run.seed: Cell(run, resources) for run in runs}
        self.cells.update({cell.id: cell for cell in by_seed.values()})
        return {seed: cell.id for seed, cell in by_seed.items()}

    def _check_overrides(self, choices: Mapping[str, list[_Choice]]) -> None:
        for axis, listed in choices.items():
            for name in self.overrides:
                if any(name in choice.options for choice in listed):
                    raise ConfigurationError(f"--override {name}: the experiment's axis {axis!r} sets it")

    def _choice(self, axis: str, value: Any) -> _Choice:
        if axis == SETTINGS:
            if not isinstance(value, dict):
                raise ConfigurationError(f"axes.{axis}: {value!r} is not a table of settings")
            label = value_label(axis, value)
            return _Choice(
                value=AxisValue(key=label, label=label), options=leaves_of({SETTINGS: value}, f"axes.{axis}")
            )
        if not is_option(axis):
            return _variant(axis, value)
        if isinstance(value, dict | list):
            raise ConfigurationError(f"axes.{axis}: {value!r} is not a single value")
        options = {axis: value}
        if axis == METHOD:
            method, settings = split_preset(str(value))
            options = {axis: method, **{f"{SETTINGS}.{name}": setting for name, setting in settings.items()}}
        if axis == _EPOCHS and self._profile is not None and self._spec.scale_epochs and isinstance(value, int):
            return _scaled_epochs(value, self._profile.scaled_epochs(value))
        return _Choice(value=AxisValue(key=str(value), label=value_label(axis, value)), options=options)

    def scaling_note(self) -> str:
        """How an axis of local epochs was scaled to the profile; empty if it was not."""
        if self._profile is None or not self._spec.scale_epochs:
            return ""
        printed = [epochs for part in self._spec.parts for epochs in part.axes.get(_EPOCHS, ())]
        scaled = [self._profile.scaled_epochs(epochs) for epochs in printed]
        if scaled == printed:
            return ""
        ours, papers = ("/".join(map(str, epochs)) for epochs in (scaled, printed))
        return f"Local epochs are scaled to this profile: {ours} stand for the paper's {papers}."

    def _note_special_options(self, run: RunConfig) -> None:
        """Notes what the profile changes for this method or data set alone, with the values of the others."""
        if self._profile is None:
            return
        usual = RunConfig(method=run.method, data=DataConfig(dataset=run.data.dataset))
        others = {**dotted(usual.model_dump(mode="json")), **dotted(self._profile.base)}
        values = dotted(run.model_dump(mode="json"))
        for name, title in titles_of(values).items():
            for option, value in self._profile.special.get(name, {}).items():
                if values[option] == value != others[option]:
                    other = "its default" if others[option] is None else others[option]
                    self._note(f"{title} runs with {option.rpartition('.')[2]} = {value} instead of {other}.")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _scaled_epochs(printed: int, epochs: int) -> _Choice:
    label = str(epochs) if epochs == printed else f"{epochs} (paper: {printed})"
    return _Choice(value=AxisValue(key=str(epochs), label=label, paper=str(printed)), options={_EPOCHS: epochs})


def _variant(axis: str, value: Any) -> _Choice:
    """A labelled set of options, on an axis that is no option itself."""
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"axes: there is no option {axis!r}{did_you_mean(axis, OPTIONS)} "
            "(an axis of another name lists tables of label and set)"
        )
    if set(value) != {"label", "set"} or not isinstance(value["set"], dict):
        raise ConfigurationError(f"axes.{axis}: {value!r} must have a label, and a table of options called set")
    label = str(value["label"])
    return _Choice(value=AxisValue(key=label, label=label), options=leaves_of(value["set"], f"axes.{axis}: {label}"))


def _check_rows(part: Part) -> None:
    rows = [part.key(row) for row in part.combinations(part.report.rows)]
    named_rows = [("compare", row) for row in part.report.compare]
    if part.report.highlight is not None:
        named_rows.append(("highlight", part.report.highlight))
    for option, named in named_rows:
        if named not in rows:
            raise ConfigurationError(f"report.{option}: there is no row {named!r}; there are: {', '.join(rows)}")
