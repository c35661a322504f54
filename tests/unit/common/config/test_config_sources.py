"""The machinery behind flags, variables and files, on a small model of its own."""

from __future__ import annotations

import argparse
from datetime import timedelta
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

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
    sugar: int = Field(0, ge=0, description="how much of it, from none on")
    cup: str = Field("white", description="which cup", json_schema_extra={"flag": "--cup-colour", "aliases": ["-c"]})
    extras: dict[str, Any] = Field({}, description="anything else", json_schema_extra={"flag": "--set"})
    serial: int = Field(1, description="nobody's business", json_schema_extra={"hidden": True})


class Order(_Strict):
    """An order that has to say for whom it is."""

    customer: str = Field(description="for whom")


def machine(
    *argv: str, file: Path | None = None, env: dict[str, str] | None = None, model: type[BaseModel] = Machine
) -> Any:
    parser = Parser(prog="brew", allow_abbrev=False)
    add_flags(parser, model, env_prefix="BREW_")
    return resolve(model, parser.parse_args(argv), env_prefix="BREW_", file=file, environ=env or {})


def complaint(*argv: str, **sources: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        machine(*argv, **sources)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE
    return str(caught.value)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "brew.toml"


# --- which source wins ---


@pytest.mark.parametrize(("in_file", "in_environment", "as_flag"), list(product([False, True], repeat=3)))
def test_flags_win_over_variables_and_these_over_the_file_and_this_over_defaults(
    toml: Path, in_file: bool, in_environment: bool, as_flag: bool
) -> None:
    toml.write_text("[beans]\ngrams = 20\n")
    resolved = machine(
        *(["--grams", "40"] if as_flag else []),
        file=toml if in_file else None,
        env={"BREW_GRAMS": "30"} if in_environment else {},
    )
    assert resolved.beans.grams == (40 if as_flag else 30 if in_environment else 20 if in_file else 18)


def test_sources_are_merged_option_by_option(toml: Path) -> None:
    toml.write_text('brew_time = "40s"\n[beans]\ngrind = "fine"\ngrams = 20\n')
    resolved = machine("--grams", "40", file=toml, env={"BREW_ROAST": "dark", "BREW_GRAMS": "30"})
    assert resolved == Machine(brew_time=timedelta(seconds=40), beans=Beans(grind=Grind.FINE, grams=40, roast="dark"))


def test_without_any_source_the_defaults_stand() -> None:
    assert machine() == Machine()


def test_pairs_of_all_sources_are_merged_name_by_name(toml: Path) -> None:
    toml.write_text("[extras]\nsugar = 1\nmilk = 1\ntray = 1\n")
    resolved = machine("--set", "milk=3", "--set", "spoon = 3 ", file=toml, env={"BREW_SET": "milk=2;tray=2"})
    assert resolved.extras == {"sugar": 1, "milk": "3", "tray": "2", "spoon": "3"}


def test_a_value_may_contain_what_separates_it_from_its_name() -> None:
    assert machine("--set", "note=a=b").extras == {"note": "a=b"}


def test_a_variable_can_set_and_unset_a_switch(toml: Path) -> None:
    toml.write_text("crema = true\n")
    assert machine("--crema").crema
    assert machine(env={"BREW_CREMA": "1"}).crema
    assert not machine(file=toml, env={"BREW_CREMA": "false"}).crema


def test_an_alias_is_the_same_flag() -> None:
    assert machine("-c", "red") == machine("--cup-colour", "red") == Machine(cup="red")


def test_a_hidden_option_has_no_flag_but_is_read_from_elsewhere(toml: Path) -> None:
    toml.write_text("serial = 7\n")
    assert machine(file=toml).serial == 7
    assert "unrecognized arguments: --serial" in complaint("--serial", "7")


# --- complaints ---


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
@pytest.mark.parametrize(
    ("place", "flag", "variable", "bad", "reason"),
    [
        ("beans.grams", "--grams", "BREW_GRAMS", "none", "valid integer"),
        ("beans.grams", "--grams", "BREW_GRAMS", "0", "greater than or equal to 1"),
        ("beans.grind", "--grind", "BREW_GRIND", "powder", "'coarse' or 'fine'"),
        ("beans.roast", "--roast", "BREW_ROAST", "pink", "'light' or 'dark'"),
        ("brew_time", "--brew-time", "BREW_BREW_TIME", "soon", "is not a duration such as 90s, 10m or 1h30m"),
    ],
)
def test_a_complaint_names_the_source_the_value_and_the_reason(
    toml: Path, source: str, place: str, flag: str, variable: str, bad: str, reason: str
) -> None:
    if source == "flag":
        text, named = complaint(flag, bad), flag
    elif source == "variable":
        text, named = complaint(env={variable: bad}), variable
    else:
        toml.write_text(f'{place} = "{bad}"\n')
        text, named = complaint(file=toml), f"{toml}: {place}"
    assert text.startswith(f"{named}: ")
    assert reason in text
    assert repr(bad) in text


def test_a_duration_out_of_bounds_is_refused_under_its_flag() -> None:
    assert complaint("--brew-time", "0s").startswith("--brew-time: input should be greater than")


def test_the_source_that_won_is_the_one_that_is_blamed(toml: Path) -> None:
    toml.write_text("[beans]\ngrams = 20\n")
    assert complaint("--grams", "x", file=toml, env={"BREW_GRAMS": "5"}).startswith("--grams: ")
    assert complaint(file=toml, env={"BREW_GRAMS": "x"}).startswith("BREW_GRAMS: ")


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
def test_a_key_no_option_has_is_named(toml: Path, text: str, key: str | None) -> None:
    toml.write_text(text + "\n")
    said = complaint(file=toml)
    assert said.startswith(f"--config {toml}: there is no option {key!r}" if key else f"{toml}: beans.grams: ")


@pytest.mark.parametrize("content", [b"grams = = 3\n", b"\xff\xfe\x00", b"[beans\n"])
def test_a_file_that_is_not_toml_is_named(toml: Path, content: bytes) -> None:
    toml.write_bytes(content)
    assert complaint(file=toml).startswith(f"--config {toml}: not a TOML file: ")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert complaint(file=missing) == f"--config {missing}: No such file or directory"
    assert complaint(file=tmp_path).startswith(f"--config {tmp_path}: ")


@pytest.mark.parametrize("pair", ["milk", "=3", " =3", ""])
def test_a_pair_needs_a_name_and_a_value(pair: str) -> None:
    assert complaint("--set", pair) == f"--set: {pair!r} is not NAME=VALUE"


def test_what_is_required_is_asked_for_by_its_flag() -> None:
    assert complaint(model=Order) == "--customer is required"
    assert machine("--customer", "Ada", model=Order).customer == "Ada"


@pytest.mark.parametrize("argv", [["--nope"], ["--gram", "3"], ["stray"], ["--grams"]])
def test_a_flag_nobody_knows_is_one_line_that_points_to_the_help(argv: list[str]) -> None:
    assert complaint(*argv).endswith("see brew --help")


def test_a_flag_that_is_nearly_one_is_guessed() -> None:
    assert complaint("--gram", "3") == "unrecognized arguments: --gram 3; did you mean '--grams'? see brew --help"


def test_pairs_in_a_file_have_to_be_a_table_also_where_a_flag_adds_to_them(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[run]\nmethod_settings = "tau=1"\n')
    parser = settings_parser("serve", "", ServerConfig)
    flags = parser.parse_args(["--config", str(tmp_path / "run.toml"), "--set", "eta=0.5"])
    with pytest.raises(ConfigurationError, match=r"run\.method_settings: 'tau=1' is not a table of settings"):
        settings_from(ServerConfig, flags)


# --- what a model looks like from outside ---


def test_every_leaf_of_the_model_is_an_option_in_the_group_of_its_table() -> None:
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
    add_flags(parser, Machine, env_prefix="BREW_")
    shown = parser.format_help()
    for piece in (
        "beans:",
        "--grind {coarse,fine}",
        "how fine (default: coarse) [BREW_GRIND]",
        "how much, 100 % of it (default: 18) [BREW_GRAMS]",
        "--roast {light,dark}",
        "how long (default: 25s) [BREW_BREW_TIME]",
        "with foam [BREW_CREMA]",
        "how much of it, from none on (default: 0) [BREW_SUGAR]",
        "--cup-colour CUP, -c CUP",
        "--set NAME=VALUE",
    ):
        assert piece in shown, piece
    assert "serial" not in shown


# --- commands ---


def command(argv: list[str]) -> int:
    parser = settings_parser("brew", "Makes coffee.", Machine)
    print(settings_from(Machine, parser.parse_args(argv)).beans.grams)
    return 0


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for option in options_of(Machine):
        monkeypatch.delenv(option.variable("FEDDBP_"), raising=False)
    monkeypatch.delenv("FEDDBP_CONFIG", raising=False)
    return monkeypatch


def test_the_file_can_be_given_by_flag_or_variable_and_the_flag_wins(
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
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
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
def test_what_a_command_raises_becomes_a_line_and_an_exit_code(
    raised: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise raised

    assert run_command("brew", fail, []) == code
    assert capsys.readouterr().err == line


def test_a_bug_is_not_disguised_as_a_mistake_of_the_user() -> None:
    def bug(_: object) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_command("brew", bug, [])
