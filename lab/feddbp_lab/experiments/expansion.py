"""From what an experiment's file says to its plan and its cells."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from feddbp_common.config.catalog import CUSTOM_DATASET
from feddbp_common.config.diagnostics import Problem, did_you_mean
from feddbp_common.config.nested import dotted, undotted
from feddbp_common.config.run import RunConfig
from feddbp_common.config.sources import options_of
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import split_preset
from feddbp_lab.experiments.cell import Cell
from feddbp_lab.experiments.plan import Axis, Part, Plan, Point, Value, axis_title, value_label
from feddbp_lab.experiments.profiles import Profile, profile_named
from feddbp_lab.experiments.spec import ExperimentSpec, PartSpec

_METHOD: Final = "method"
_EPOCHS: Final = "training.local_epochs"
_SETTINGS: Final = "method_settings"
_OPTIONS: Final = frozenset(".".join(option.location) for option in options_of(RunConfig))
_DEFAULT_METHOD: Final = RunConfig.model_fields["method"].default
_DEFAULT_SEEDS: Final = (0,)


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """A plan, and the cells it speaks of by their ids."""

    plan: Plan
    cells: dict[str, Cell]


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """A value of an axis and the options it stands for."""

    value: Value
    options: dict[str, Any]


def seeds_of(spec: ExperimentSpec, profile: str | None) -> tuple[int, ...]:
    return spec.seeds or (profile_named(profile).seeds if profile else _DEFAULT_SEEDS)


def expand(
    spec: ExperimentSpec,
    *,
    seeds: Iterable[int],
    profile: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Expansion:
    seeds, given = tuple(sorted(set(seeds))), dict(overrides or {})
    chosen = profile_named(profile) if profile else None
    cells: dict[str, Cell] = {}
    try:
        parts = tuple(_part(spec, part, chosen, given, seeds, cells) for part in spec.parts)
    except ConfigurationError as error:
        raise ConfigurationError(f"{spec.name}: {error}") from None
    plan = Plan(
        name=spec.name,
        title=spec.title,
        note=" ".join(filter(None, (spec.note, _scaling_note(spec, chosen), _settings_note(chosen, cells.values())))),
        profile=profile,
        overrides=given,
        seeds=seeds,
        parts=parts,
    )
    return Expansion(plan=plan, cells={id_: cells[id_] for id_ in plan.cell_ids})


def _part(
    spec: ExperimentSpec,
    part: PartSpec,
    profile: Profile | None,
    overrides: Mapping[str, Any],
    seeds: tuple[int, ...],
    cells: dict[str, Cell],
) -> Part:
    base = {
        **dotted(profile.base if profile else {}),
        **_leaves(spec.base, "base"),
        **_leaves(part.base, "base"),
    }
    _check_names(overrides, "--override")
    choices = {
        name: [_choice(name, value, profile if spec.scale_epochs else None) for value in values]
        for name, values in part.axes.items()
    }
    for axis, listed in choices.items():
        for name in overrides:
            if any(name in choice.options for choice in listed):
                raise ConfigurationError(f"--override {name}: the experiment's axis {axis!r} sets it")
    points = []
    for at in itertools.product(*(range(len(listed)) for listed in choices.values())):
        options = {**base, **overrides}
        for listed, index in zip(choices.values(), at, strict=True):
            options.update(listed[index].options)
        if profile is not None:
            method, _ = split_preset(str(options.get("method", _DEFAULT_METHOD)))
            options = {**profile.options_for(method), **options}
        made = {seed: Cell(_run_config({**options, "seed": seed})) for seed in seeds}
        cells.update({cell.id: cell for cell in made.values()})
        points.append(Point(at=at, cells={seed: cell.id for seed, cell in made.items()}))
    axes = tuple(
        Axis(name=name, title=axis_title(name), values=tuple(choice.value for choice in listed))
        for name, listed in choices.items()
    )
    made_part = Part(title=part.title, axes=axes, report=part.report, points=tuple(points))
    _check_rows(made_part)
    return made_part


def _check_rows(part: Part) -> None:
    rows = [part.key(place) for place in part.places(part.report.rows)]
    for option, named in (("compare", part.report.compare), ("highlight", part.report.highlight)):
        if named is not None and named not in rows:
            raise ConfigurationError(f"report.{option}: there is no row {named!r}; there are: {', '.join(rows)}")


def _choice(axis: str, value: Any, scaled_by: Profile | None) -> _Choice:
    if axis == _SETTINGS:
        if not isinstance(value, dict):
            raise ConfigurationError(f"axes.{axis}: {value!r} is not a table of settings")
        label = value_label(axis, value)
        return _Choice(value=Value(key=label, label=label), options=_leaves({_SETTINGS: value}, f"axes.{axis}"))
    if not _is_option(axis):
        return _variant(axis, value)
    if isinstance(value, dict | list):
        raise ConfigurationError(f"axes.{axis}: {value!r} is not a single value")
    if axis == _METHOD:
        method, settings = split_preset(str(value))
        preset = {f"{_SETTINGS}.{name}": setting for name, setting in settings.items()}
        return _Choice(value=Value(key=str(value), label=value_label(axis, value)), options={axis: method, **preset})
    if axis == _EPOCHS and scaled_by is not None and isinstance(value, int):
        return _scaled(value, scaled_by.scaled_epochs(value))
    return _Choice(value=Value(key=str(value), label=value_label(axis, value)), options={axis: value})


def _scaled(printed: int, epochs: int) -> _Choice:
    label = str(epochs) if epochs == printed else f"{epochs} (paper: {printed})"
    return _Choice(value=Value(key=str(epochs), label=label, paper=str(printed)), options={_EPOCHS: epochs})


def _variant(axis: str, value: Any) -> _Choice:
    """A value that is a name for some options, on an axis that is no option itself."""
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"axes: there is no option {axis!r}{did_you_mean(axis, _OPTIONS)} "
            "(an axis of another name lists tables of label and set)"
        )
    if set(value) != {"label", "set"} or not isinstance(value["set"], dict):
        raise ConfigurationError(f"axes.{axis}: {value!r} must have a label, and a table of options called set")
    label = str(value["label"])
    return _Choice(value=Value(key=label, label=label), options=_leaves(value["set"], f"axes.{axis}: {label}"))


def _leaves(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    leaves = dotted(table)
    _check_names(leaves, where)
    for name, value in leaves.items():
        if isinstance(value, list):
            raise ConfigurationError(f"{where}.{name}: {value!r} is not a single value; lists belong under axes")
    return leaves


def _check_names(names: Iterable[str], where: str) -> None:
    for name in names:
        if name == "seed":
            raise ConfigurationError(f"{where}: seeds are given by `seeds` in the file, or by --seeds")
        if not _is_option(name):
            raise ConfigurationError(f"{where}: there is no option {name!r}{did_you_mean(name, _OPTIONS)}")


def _is_option(name: str) -> bool:
    # which settings there are depends on the method, which checks them itself
    return (name in _OPTIONS and name != "seed") or name.startswith(f"{_SETTINGS}.")


def _run_config(options: Mapping[str, Any]) -> RunConfig:
    try:
        run = RunConfig.model_validate(undotted(options))
    except ValidationError as error:
        first = Problem.first_of(error)
        raise ConfigurationError(f"{first} (got {first.given!r})") from None
    if run.data.dataset == CUSTOM_DATASET:
        raise ConfigurationError("data.dataset: only public data sets can be split; custom data are a client's own")
    return run


def _settings_note(profile: Profile | None, cells: Iterable[Cell]) -> str:
    """What of a method the profile has changed, lest anyone takes it for the method's own."""
    told: dict[str, None] = {}
    for run in (cell.run for cell in cells):
        defaults = run.method_spec.settings().model_dump(mode="json")
        for name, value in (profile.method_settings.get(run.method, {}) if profile else {}).items():
            if run.method_settings[name] == value != defaults[name]:
                usual = "its default" if defaults[name] is None else defaults[name]
                told[f"{run.method_spec.title} runs with {name} = {value} instead of {usual}."] = None
    return " ".join(told)


def _scaling_note(spec: ExperimentSpec, profile: Profile | None) -> str:
    if profile is None or not spec.scale_epochs:
        return ""
    axes: Iterator[list[Any]] = (part.axes[_EPOCHS] for part in spec.parts if _EPOCHS in part.axes)
    printed = list(itertools.chain.from_iterable(axes))
    scaled = [profile.scaled_epochs(epochs) for epochs in printed]
    if scaled == printed:
        return ""
    told = "/".join(map(str, scaled)), "/".join(map(str, printed))
    return f"Local epochs are scaled to this profile: {told[0]} stand for the paper's {told[1]}."


def select_cells(cells: Iterable[Cell], only: Sequence[str]) -> list[Cell]:
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
