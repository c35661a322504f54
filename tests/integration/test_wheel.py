"""The wheel and the source archive, and the commands as somebody runs them who has installed the wheel."""

from __future__ import annotations

import json
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from deploy_files import CHECKOUT
from processes import PATIENCE, wait_until
from wheels import Built, Installation, build, install, installed_here, only

PYPROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
PACKAGES = [CHECKOUT / name for name in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
NOT_FOR_THE_SERVER = ("torch", "torchvision", "sklearn", "matplotlib")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def with_everything(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel beside all that is installed here."""
    return install(built.wheel, tmp_path_factory.mktemp("everything") / "venv", installed_here())


@pytest.fixture(scope="module")
def server_only(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel beside what it requires without an extra: what `pip install feddbp` gives."""
    place = tmp_path_factory.mktemp("server")
    return install(built.wheel, place / "venv", [only(built.base_requirements(), place / "base")])


def test_the_wheel_has_every_file_of_the_packages(built: Built) -> None:
    files = {
        file.relative_to(package.parent).as_posix()
        for package in PACKAGES
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {"feddbp_lab/py.typed", "feddbp_lab/experiments/builtin/table1.toml"} <= files
    assert {name for name in zipfile.ZipFile(built.wheel).namelist() if ".dist-info/" not in name} == files


def test_the_source_archive_has_the_sources_and_what_their_tests_read(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = ["pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"]
    tests = [path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "tests").rglob("*.py")]
    pages = [path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "docs").rglob("*.md")]
    assert tests
    assert pages
    assert {*files, *tests, *pages, ".dockerignore", "deploy/server.Dockerfile"} <= names


def test_commands_run_the_code_of_the_wheel(with_everything: Installation, tmp_path: Path) -> None:
    names = [package.name for package in PACKAGES]
    shown = f"import {', '.join(names)}\nfor package in ({', '.join(names)}): print(package.__file__)"
    lines = with_everything.run("python", "-c", shown, cwd=tmp_path).stdout.splitlines()
    assert len(lines) == len(PACKAGES)
    assert all(Path(line).is_relative_to(with_everything.home) for line in lines), lines
    printed = with_everything.run("feddbp", "--version", cwd=tmp_path).stdout
    assert printed == f"feddbp {PYPROJECT['project']['version']}\n"


def test_a_demo_runs_from_any_directory(with_everything: Installation, tmp_path: Path) -> None:
    smallest = ("--clients", 2, "--rounds", 1, "--local-epochs", 1, "--processes", 1, "--device", "cpu")
    done = with_everything.run("feddbp", "demo", *smallest, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    clients = [row[:2] for row in rows if len(row) > 1 and row[1].startswith("mini_")]
    assert clients == [["0", "mini_plain"], ["1", "mini_residual"]]
    assert [row[0] for row in rows[-10:-3]] == ["accuracy", "best", "traffic", "time", "sha256", "files", "next"]
    report, *_ = (row[1:] for row in rows[-4:])
    assert with_everything.run(*report[: report.index("#")], cwd=tmp_path).returncode == 0
    results = tmp_path / "runs" / "demo-feddbp-digits"
    assert json.loads((results / "summary.json").read_text())["outcome"] == "finished"
    assert {json.loads(line)["client"] for line in (results / "metrics.jsonl").read_text().splitlines()} == {0, 1}
    assert (results / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_server_needs_only_what_the_wheel_requires(server_only: Installation, tmp_path: Path) -> None:
    endpoint = tmp_path / "state" / "endpoint.json"
    options = ("--port", 0, "--state-dir", tmp_path / "state", "--metrics-port", 0, "--reflection")
    with server_only.start("feddbp-server", *options, cwd=tmp_path) as server:
        try:
            wait_until(lambda: endpoint.exists() or server.poll() is not None, "the server's start")
            assert server.poll() is None, server.communicate()[1]
            address = f"127.0.0.1:{json.loads(endpoint.read_text())['port']}"
            health = server_only.run("feddbp", "health", "--server", address, cwd=tmp_path)
            assert (health.returncode, health.stdout) == (0, "serving\n"), health.stderr
            server.terminate()
            assert server.wait(PATIENCE) == 130
        finally:
            server.kill()


@pytest.mark.parametrize("command", [("certs", "init", "certs"), ("methods", "fedtgp"), ("experiment", "list")])
def test_what_an_operator_runs_beside_a_server_needs_no_more(
    command: tuple[str, ...], server_only: Installation, tmp_path: Path
) -> None:
    done = server_only.run("feddbp", *command, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", NOT_FOR_THE_SERVER)
def test_the_base_installation_brings_no(name: str, server_only: Installation, tmp_path: Path) -> None:
    done = server_only.run("python", "-c", f"import {name}", cwd=tmp_path)
    assert f"No module named '{name}'" in done.stderr


@pytest.mark.parametrize(
    ("command", "words", "extra"),
    [("feddbp", ("demo",), "lab"), ("feddbp-client", ("--id", 0), "client")],
    ids=["demo", "client"],
)
def test_without_torch_a_command_says_in_one_line_how_to_install_it(
    command: str, words: tuple[object, ...], extra: str, built: Built, server_only: Installation, tmp_path: Path
) -> None:
    done = server_only.run(command, *words, cwd=tmp_path)
    assert done.returncode == 2
    (complaint,) = done.stderr.splitlines()
    assert complaint.startswith(f"{command}: error: ")
    assert " needs torch, safetensors, PIL" in complaint
    assert complaint.endswith(f"install 'feddbp[{extra}] @ {built.wheel.as_uri()}'")


def test_without_matplotlib_a_report_has_its_table(
    with_everything: Installation, server_only: Installation, tmp_path: Path
) -> None:
    smallest = ("--clients", 1, "--rounds", 1, "--local-epochs", 1, "--processes", 1, "--device", "cpu")
    assert with_everything.run("feddbp", "demo", *smallest, "--out", "run", cwd=tmp_path).returncode == 0
    (tmp_path / "run" / "curves.png").unlink()
    done = server_only.run("feddbp", "report", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("FedDBP on digits, seed 0")
    assert "files     run/: summary.json, metrics.jsonl" in done.stdout
    (note,) = done.stderr.splitlines()
    assert note.startswith("feddbp report: no curves were drawn: they need matplotlib, jinja2: ")
    assert not (tmp_path / "run" / "curves.png").exists()
