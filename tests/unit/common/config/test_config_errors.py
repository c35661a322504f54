"""Complaints name where a value came from, also when only several values together are wrong."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Self

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from feddbp_common.config.command_line import Parser, settings_from, settings_parser
from feddbp_common.config.sources import add_flags, resolve
from feddbp_common.errors import ConfigurationError


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Boat(_Strict):
    """Boat: who fits in."""

    seats: int = Field(4, description="how many")
    name: str = Field("Hope", description="what it is called")
    cargo: dict[str, Any] = Field({}, description="what else", json_schema_extra={"flag": "--load"})

    @model_validator(mode="after")
    def _has_a_name_of_its_own(self) -> Self:
        if self.name == "Titanic":
            raise ConfigurationError("no boat may be called Titanic")
        if "ice" in self.cargo:
            raise ValueError("ice melts")
        return self


class Trip(_Strict):
    """All options of a trip."""

    boat: Boat = Boat()
    crew: int = Field(2, description="how many row")

    @model_validator(mode="after")
    def _everyone_has_a_seat(self) -> Self:
        if self.crew > self.boat.seats:
            raise ConfigurationError(f"--crew is {self.crew}, but there are only {self.boat.seats} seats")
        return self


def flags(*argv: str) -> argparse.Namespace:
    parser = Parser(prog="row", allow_abbrev=False)
    add_flags(parser, Trip, env_prefix="ROW_")
    return parser.parse_args(argv)


def complaint(*argv: str, env: dict[str, str] | None = None, file: Path | None = None) -> str:
    with pytest.raises(ConfigurationError) as refused:
        resolve(Trip, flags(*argv), env_prefix="ROW_", environ=env or {}, file=file)
    return str(refused.value)


@pytest.fixture
def trip_file(tmp_path: Path) -> Path:
    file = tmp_path / "trip.toml"
    file.write_text("crew = 9\n[boat]\nname = 'Titanic'\n")
    return file


def test_a_flag() -> None:
    assert complaint("--name", "Titanic") == "--name: no boat may be called Titanic"


def test_a_variable() -> None:
    assert complaint(env={"ROW_NAME": "Titanic"}) == "ROW_NAME: no boat may be called Titanic"


def test_a_line_of_a_file(trip_file: Path) -> None:
    told = complaint("--crew", "2", file=trip_file)
    assert told == f"{trip_file}: boat.name: no boat may be called Titanic"


def test_the_source_that_won_is_the_one_at_fault(trip_file: Path) -> None:
    told = complaint("--crew", "2", env={"ROW_NAME": "Titanic"}, file=trip_file)
    assert told == "ROW_NAME: no boat may be called Titanic"


def test_what_the_complaint_says_itself_is_not_said_twice() -> None:
    assert complaint("--crew", "5") == "--crew is 5, but there are only 4 seats"


def test_a_variable_is_named_also_where_the_complaint_speaks_of_its_flag() -> None:
    assert complaint(env={"ROW_CREW": "5"}) == "ROW_CREW: --crew is 5, but there are only 4 seats"


def test_two_values_that_do_not_fit_together_are_both_named() -> None:
    told = complaint("--seats", "1", env={"ROW_CREW": "3"})
    assert (
        told == "--seats: --crew is 3, but there are only 1 seats"
    )  # with one seat, the usual crew of two has no place either
    told = complaint("--seats", "2", env={"ROW_CREW": "3"})
    assert told == "--seats and ROW_CREW: --crew is 3, but there are only 2 seats"


def test_values_that_have_nothing_to_do_with_it_are_not_named() -> None:
    told = complaint("--seats", "7", "--load", "water=1", env={"ROW_NAME": "Titanic", "ROW_CREW": "3"})
    assert told == "ROW_NAME: no boat may be called Titanic"


def test_of_two_mistakes_the_first_is_named_with_its_source() -> None:
    assert complaint("--crew", "9", env={"ROW_NAME": "Titanic"}) == "ROW_NAME: no boat may be called Titanic"


@pytest.mark.parametrize(
    ("argv", "env", "source"),
    [
        (["--load", "ice=1"], {}, "--load"),
        ([], {"ROW_LOAD": "ice=1"}, "ROW_LOAD"),
        (["--load", "water=1"], {"ROW_LOAD": "ice=1"}, "ROW_LOAD or --load"),
    ],
)
def test_pairs_may_come_from_several_places(argv: list[str], env: dict[str, str], source: str) -> None:
    assert complaint(*argv, env=env) == f"{source}: ice melts"


def test_a_variable_that_holds_no_pair() -> None:
    assert complaint(env={"ROW_LOAD": "ice"}) == "ROW_LOAD: 'ice' is not NAME=VALUE"


# --- a file for several commands ---


class Anchor(_Strict):
    """Anchor: how deep."""

    depth: int = Field(3, description="in metres")


class Stay(_Strict):
    """All options of staying where one is."""

    anchor: Anchor = Anchor()


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "shared.toml"
    monkeypatch.setenv("FEDDBP_CONFIG", str(file))
    return file


def stay(*argv: str) -> Stay:
    return settings_from(Stay, settings_parser("stay", "", Stay).parse_args(argv))


def test_tables_of_other_commands_are_passed_over_in_the_environments_file(shared: Path) -> None:
    shared.write_text("[boat]\nseats = 3\n[anchor]\ndepth = 8\n[engine.fuel]\nkind = 'diesel'\n")
    assert stay().anchor.depth == 8


def test_but_not_in_a_file_that_was_given_to_this_one(shared: Path) -> None:
    shared.write_text("[boat]\nseats = 3\n")
    with pytest.raises(ConfigurationError, match=rf"--config {shared}: there is no option 'boat\.seats'"):
        stay("--config", str(shared))


@pytest.mark.parametrize(
    ("content", "option"),
    [("[anchor]\ndepht = 8\n", "anchor.depht"), ("[ancor]\ndepth = 8\n", "ancor.depth"), ("depth = 8\n", "depth")],
    ids=["in a table of its own", "in a table that is misspelt", "in no table"],
)
def test_a_slip_of_the_pen_is_still_one(shared: Path, content: str, option: str) -> None:
    shared.write_text(content)
    with pytest.raises(ConfigurationError) as refused:
        stay()
    told = f"FEDDBP_CONFIG {shared}: there is no option {option!r}; did you mean 'anchor.depth'?"
    assert str(refused.value) == told


def test_a_file_that_is_not_there_is_told_with_the_variable_that_named_it(shared: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"FEDDBP_CONFIG {shared}: No such file or directory"):
        stay()
