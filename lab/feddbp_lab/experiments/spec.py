"""The specification of an experiment, read from TOML: common options, axes along which runs differ, and the report."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from feddbp_common.config.diagnostics import FieldError, did_you_mean
from feddbp_common.config.nested import dotted
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError
from feddbp_lab.experiments.analysis.paper import PAPER
from feddbp_lab.experiments.resources import Resources

BUILT_IN: Final = (
    "table1",
    "table2",
    "table3",
    "fig2",
    "fig3",
    "study",
    "controls",
    "guided",
    "traffic",
    "finetuning",
    "newcomer",
    "tuning",
)


class ReportSpec(FrozenModel):
    """How the results of a part are reported; every axis has a place in the report."""

    kind: Literal["table", "curves", "sweep"] = "table"
    rows: tuple[str, ...] = Field((), description="axes whose values are rows of a table, or lines of a figure")
    columns: tuple[str, ...] = Field((), description="axes whose values are columns, or panels side by side")
    x: str | None = Field(None, description="the axis a sweep runs along")
    compare: tuple[str, ...] = Field((), description="the rows to which the others are compared")
    value: Literal["test", "validation"] = Field(
        "test", description="the accuracy that is shown; validation leaves the test samples out of the report"
    )
    from_round: int = Field(
        1, ge=0, description="first round of the curves; before training, an inference rule may lack its prototypes"
    )
    highlight: str | None = Field(None, description="the line of a figure that is emphasised")
    paper: str | None = Field(None, description="the table of the paper with values for these rows and columns")
    rules: bool = Field(False, description="give every inference rule its own column")

    @field_validator("rows", "columns", "compare", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        if value is None:  # as plans of version 1 have it
            return ()
        return (value,) if isinstance(value, str) else value

    @field_validator("paper")
    @classmethod
    def _printed(cls, table: str | None) -> str | None:
        if table is not None and table not in PAPER:
            raise ConfigurationError(f"report: the paper has no {table!r}; it has: {', '.join(PAPER)}")
        return table

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if (self.kind == "sweep") != (self.x is not None):
            raise ConfigurationError("report: x names the axis a sweep runs along; a sweep needs it, others have none")
        if self.value == "validation" and self.kind != "table":
            raise ConfigurationError(f"report: validation accuracy is reported as a table, not as {self.kind}")
        return self

    def with_axes_placed(self, axes: Iterable[str]) -> ReportSpec:
        """Places axes the report does not mention: the first in rows, the others in columns."""
        left = tuple(name for name in axes if name not in self.axes)
        if not self.rows and self.columns:
            return self.model_copy(update={"rows": left})
        rows = self.rows or left[:1]
        return self.model_copy(update={"rows": rows, "columns": self.columns or left[len(rows) - len(self.rows) :]})

    @property
    def axes(self) -> tuple[str, ...]:
        return (*self.rows, *self.columns, *((self.x,) if self.x else ()))


class PartSpec(FrozenModel):
    """A grid of runs, and how it is reported."""

    title: str = ""
    base: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, list[Any]]
    controls: bool = Field(False, description="run every row that exchanges something without exchange, too")
    report: ReportSpec = ReportSpec()
    resources: Resources = Field(Resources(), description="what a cell needs of its machine; no part of its run")

    @field_validator("axes", mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        return dotted(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _every_axis_is_placed_once(self) -> Self:
        for name, values in self.axes.items():
            if not values:
                raise ConfigurationError(f"axes.{name}: has no values")
        object.__setattr__(self, "report", self.report.with_axes_placed(self.axes))
        for name in self.report.axes:
            if name not in self.axes:
                raise ConfigurationError(f"report: there is no axis {name!r}{did_you_mean(name, self.axes)}")
        for name in self.axes:
            if self.report.axes.count(name) != 1:
                raise ConfigurationError(f"report: the axis {name!r} must be in rows, columns or x, once")
        return self


class ExperimentSpec(FrozenModel):
    """An experiment: one grid, or several parts that share `axes`, `controls`, `report` and `resources`."""

    name: str
    title: str
    note: str = ""
    base: dict[str, Any] = Field(default_factory=dict)
    scale_epochs: bool = Field(False, description="scale an axis of local epochs to the profile's epochs")
    seeds: tuple[int, ...] | None = None
    parts: tuple[PartSpec, ...]

    @model_validator(mode="before")
    @classmethod
    def _merge_shared_tables(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        shared = {key: values[key] for key in ("axes", "report", "resources") if key in values}
        controls = {key: values[key] for key in ("controls",) if key in values}
        own = {key: value for key, value in values.items() if key not in {*shared, *controls}}
        parts = values.get("parts", [{}])
        if not all(isinstance(table, dict) for table in (*shared.values(), *parts)):
            return values
        return {**own, "parts": [{**controls, **part, **_merged(shared, part)} for part in parts]}


def _merged(shared: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    axes, common = (dotted(table.get("axes", {})) for table in (part, shared))
    # the part's own axes first: by default the first axis makes the rows
    tables = {name: {**shared.get(name, {}), **part.get(name, {})} for name in ("report", "resources")}
    return {"axes": {**axes, **common, **axes}, **tables}


def load_experiment(given: str) -> ExperimentSpec:
    """A built-in experiment by its name, or the one in a TOML file."""
    if given in BUILT_IN:
        text = (files(__package__) / "builtin" / f"{given}.toml").read_text(encoding="utf-8")
        return _parse(text, name=given, origin=given)
    path = Path(given)
    if path.suffix != ".toml":
        hint = did_you_mean(given, BUILT_IN) or f"; there are: {', '.join(BUILT_IN)}, or a file NAME.toml"
        raise ConfigurationError(f"no experiment is called {given!r}{hint}")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not a TOML file: {error}") from None
    if not re.fullmatch(r"\w[\w.-]*", path.stem):
        raise ConfigurationError(f"{path}: the file name may only have letters, digits, '.', '_' and '-'")
    if path.stem in BUILT_IN:
        raise ConfigurationError(f"{path}: {path.stem} is the name of a built-in experiment; rename the file")
    return _parse(text, name=path.stem, origin=str(path))


def _parse(text: str, *, name: str, origin: str) -> ExperimentSpec:
    try:
        content = tomllib.loads(text)
        if "name" in content:
            raise ConfigurationError("there is no key 'name': an experiment has the name of its file")
        return ExperimentSpec.model_validate({**content, "name": name})
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{origin}: not a TOML file: {error}") from None
    except ValidationError as error:
        raise ConfigurationError(f"{origin}: {_describe(error)}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{origin}: {error}") from None


def _describe(error: ValidationError) -> str:
    first = FieldError.first_in(error)
    # a file with one grid does not mention parts
    where = first.path.removeprefix("parts.0.")
    if first.kind == "extra_forbidden":
        return f"there is no key {where!r}"
    if first.kind == "missing":
        return f"{where!r} is missing"
    return f"{where}: {first.clause}"
