"""The command `feddbp-server`: its options, its errors, and what it imports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from feddbp_common.artifacts import DATABASE_NAME
from feddbp_common.errors import ConfigurationError
from feddbp_server.cli import main
from feddbp_server.config import ListenConfig, RoundsConfig, ServerConfig
from feddbp_server.run.admission.limits import DEFAULT_LIMITS


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("FEDDBP_"):
            monkeypatch.delenv(variable)


def dry_run(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main([*argv, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    resolved: dict[str, Any] = json.loads(out)
    return resolved


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert err.startswith("feddbp-server: error: ")
    return err.removeprefix("feddbp-server: error: ").strip()


# --- what it resolves ---


def test_a_dry_run_prints_every_option_as_it_would_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    resolved = dry_run(capsys, "--port", "0", "--round-deadline", "30d", "--set", "k_top=12", "--set", "eta=0.5")
    assert resolved["listen"]["port"] == 0
    assert resolved["rounds"]["round_deadline"] == "2592000s"
    assert resolved["run"]["method_settings"]["k_top"] == 12
    assert resolved["run"]["method_settings"]["eta"] == 0.5
    assert resolved["run"]["method_settings"]["tau"] == 0.07
    assert resolved["run"]["data"]["classes"] == 10
    resolved["listen"]["state_dir"] = str(resolved["listen"]["state_dir"])
    assert ServerConfig.model_validate(resolved).rounds.round_deadline == timedelta(days=30)


def test_a_dry_run_touches_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dry_run(capsys, "--state-dir", str(tmp_path / "state"))
    assert list(tmp_path.iterdir()) == []


def test_defaults_file_environment_and_flags_in_this_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        "[listen]\nport = 1\n[rounds]\nround_deadline = '10m'\n"
        "[run]\nrounds = 2\nclients = 4\n[run.data]\nalpha = 0.5\n[run.method_settings]\nk_top = 1\neta = 0.1\n"
    )
    monkeypatch.setenv("FEDDBP_CONFIG", str(file))
    monkeypatch.setenv("FEDDBP_ROUNDS", "3")
    monkeypatch.setenv("FEDDBP_CLIENTS", "5")
    monkeypatch.setenv("FEDDBP_SET", "eta=0.2;tau=0.2")
    resolved = dry_run(capsys, "--clients", "6", "--set", "tau=0.3")
    run = resolved["run"]
    assert (resolved["listen"]["port"], run["rounds"], run["clients"], run["seed"]) == (1, 3, 6, 0)
    assert (run["data"]["alpha"], resolved["rounds"]["round_deadline"]) == (0.5, "600s")
    settings = run["method_settings"]
    assert (settings["k_top"], settings["eta"], settings["tau"], settings["lambda_2"]) == (1, 0.2, 0.3, 10.0)


def test_a_deadline_of_zero_waits_without_limit() -> None:
    waits = ServerConfig(rounds=RoundsConfig(round_deadline=timedelta(0)))
    assert waits.policy.deadline is None
    assert ServerConfig().policy.deadline == timedelta(minutes=30)


def test_the_policy_is_what_was_asked_for() -> None:
    config = ServerConfig.model_validate(
        {
            "rounds": {"min_clients": 3, "max_extensions": 7, "round_deadline": "90s"},
            "run": {"rounds": 9, "clients": 4, "participation": 0.5, "seed": 11},
        }
    )
    policy = config.policy
    assert (policy.rounds, policy.min_clients, policy.participation) == (9, 3, 0.5)
    assert (policy.max_extensions, policy.seed, policy.deadline) == (7, 11, timedelta(seconds=90))


def test_limits_given_as_options_are_in_force_beside_the_fixed_ones() -> None:
    options = {"max_upload_bytes": "1 kB", "max_bytes_in_flight": 3000, "header_wait": "2s", "chunk_wait": "7s"}
    limits = ServerConfig.model_validate({"limits": {**options, "max_samples": 50}}).limits.in_force
    assert (limits.upload_bytes, limits.bytes_in_flight, limits.samples) == (1000, 3000, 50)
    assert (limits.header_wait, limits.chunk_wait) == (timedelta(seconds=2), timedelta(seconds=7))
    assert limits.streams_per_session == DEFAULT_LIMITS.streams_per_session
    assert ServerConfig().limits.in_force == DEFAULT_LIMITS


# --- errors ---


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--nope"], "unrecognized arguments: --nope"),
        (["--rond-deadline", "3"], "unrecognized arguments"),
        (["--round", "3"], "unrecognized arguments"),
        (["stray"], "unrecognized arguments: stray"),
        (["--port"], "--port: expected one argument"),
        (["--port", "many"], "--port: "),
        (["--port", "65536"], "--port: "),
        (["--port", "-1"], "--port"),
        (["--round-deadline", "soon"], "--round-deadline: 'soon' is not a duration"),
        (["--round-deadline", "-5s"], "--round-deadline"),
        (["--join-window", "soon"], "d or days, or give forever"),
        (["--clients", "twelve"], "--clients: needs a whole number (got 'twelve')"),
        (["--alpha", "small"], "--alpha: needs a number (got 'small')"),
        (["--dataset", "custom", "--class-names", "cat,,dog"], "--class-names: 'cat,,dog' has an empty class name"),
        (["--round-deadline", "99999999999d"], "--round-deadline: "),
        (["--lease", "0"], "--lease: "),
        (["--participation", "0"], "--participation: "),
        (["--participation", "1.5"], "--participation: "),
        (["--participation", "nan"], "--participation: "),
        (["--min-clients", "0"], "--min-clients: "),
        (["--min-clients", "21"], "--min-clients is 21, but the run has only 20 clients"),
        (["--max-upload-bytes", "2000", "--max-bytes-in-flight", "1999"], "--max-upload-bytes 2 kB: the largest"),
        (["--max-upload-bytes", str(1 << 30)], "--max-bytes-in-flight is 512 MiB and"),
        (["--log-level", "loud"], "--log-level: "),
        (["--set", "k_top"], "--set: 'k_top' is not NAME=VALUE"),
        (["--set", "ktop=3"], "feddbp has no setting 'ktop'"),
        (["--set", "k_top=600"], "k_top is 600, but a prototype has 512 channels"),
        (["--method", "feddpb"], "did you mean 'feddbp'?"),
        (["--dataset", "mnist"], "no data set is called 'mnist'"),
        (["--dataset", "custom"], "--classes"),
        (["--wire-dtype", "float8"], "--wire-dtype: "),
        (["--learning-rate", "inf"], "--learning-rate: "),
        (["--host", "0.0.0.0"], "0.0.0.0"),
        (["--secure-sums", "--sums", "float"], "secure_sums adds up in fixed point, but sums = float is given"),
        (["--config", "missing.toml"], "--config missing.toml: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    assert words in complaint(capsys, *argv)


def test_a_mistake_in_a_variable_names_the_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDDBP_ROUNDS", "many")
    assert complaint(capsys).startswith("FEDDBP_ROUNDS: ")


def test_a_mistake_in_the_file_names_the_file_and_the_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[rounds]\nmin_clients = 'all'\n")
    assert complaint(capsys, "--config", str(file)).startswith(f"{file}: rounds.min_clients: ")
    file.write_text("[run.data]\nalhpa = 1\n")
    shown = f"--config {file}: there is no option 'run.data.alhpa'; did you mean 'run.data.alpha'?"
    assert complaint(capsys, "--config", str(file)) == shown


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_an_address_other_machines_can_reach_needs_an_option(host: str) -> None:
    with pytest.raises(ConfigurationError, match="insecure"):
        ListenConfig(host=host)
    assert ListenConfig(host=host, insecure=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_loopback_needs_none(host: str) -> None:
    assert ListenConfig(host=host).host == host


# --- help ---


def leaves(model: type[BaseModel], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, (*place, name))
        else:
            yield (*place, name), field


def shown_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


def test_every_option_is_in_the_help_with_its_variable_and_what_it_is_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = shown_help(capsys, monkeypatch)
    # an option whose flag is long has its text on the line below
    lines = [" ".join(line.split()) for line in re.sub(r"\n {4,}", " ", shown).splitlines()]
    names: dict[tuple[str, ...], str] = {
        ("run", "method_settings"): "set",
        ("run", "guide", "network"): "guide",
        ("run", "aggregation", "rule"): "aggregation",
        ("run", "privacy", "preset"): "privacy",
        ("listen", "json_output"): "json",
        ("listen", "dry_run_format"): "format",
    }
    options = list(leaves(ServerConfig))
    assert len(options) > 25
    for place, field in options:
        name = names.get(place, place[-1])
        flag, variable = "--" + name.replace("_", "-"), f"[FEDDBP_{name.upper()}]"
        assert field.description
        found = [line for line in lines if line.startswith((f"{flag} ", f"{flag},"))]
        if (field.json_schema_extra or {}).get("hidden"):  # for the file and the environment only
            assert not found
            continue
        (line,) = found
        assert line.endswith(variable)
        assert " ".join(field.description.split()) in line
        if field.annotation is not bool and field.default not in (None, (), {}, ""):
            assert "(default: " in line


def test_no_two_options_share_a_flag() -> None:
    names = [place[-1] for place, _ in leaves(ServerConfig)]
    assert len(set(names)) == len(names)


def test_the_help_is_grouped_as_the_configuration_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = shown_help(capsys, monkeypatch)
    for group in ("server:", "rounds:", "run:", "data:", "local training:", "wire:"):
        assert f"\n{group}\n" in shown


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("feddbp-server ")


@pytest.mark.parametrize("linger", ["-5", "-0.5"])
def test_lingering_has_no_negative_length(linger: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"[listen]\nlinger = {linger}\n")
    shown = complaint(capsys, "--config", str(file))
    assert shown.startswith(f"{file}: listen.linger: input should be greater than or equal to 0")
    assert "--linger: '-5s' is not a duration" in complaint(capsys, "--linger=-5s")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("FEDDBP_METHOD", "fedbdp", "FEDDBP_METHOD: no method is called 'fedbdp'; did you mean 'feddbp'?"),
        ("FEDDBP_DATASET", "mnist", "FEDDBP_DATASET: no data set is called 'mnist'"),
        ("FEDDBP_HOST", "10.0.0.1", "FEDDBP_HOST: 10.0.0.1 is an address that other machines may reach, and"),
        ("FEDDBP_HOST", "0.0.0.0", "FEDDBP_HOST: 0.0.0.0 is all interfaces of this machine, and connections"),
        ("FEDDBP_MIN_CLIENTS", "21", "FEDDBP_MIN_CLIENTS: --min-clients is 21, but the run has only 20 clients"),
        ("FEDDBP_SET", "ktop=3", "FEDDBP_SET: feddbp has no setting 'ktop'"),
        ("FEDDBP_LEASE", "2h", "FEDDBP_LEASE: --lease is 7200s and --round-deadline 1800s"),
        ("FEDDBP_REFLECTION", "perhaps", "FEDDBP_REFLECTION: needs true or false (got 'perhaps')"),
        ("FEDDBP_METRICS_PORT", "http", "FEDDBP_METRICS_PORT: needs a whole number (got 'http')"),
    ],
)
def test_an_error_in_a_variable_names_the_variable_and_the_value(
    variable: str, value: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert complaint(capsys).startswith(words)


# --- imports ---


def test_the_server_loads_neither_torch_nor_the_client() -> None:
    script = (
        "import sys, feddbp_server.app, feddbp_server.cli\n"
        "from feddbp_common.methods import METHODS\n"
        "for name in METHODS: METHODS[name].load_strategy()\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(json.loads(done.stdout.replace("'", '"')))
    assert not loaded & {"torch", "torchvision", "sklearn", "matplotlib", "PIL", "feddbp_client", "feddbp_lab"}
    assert {"feddbp_server", "feddbp_common", "grpc", "numpy"} <= loaded


def test_the_common_package_loads_neither_side() -> None:
    script = (
        "import pkgutil, importlib, sys, feddbp_common\n"
        "for found in pkgutil.walk_packages(feddbp_common.__path__, 'feddbp_common.'):\n"
        "    importlib.import_module(found.name)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert not set(done.stdout.split()) & {"torch", "feddbp_server", "feddbp_client", "feddbp_lab"}


def test_an_option_error_does_not_wait_for_the_server_to_load() -> None:
    script = (
        "import sys\nfrom feddbp_server.cli import main\nassert main(['--nope']) == 2\n"
        "print('feddbp_server.app' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_matrix_products_use_one_thread_on_any_machine() -> None:
    code = (
        "import numpy\n"
        "from threadpoolctl import threadpool_info\n"
        "from feddbp_server.process import prepare_process\n"
        "prepare_process()\n"
        "print({pool['num_threads'] for pool in threadpool_info() if pool['user_api'] == 'blas'})\n"
    )
    many = {**os.environ, "OPENBLAS_NUM_THREADS": "4"}
    shown = subprocess.run([sys.executable, "-c", code], env=many, capture_output=True, text=True, check=True)
    assert shown.stdout == "{1}\n"


def test_more_clients_than_files_may_be_open_are_refused_at_the_start(tmp_path: Path) -> None:
    script = 'ulimit -n 500; exec "$0" -m feddbp_server.cli --port 0 --clients 1000 --state-dir "$1"'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "may open 500 files, but 1000 clients need one each" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("earlier", [False, True], ids=["new", "of an earlier version"])
def test_the_log_file_is_readable_by_its_user_alone(tmp_path: Path, earlier: bool) -> None:
    log_file = tmp_path / "logs" / "server[1].log"
    renamed, other = log_file.with_name("server[1].log.1"), log_file.with_name("server[1].log.html")
    if earlier:
        log_file.parent.mkdir()
        for path in (log_file, renamed, other):
            path.touch()
            path.chmod(0o644)
    script = 'umask 022; ulimit -n 500; exec "$0" -m feddbp_server.cli --clients 1000 --state-dir "$1" --log-file "$2"'
    subprocess.run(  # ends after it has opened the file: it may not open enough for its clients
        ["bash", "-c", script, sys.executable, str(tmp_path / "state"), str(log_file)],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert log_file.stat().st_mode & 0o077 == 0
    if earlier:
        assert renamed.stat().st_mode & 0o777 == 0o600
        assert other.stat().st_mode & 0o777 == 0o644


# --- the state directory


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_state_directory_that_may_not_be_looked_into_is_named(
    options: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    directory = tmp_path / ("x" * 300)  # the system refuses to look, as in a directory of another user
    said = complaint(capsys, "--clients", "2", "--state-dir", str(directory), *options)
    assert said == f"the state directory {directory} cannot be used: File name too long"


def test_a_database_of_another_user_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / DATABASE_NAME).write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may do anything
    assert main(["--state-dir", str(tmp_path)]) == 1
    said = f"feddbp-server: error: {tmp_path / DATABASE_NAME} cannot be read: Permission denied\n"
    assert capsys.readouterr().err == said
