"""The command `feddbp`: help, errors, and everything that starts no process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from feddbp_common.config.command_line import settings_parser
from feddbp_common.config.run import RunConfig
from feddbp_common.config.sources import resolve
from feddbp_common.cpu_cores import usable_cores
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import METHODS
from feddbp_lab.cli import COMMANDS, main
from feddbp_lab.commands.demo import output_directory
from feddbp_lab.commands.options import DemoConfig, DemoRun, LocalConfig
from feddbp_lab.processes.federation_options import FederationOptions
from feddbp_lab.processes.flags import arguments_for, clean_environment
from feddbp_server.config import ServerConfig


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    output = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"{name}" in output
        assert command.summary in output


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_a_help_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    assert f"feddbp {name}" in capsys.readouterr().out


def test_the_actions_of_experiments_are_listed_without_importing_what_they_need() -> None:
    code = (
        "import sys\nfrom feddbp_lab.cli import main\n"
        "try: main(['experiment', '--help'])\n"
        "finally: print(*sorted(sys.modules.keys() & {'grpc', 'numpy', 'rich', 'torch'}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "\n"
    listed = done.stdout.partition("commands:")[2].partition("\n\n")[0].split("\n")
    assert tuple(line.split()[0] for line in listed if line) == COMMANDS["experiment"].subcommands


@pytest.mark.parametrize("name", COMMANDS["experiment"].subcommands)
def test_every_action_of_experiments_has_a_help_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["experiment", name, "--help"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: feddbp experiment {name}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dmeo"], "did you mean 'demo'?"),
        (["zzz"], "no command is called 'zzz'; see feddbp --help"),
        (["demo", "--method", "fedbdp"], "no method is called 'fedbdp'; did you mean 'feddbp'?"),
        (["demo", "--set", "k_top=513"], "k_top is 513, but a prototype has 512 channels"),
        (["demo", "--set", "nonsense=1"], "feddbp has no setting 'nonsense'"),
        (["demo", "--dataset", "custom"], "the demo splits a public data set"),
        (["demo", "--dataset", "mnist"], "no data set is called 'mnist'"),
        (["demo", "--rounds", "0"], "--rounds: input should be greater than or equal to 1 (got '0')"),
        (["demo", "--model-group", "mini"], "no model group is called 'mini'"),
        (["demo", "--unknown"], "unrecognized arguments: --unknown; see feddbp demo --help"),
        (["status", "--server", "10.1.2.3:50051"], "10.1.2.3 is not this machine"),
        (["status", "--server", "0.0.0.0:5001"], "an address to listen on, not to connect to; give 127.0.0.1:5001"),
        (["methods", "nothing"], "no method is called 'nothing'"),
        (["methods", "feddpb:guided"], "no method is called 'feddpb'; did you mean 'feddbp'?"),
        (["methods", "guided"], "no method is called 'guided'; did you mean 'feddbp:guided'?"),
        (["methods", "feddbp:giuded"], "feddbp has no preset 'giuded'; did you mean 'guided'?"),
        (["methods", "feddbp:zzz"], "feddbp has no preset 'zzz'; it has: gentle, guided, "),
        (["methods", "feddbp:"], "feddbp has no preset ''; it has: gentle, guided, "),
        (["methods", "local:guided"], "local has no preset 'guided'; it has none"),
        (["experiment", "reprot", "out"], "no command is called feddbp experiment 'reprot'; did you mean 'report'?"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_output_directory_that_is_not_empty_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "older").write_text("results")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert f"{tmp_path} is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["older"]


def test_an_output_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"--out: .*file"):
        output_directory(DemoConfig(here=LocalConfig(out=tmp_path / "file")))


def test_default_directories_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = [str(output_directory(DemoConfig())) for _ in range(3)]
    assert made == ["runs/demo-feddbp-digits", "runs/demo-feddbp-digits-2", "runs/demo-feddbp-digits-3"]


def test_a_dry_run_prints_the_configuration_and_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.toml").write_text("[run]\nrounds = 3\n[run.training]\nbatch_size = 16\n")
    assert main(["demo", "--config", "demo.toml", "--rounds", "4", "--dry-run"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["run"]["rounds"] == 4
    assert output["run"]["training"]["batch_size"] == 16
    assert [path.name for path in tmp_path.iterdir()] == ["demo.toml"]


def test_a_servers_configuration_file_may_be_set_for_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.toml"
    file.write_text("[listen]\nport = 50051\n[rounds]\nmin_clients = 2\n[run]\nrounds = 3\nclients = 4\n")
    monkeypatch.setenv("FEDDBP_CONFIG", str(file))
    assert main(["demo", "--dry-run"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["run"]["rounds"], output["run"]["clients"]) == (3, 4)
    assert main(["status", "--server", "127.0.0.1:1"]) == 3  # the file is accepted, and no server answers
    assert "no server answers" in capsys.readouterr().err


def test_a_demo_run_is_a_run_configuration_with_other_defaults() -> None:
    demo = DemoRun()
    assert (demo.clients, demo.rounds, demo.method, demo.data.dataset) == (8, 10, "feddbp", "digits")
    assert type(demo.as_run()) is RunConfig
    assert demo.as_run().model_dump() == demo.model_dump()


def test_clients_are_assigned_to_processes_round_robin(tmp_path: Path) -> None:
    options = FederationOptions(run=RunConfig(clients=5), directory=tmp_path, processes=2, data_dir=Path("data"))
    assert options.ids_by_process() == [[0, 2, 4], [1, 3]]


def test_the_demo_has_no_more_processes_than_clients() -> None:
    assert DemoConfig(run=DemoRun(clients=2), here=LocalConfig(processes=9)).processes == 2
    assert DemoConfig(run=DemoRun(clients=1000)).processes == usable_cores()


def test_a_local_federation_needs_every_client_and_has_no_deadline(tmp_path: Path) -> None:
    options = FederationOptions(run=RunConfig(clients=5), directory=tmp_path, processes=2, data_dir=Path("data"))
    policy = options.server_config().policy
    assert policy.min_clients == 5
    assert policy.deadline is None


def test_a_command_line_resolves_to_the_configuration_it_was_made_from(tmp_path: Path) -> None:
    run = RunConfig.model_validate(
        {
            "method_settings": {"tau": 0.1, "without_share": True},
            "clients": 3,
            "seed": 7,
            "data": {"alpha": 0.30000000000000004},
            "wire": {"fisher": "top_channels"},
            "training": {"learning_rate": 1e-05, "htfllib_loader": True},
        }
    )
    config = FederationOptions(run=run, directory=tmp_path, processes=1, data_dir=Path("data")).server_config()
    flags = settings_parser("server", "", ServerConfig).parse_args(arguments_for(config))
    assert resolve(ServerConfig, flags, env_prefix="FEDDBP_", environ={}) == config


def test_children_do_not_inherit_the_variables_of_this_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDBP_ROUNDS", "3")
    monkeypatch.setenv("OTHER", "kept")
    assert "FEDDBP_ROUNDS" not in clean_environment()
    assert clean_environment()["OTHER"] == "kept"


def test_importing_the_command_imports_no_large_package() -> None:
    large = ("torch", "matplotlib", "grpc", "numpy", "sklearn")
    code = f"import feddbp_lab.cli, sys; print([name for name in {large} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_command_modules_import_no_package_of_an_extra() -> None:
    modules = ", ".join(command.module for command in COMMANDS.values())
    code = f"import {modules}, sys; print([name for name in ('torch', 'matplotlib', 'jinja2') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_methods_are_listed_with_their_titles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    output = capsys.readouterr().out
    for method in METHODS.values():
        assert method.name in output
        assert method.title in output


def test_the_settings_of_a_method_are_listed_with_default_and_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "feddbp"]) == 0
    output = capsys.readouterr().out
    assert "temperature of L_d" in output
    row = next(line for line in output.splitlines() if line.split()[:1] == ["tau"])
    assert row.split()[1] == "0.07"
    assert "--method feddbp:gentle" in output


def test_the_settings_of_a_preset_are_listed_with_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "feddbp:guided"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("FedDBP:guided  instead of prototypes")
    rows = {words[0]: words[1:3] for line in output.splitlines() if (words := line.split())}
    assert rows["setting"] == ["value", "default"]
    assert (rows["guide_weight"], rows["tau"]) == (["4.0", "1.0"], ["0.07", "0.07"])
    assert "Fisher" not in output.splitlines()[1]  # what is sent is no longer that
    assert main(["methods", "feddbp:guided", "--json"]) == 0
    preset = json.loads(capsys.readouterr().out)
    assert main(["methods", "feddbp", "--json"]) == 0
    assert preset["up"]["bytes"] != json.loads(capsys.readouterr().out)["up"]["bytes"]
    assert preset["preset"] == "guided"
    assert [*preset["up"]] == [*preset["down"]] == ["bytes"]
    assert {setting["name"]: setting["value"] for setting in preset["settings"]}["guide_weight"] == 4.0


def test_the_overview_of_methods_names_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    assert "feddbp:gentle, feddbp:guided" in " ".join(capsys.readouterr().out.split())


def test_methods_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [method["name"] for method in output] == list(METHODS)
    assert main(["methods", "feddbp", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert [preset["name"] for preset in one["presets"]] == list(METHODS["feddbp"].presets)
    tau = next(setting for setting in one["settings"] if setting["name"] == "tau")
    assert tau == {"name": "tau", "default": 0.07, "description": "temperature of L_d"}
