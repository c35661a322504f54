"""Environment variables that no command reads, and names that are suggested instead of wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deploy_files import CHECKOUT

from feddbp_client.cli import main as client
from feddbp_common.config.diagnostics import did_you_mean
from feddbp_common.config.sources import options_of
from feddbp_common.config.variables import COMMAND_MODELS, ENV_PREFIX, check_variables
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import METHODS
from feddbp_lab.cli import COMMANDS
from feddbp_server.cli import main as server
from feddbp_server.config import ServerConfig

SERVER_FLAGS = [option.flag for option in options_of(ServerConfig)]


def test_a_misspelt_variable_is_refused_as_a_misspelt_flag_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDDBP_RUONDS", "3")
    for prog, main, argv in (("feddbp-server", server, []), ("feddbp-client", client, ["--id", "0"])):
        assert main([*argv, "--dry-run"]) == 2
        line = f"{prog}: error: FEDDBP_RUONDS: no command has this option; did you mean 'FEDDBP_ROUNDS'?\n"
        assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize(
    "name", ["FEDDBP_GPU", "FEDDBP_OUT", "FEDDBP_WATCH", "FEDDBP_TOP", "FEDDBP_CONFIG", "FEDDBP_FAULT", "OTHER_ROUND"]
)
def test_variables_of_other_commands_are_no_mistake(name: str) -> None:
    check_variables(ServerConfig, {name: "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FEDDBP_SERVER_PORT", "tcp://10.0.0.7:50051"),
        ("FEDDBP_SERVER_SERVICE_HOST", "10.0.0.7"),
        ("FEDDBP_SERVER_SERVICE_PORT_GRPC", "50051"),
        ("FEDDBP_SERVER_PORT_50051_TCP_ADDR", "10.0.0.7"),
    ],
)
def test_variables_that_kubernetes_sets_for_a_service_are_ignored(name: str, value: str) -> None:
    check_variables(ServerConfig, {name: value})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("FEDDBP_METRIC_PORT", "; did you mean 'FEDDBP_METRICS_PORT'?"),
        ("FEDDBP_EPOCHS", "; did you mean 'FEDDBP_LOCAL_EPOCHS'?"),
        ("FEDDBP_XYZZY", "; --help lists the variables of a command"),
    ],
)
def test_a_similar_variable_is_suggested_if_there_is_one(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"{name}: no command has this option{hint}")):
        check_variables(ServerConfig, {name: "1"})


def test_the_models_of_all_commands_are_known() -> None:
    used = {
        model
        for package in ("server", "client", "lab")
        for path in (CHECKOUT / package).rglob("*.py")
        for model in re.findall(r"settings_from\(\s*(\w+),", path.read_text())
    }
    assert {place.partition(":")[2] for place in COMMAND_MODELS} == used


def test_the_deployment_sets_variables_that_exist() -> None:
    pages = [*Path(CHECKOUT / "deploy").rglob("*.y*ml"), *Path(CHECKOUT / "deploy").rglob("*Dockerfile")]
    named = {name for page in pages for name in re.findall(rf"{ENV_PREFIX}[A-Z_]*[A-Z](?![A-Z_.])", page.read_text())}
    assert named
    check_variables(ServerConfig, dict.fromkeys(named, "1"))


# --- suggestions ---


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--prot", "--port"),
        ("--rond-deadline", "--round-deadline"),
        ("--statedir", "--state-dir"),
        ("--epochs", "--local-epochs"),
        ("--batch", "--batch-size"),
        ("--deadline", "--round-deadline"),
        ("--data", "--dataset"),
        ("--lr", "--learning-rate"),
    ],
)
def test_typos_and_parts_of_a_flag_get_the_flag(given: str, meant: str) -> None:
    assert did_you_mean(given, SERVER_FLAGS, prefix="--") == f"; did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("prog", "flag", "hint"),
    [
        ("feddbp-server", "--lr", "; did you mean '--learning-rate'?"),
        ("feddbp-server", "--data-dir", "; --data-dir is an option of feddbp-client;"),
        ("feddbp-server", "--model", "; did you mean '--model-group'? --model is an option of feddbp-client;"),
        ("feddbp-server", "--resume", "; --state-dir DIR alone resumes the run in the directory;"),
        ("feddbp-client", "--lr", "; did you mean '--learning-rate' of feddbp-server?"),
        ("feddbp-client", "--rounds", "; --rounds is an option of feddbp-server;"),
        ("feddbp-client", "--dataset", "; --dataset is an option of feddbp-server;"),
        ("feddbp-client", "--learning-rate", "; --learning-rate is an option of feddbp-server;"),
        ("feddbp-client", "--resume", "; the same command resumes the client;"),
        ("feddbp-client", "--foo", ";"),
    ],
)
def test_an_option_of_the_other_command_and_a_habit_from_other_tools_get_a_hint(
    prog: str, flag: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main = server if prog == "feddbp-server" else client
    assert main([flag]) == 2
    assert capsys.readouterr().err == f"{prog}: error: unrecognized arguments: {flag}{hint} see {prog} --help\n"


@pytest.mark.parametrize("given", ["--gpu", "--id", "--lx", "--server", "--workers", "--ssl", "--quiet", "--foo"])
def test_a_flag_that_only_shares_letters_is_not_suggested(given: str) -> None:
    assert did_you_mean(given, SERVER_FLAGS, prefix="--") == ""


@pytest.mark.parametrize(("given", "hint"), [("tua", "; did you mean 'tau'?"), ("eta", ""), ("aut", ""), ("tav", "")])
def test_two_swapped_letters_of_a_short_name_are_a_typo(given: str, hint: str) -> None:
    assert did_you_mean(given, ["heads", "tau", "k_top"]) == hint


def test_no_far_fetched_command_or_method_is_suggested() -> None:
    assert [did_you_mean(name, COMMANDS) for name in ("start", "list", "launch", "train")] == [""] * 4
    assert did_you_mean("moon", METHODS) == ""
    assert did_you_mean("exp", COMMANDS) == "; did you mean 'export'?"
