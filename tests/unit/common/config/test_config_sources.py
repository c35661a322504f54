"""Flags, variables and files as sources of a small model."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ByteSize, ConfigDict, Field

from feddbp_common.config.command_line import Parser, run_command, settings_from, settings_parser
from feddbp_common.config.sources import add_flags, options_of, resolve
from feddbp_common.config.types import Duration
from feddbp_common.errors import ConfigurationError, ExitCode, FedDBPError
from feddbp_server.config import ServerConfig


class Grind(StrEnum):
    COARSE = "coarse"
    FINE = "fine"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Beans(_Strict):
    """Beans: where they come from and how they are ground."""

    grind: Grind = Field(Grind.COARSE, description="how fine")
    grams: int = Field(18, ge=1, le=100, description="how much, 100 % of it")
    roast: Literal["light", "dark"] = Field("light", description="how dark")


class Machine(_Strict):
    """All options of a coffee machine."""

    beans: Beans = Beans()
    brew_time: Duration = Field(timedelta(seconds=25), gt=timedelta(0), description="how long")
    crema: bool = Field(False, description="with foam")
    sugar: int = Field(0, ge=0, description="spoons")
    cup: str = Field("white", description="which cup", json_schema_extra={"flag": "--cup-colour", "aliases": ["-c"]})
    extras: dict[str, Any] = Field({}, description="anything else", json_schema_extra={"flag": "--set"})
    serial: int = Field(1, description="not for users", json_schema_extra={"hidden": True})


class LargeMachine(Machine):
    """With a value of every type."""

    milk: Literal["cow", "oat"] | None = Field(None, description="which milk")
    water: ByteSize = Field(ByteSize(1 << 26), description="how much of it")
    strength: float | None = Field(None, description="how strong")
    recipe: Path | None = Field(None, description="from whom")
    filter_dir: Path | None = Field(None, description="where filters are")
    rest: Duration | None = Field(None, description="how long to wait")


class Order(_Strict):
    """A model with a required field."""

    customer: str = Field(description="for whom")


def machine(
    *argv: str, file: Path | None = None, env: dict[str, str] | None = None, model: type[BaseModel] = Machine
) -> Any:
    parser = Parser(prog="brew", allow_abbrev=False)
    add_flags(parser, model, env_prefix="BREW_")
    return resolve(model, parser.parse_args(argv), env_prefix="BREW_", file=file, environ=env or {})


def error_message(*argv: str, **sources: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        machine(*argv, **sources)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE
    return str(caught.value)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "brew.toml"


# --- precedence ---


@pytest.mark.parametrize(("in_file", "in_environment", "as_flag"), list(product([False, True], repeat=3)))
def test_flags_override_variables_which_override_the_file_which_overrides_defaults(
    toml: Path, in_file: bool, in_environment: bool, as_flag: bool
) -> None:
    toml.write_text("[beans]\ngrams = 20\n")
    resolved = machine(
        *(["--grams", "40"] if as_flag else []),
        file=toml if in_file else None,
        env={"BREW_GRAMS": "30"} if in_environment else {},
    )
    assert resolved.beans.grams == (40 if as_flag else 30 if in_environment else 20 if in_file else 18)


def test_sources_are_merged_per_option(toml: Path) -> None:
    toml.write_text('brew_time = "40s"\n[beans]\ngrind = "fine"\ngrams = 20\n')
    resolved = machine("--grams", "40", file=toml, env={"BREW_ROAST": "dark", "BREW_GRAMS": "30"})
    assert resolved == Machine(brew_time=timedelta(seconds=40), beans=Beans(grind=Grind.FINE, grams=40, roast="dark"))


def test_without_sources_the_defaults_apply() -> None:
    assert machine() == Machine()


def test_pairs_of_all_sources_are_merged_by_name(toml: Path) -> None:
    toml.write_text("[extras]\nsugar = 1\nmilk = 1\ntray = 1\n")
    resolved = machine("--set", "milk=3", "--set", "spoon = 3 ", file=toml, env={"BREW_SET": "milk=2;tray=2"})
    assert resolved.extras == {"sugar": 1, "milk": "3", "tray": "2", "spoon": "3"}


def test_the_value_of_a_pair_may_contain_an_equals_sign() -> None:
    assert machine("--set", "note=a=b").extras == {"note": "a=b"}


def test_a_variable_can_set_and_unset_a_switch(toml: Path) -> None:
    toml.write_text("crema = true\n")
    assert machine("--crema").crema
    assert machine(env={"BREW_CREMA": "1"}).crema
    assert not machine(file=toml, env={"BREW_CREMA": "false"}).crema


def test_an_alias_is_the_same_flag() -> None:
    assert machine("-c", "red") == machine("--cup-colour", "red") == Machine(cup="red")


def test_a_hidden_option_has_no_flag_but_is_read_from_the_file(toml: Path) -> None:
    toml.write_text("serial = 7\n")
    assert machine(file=toml).serial == 7
    assert "unrecognized arguments: --serial" in error_message("--serial", "7")


# --- errors ---


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
@pytest.mark.parametrize(
    ("place", "flag", "variable", "bad", "reason"),
    [
        ("beans.grams", "--grams", "BREW_GRAMS", "none", "needs a whole number"),
        ("beans.grams", "--grams", "BREW_GRAMS", "0", "greater than or equal to 1"),
        ("beans.grind", "--grind", "BREW_GRIND", "powder", "'coarse' or 'fine'"),
        ("beans.roast", "--roast", "BREW_ROAST", "pink", "'light' or 'dark'"),
        ("brew_time", "--brew-time", "BREW_BREW_TIME", "soon", "is not a duration such as 90s, 10m or 1h30m"),
    ],
)
def test_an_error_names_the_source_the_value_and_the_reason(
    toml: Path, source: str, place: str, flag: str, variable: str, bad: str, reason: str
) -> None:
    if source == "flag":
        text, named = error_message(flag, bad), flag
    elif source == "variable":
        text, named = error_message(env={variable: bad}), variable
    else:
        toml.write_text(f'{place} = "{bad}"\n')
        text, named = error_message(file=toml), f"{toml}: {place}"
    assert text.startswith(f"{named}: ")
    assert reason in text
    assert text.count(repr(bad)) == 1


def test_a_duration_out_of_bounds_is_reported_with_its_flag() -> None:
    assert error_message("--brew-time", "0s").startswith("--brew-time: input should be greater than")


def test_the_source_with_the_highest_precedence_is_reported(toml: Path) -> None:
    toml.write_text("[beans]\ngrams = 20\n")
    assert error_message("--grams", "x", file=toml, env={"BREW_GRAMS": "5"}).startswith("--grams: ")
    assert error_message(file=toml, env={"BREW_GRAMS": "x"}).startswith("BREW_GRAMS: ")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("gramms = 3", "gramms"),
        ("[beans]\ngramms = 3", "beans.gramms"),
        ("[tea]\nleaves = 3", "tea.leaves"),
        ("beans = 3", "beans"),
        ("[beans.grams]\nmany = 3", None),
    ],
)
def test_an_unknown_key_is_named(toml: Path, text: str, key: str | None) -> None:
    toml.write_text(text + "\n")
    message = error_message(file=toml)
    assert message.startswith(f"--config {toml}: there is no option {key!r}" if key else f"{toml}: beans.grams: ")


@pytest.mark.parametrize("content", [b"grams = = 3\n", b"\xff\xfe\x00", b"[beans\n"])
def test_a_file_that_is_not_toml_is_named(toml: Path, content: bytes) -> None:
    toml.write_bytes(content)
    assert error_message(file=toml).startswith(f"--config {toml}: not a TOML file: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert error_message(file=missing) == f"--config {missing}: No such file or directory"
    assert error_message(file=tmp_path).startswith(f"--config {tmp_path}: ")


@pytest.mark.parametrize("pair", ["milk", "=3", " =3", ""])
def test_a_pair_needs_a_name_and_a_value(pair: str) -> None:
    assert error_message("--set", pair) == f"--set: {pair!r} is not NAME=VALUE"


def test_a_missing_required_option_is_named_by_its_flag() -> None:
    assert error_message(model=Order) == "--customer is required"
    assert machine("--customer", "Ada", model=Order).customer == "Ada"


@pytest.mark.parametrize("argv", [["--nope"], ["--gram", "3"], ["stray"], ["--grams"]])
def test_an_invalid_flag_is_reported_in_one_line_that_points_to_the_help(argv: list[str]) -> None:
    assert error_message(*argv).endswith("see brew --help")


def test_a_similar_flag_is_suggested() -> None:
    assert error_message("--gram", "3") == "unrecognized arguments: --gram 3; did you mean '--grams'? see brew --help"


def test_pairs_in_a_file_must_be_a_table_also_if_a_flag_adds_to_them(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[run]\nmethod_settings = "tau=1"\n')
    parser = settings_parser("serve", "", ServerConfig)
    flags = parser.parse_args(["--config", str(tmp_path / "run.toml"), "--set", "eta=0.5"])
    with pytest.raises(ConfigurationError, match=r"run\.method_settings: 'tau=1' is not a table of settings"):
        settings_from(ServerConfig, flags)


# --- options of a model ---


def test_every_leaf_of_the_model_is_an_option() -> None:
    seen = {(option.destination, option.flag, option.variable("BREW_"), option.group) for option in options_of(Machine)}
    assert seen == {
        ("beans.grind", "--grind", "BREW_GRIND", "beans"),
        ("beans.grams", "--grams", "BREW_GRAMS", "beans"),
        ("beans.roast", "--roast", "BREW_ROAST", "beans"),
        ("brew_time", "--brew-time", "BREW_BREW_TIME", "options"),
        ("crema", "--crema", "BREW_CREMA", "options"),
        ("sugar", "--sugar", "BREW_SUGAR", "options"),
        ("cup", "--cup-colour", "BREW_CUP_COLOUR", "options"),
        ("extras", "--set", "BREW_SET", "options"),
        ("serial", "--serial", "BREW_SERIAL", "options"),
    }


def test_help_shows_choices_defaults_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    parser = argparse.ArgumentParser(prog="brew")
    add_flags(parser, LargeMachine, env_prefix="BREW_")
    shown = parser.format_help()
    for piece in (
        "beans:",
        "--grind {coarse,fine}",
        "how fine (default: coarse) [BREW_GRIND]",
        "how much, 100 % of it (default: 18) [BREW_GRAMS]",
        "--grams N",
        "--roast {light,dark}",
        "--brew-time TIME",
        "--milk {cow,oat}",
        "--water SIZE",
        "how much of it (default: 64 MiB) [BREW_WATER]",
        "--strength X",
        "--recipe PATH",
        "--filter-dir DIR",
        "--rest TIME",
        "how long (default: 25s) [BREW_BREW_TIME]",
        "with foam [BREW_CREMA]",
        "spoons (default: 0) [BREW_SUGAR]",
        "--cup-colour CUP, -c CUP",
        "--set NAME=VALUE",
    ):
        assert piece in shown, piece
    assert "serial" not in shown


# --- commands ---


def command(argv: Sequence[str]) -> int:
    parser = settings_parser("brew", "Makes coffee.", Machine)
    print(settings_from(Machine, parser.parse_args(argv)).beans.grams)
    return 0


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for option in options_of(Machine):
        monkeypatch.delenv(option.variable("FEDDBP_"), raising=False)
    monkeypatch.delenv("FEDDBP_CONFIG", raising=False)
    return monkeypatch


def test_the_file_can_be_given_by_flag_or_variable_and_the_flag_takes_precedence(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for grams in (20, 30):
        (tmp_path / f"{grams}.toml").write_text(f"beans.grams = {grams}\n")
    clean_environment.setenv("FEDDBP_CONFIG", str(tmp_path / "20.toml"))
    assert run_command("brew", command, []) == 0
    assert run_command("brew", command, ["--config", str(tmp_path / "30.toml")]) == 0
    clean_environment.setenv("FEDDBP_GRAMS", "40")
    assert run_command("brew", command, []) == 0
    assert capsys.readouterr().out.split() == ["20", "30", "40"]


@pytest.mark.usefixtures("clean_environment")
def test_a_configuration_error_is_one_line_on_stderr_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("brew", command, ["--grams", "many"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("brew: error: --grams: ")


class SpillError(FedDBPError):
    exit_code = ExitCode.REFUSED


@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (SpillError("the cup is full"), 4, "brew: error: the cup is full\n"),
        (FedDBPError("no water"), 1, "brew: error: no water\n"),
        (KeyboardInterrupt(), 130, "brew: interrupted\n"),
    ],
)
def test_an_exception_is_reported_as_one_line_and_an_exit_code(
    raised: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise raised

    assert run_command("brew", fail, []) == code
    assert capsys.readouterr().err == line


def test_an_unexpected_exception_is_not_caught() -> None:
    def bug(_: object) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_command("brew", bug, [])


def test_sigterm_ends_a_command_as_ctrl_c_does(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def terminated(_: object) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    assert run_command("brew", terminated, []) == 130
    assert capsys.readouterr().err == "brew: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_all_errors_of_a_file_are_named_at_once(toml: Path) -> None:
    toml.write_text('brew_time = "soon"\n[beans]\ngrams = "many"\nroats = "dark"\n')
    unknown, *others = error_message(file=toml).split("; also ")
    assert unknown == f"--config {toml}: there is no option 'beans.roats'; did you mean 'beans.roast'?"
    assert sorted(text.removeprefix(f"{toml}: ").partition(":")[0] for text in others) == ["beans.grams", "brew_time"]


def test_of_many_errors_five_are_named(toml: Path) -> None:
    toml.write_text("".join(f"q{number}{number} = 1\n" for number in range(7)))
    text = error_message(file=toml)
    assert text.count("there is no option") == 5
    assert text.endswith("; and 2 more")
