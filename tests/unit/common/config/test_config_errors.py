"""Error messages name the source of a value, also if only a combination of values is invalid."""

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
    """Boat: its size."""

    seats: int = Field(4, description="how many")
    name: str = Field("Hope", description="what it is called")
    cargo: dict[str, Any] = Field({}, description="what else", json_schema_extra={"flag": "--load"})

    @model_validator(mode="after")
    def _name_and_cargo_are_allowed(self) -> Self:
        if self.name == "Titanic":
            raise ConfigurationError("no boat may be called Titanic")
        if "ice" in self.cargo:
            raise ValueError("ice melts")
        return self


class Trip(_Strict):
    """All options of a trip."""

    boat: Boat = Boat()
    crew: int = Field(2, description="number of rowers")

    @model_validator(mode="after")
    def _crew_fits(self) -> Self:
        if self.crew > self.boat.seats:
            raise ConfigurationError(f"--crew is {self.crew}, but there are only {self.boat.seats} seats")
        return self


def flags(*argv: str) -> argparse.Namespace:
    parser = Parser(prog="row", allow_abbrev=False)
    add_flags(parser, Trip, env_prefix="ROW_")
    return parser.parse_args(argv)


def error_message(*argv: str, env: dict[str, str] | None = None, file: Path | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        resolve(Trip, flags(*argv), env_prefix="ROW_", environ=env or {}, file=file)
    return str(caught.value)


@pytest.fixture
def trip_file(tmp_path: Path) -> Path:
    file = tmp_path / "trip.toml"
    file.write_text("crew = 9\n[boat]\nname = 'Titanic'\n")
    return file


def test_a_flag_is_named() -> None:
    assert error_message("--name", "Titanic") == "--name: no boat may be called Titanic"


def test_a_variable_is_named() -> None:
    assert error_message(env={"ROW_NAME": "Titanic"}) == "ROW_NAME: no boat may be called Titanic"


def test_a_key_in_a_file_is_named(trip_file: Path) -> None:
    message = error_message("--crew", "2", file=trip_file)
    assert message == f"{trip_file}: boat.name: no boat may be called Titanic"


def test_the_source_with_the_highest_precedence_is_named(trip_file: Path) -> None:
    message = error_message("--crew", "2", env={"ROW_NAME": "Titanic"}, file=trip_file)
    assert message == "ROW_NAME: no boat may be called Titanic"


def test_a_flag_that_the_message_contains_is_not_repeated() -> None:
    assert error_message("--crew", "5") == "--crew is 5, but there are only 4 seats"


def test_a_variable_is_named_even_if_the_message_contains_its_flag() -> None:
    assert error_message(env={"ROW_CREW": "5"}) == "ROW_CREW: --crew is 5, but there are only 4 seats"


def test_both_sources_of_two_incompatible_values_are_named() -> None:
    message = error_message("--seats", "1", env={"ROW_CREW": "3"})
    assert (
        message == "--seats: --crew is 3, but there are only 1 seats"
    )  # a single seat is too few for the default crew as well
    message = error_message("--seats", "2", env={"ROW_CREW": "3"})
    assert message == "--seats and ROW_CREW: --crew is 3, but there are only 2 seats"


def test_sources_of_unrelated_values_are_not_named() -> None:
    message = error_message("--seats", "7", "--load", "water=1", env={"ROW_NAME": "Titanic", "ROW_CREW": "3"})
    assert message == "ROW_NAME: no boat may be called Titanic"


def test_the_first_of_two_errors_is_reported_with_its_source() -> None:
    assert error_message("--crew", "9", env={"ROW_NAME": "Titanic"}) == "ROW_NAME: no boat may be called Titanic"


@pytest.mark.parametrize(
    ("argv", "env", "source"),
    [
        (["--load", "ice=1"], {}, "--load"),
        ([], {"ROW_LOAD": "ice=1"}, "ROW_LOAD"),
        (["--load", "water=1"], {"ROW_LOAD": "ice=1"}, "ROW_LOAD or --load"),
    ],
)
def test_all_sources_of_merged_pairs_are_named(argv: list[str], env: dict[str, str], source: str) -> None:
    assert error_message(*argv, env=env) == f"{source}: ice melts"


def test_a_variable_without_a_pair_is_named() -> None:
    assert error_message(env={"ROW_LOAD": "ice"}) == "ROW_LOAD: 'ice' is not NAME=VALUE"


# --- a file shared by several commands ---


class Anchor(_Strict):
    """Anchor: how deep."""

    depth: int = Field(3, description="in metres")


class Stay(_Strict):
    """All options of staying."""

    anchor: Anchor = Anchor()


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "shared.toml"
    monkeypatch.setenv("FEDDBP_CONFIG", str(file))
    return file


def stay(*argv: str) -> Stay:
    return settings_from(Stay, settings_parser("stay", "", Stay).parse_args(argv))


def test_tables_of_other_commands_are_ignored_in_a_file_from_the_environment(shared: Path) -> None:
    shared.write_text("[boat]\nseats = 3\n[anchor]\ndepth = 8\n[engine.fuel]\nkind = 'diesel'\n")
    assert stay().anchor.depth == 8


def test_tables_of_other_commands_are_refused_in_a_file_from_a_flag(shared: Path) -> None:
    shared.write_text("[boat]\nseats = 3\n")
    with pytest.raises(ConfigurationError, match=rf"--config {shared}: there is no option 'boat\.seats'"):
        stay("--config", str(shared))


@pytest.mark.parametrize(
    ("content", "option"),
    [("[anchor]\ndepht = 8\n", "anchor.depht"), ("[ancor]\ndepth = 8\n", "ancor.depth"), ("depth = 8\n", "depth")],
    ids=["in the key", "in the table", "without a table"],
)
def test_a_typo_is_refused_also_in_a_file_from_the_environment(shared: Path, content: str, option: str) -> None:
    shared.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        stay()
    message = f"FEDDBP_CONFIG {shared}: there is no option {option!r}; did you mean 'anchor.depth'?"
    assert str(caught.value) == message


def test_a_missing_file_is_reported_with_its_variable(shared: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"FEDDBP_CONFIG {shared}: No such file or directory"):
        stay()
