"""The Dockerfiles, as far as they can be judged without an engine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from deploy_files import CHECKOUT, DEPLOY, environment, pods, stages, yaml_text
from pydantic import BaseModel

from feddbp_client.config import ClientConfig
from feddbp_common.config.sources import options_of
from feddbp_server.config import ServerConfig

SERVER, CLIENT = DEPLOY / "server.Dockerfile", DEPLOY / "client.Dockerfile"
BOTH = pytest.mark.parametrize("dockerfile", [SERVER, CLIENT], ids=lambda path: path.stem)


def requirements(*extras: str) -> set[str]:
    """Names of what an image installs besides the project."""
    command = [sys.executable, str(DEPLOY / "requirements.py"), str(CHECKOUT / "pyproject.toml"), *extras]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {normal(re.split(r"[<>=!~\[; ]", line)[0]) for line in printed.splitlines()}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> set[str]:
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    return {normal(line.partition("==")[0]) for line in lines if not line.startswith("#")}


def test_the_server_needs_no_torch_and_the_client_does() -> None:
    assert {"grpcio", "numpy"} <= requirements()
    assert not {"torch", "torchvision"} & requirements()
    assert requirements() | {"torch", "torchvision"} <= requirements("client")


def test_everything_an_image_installs_is_pinned() -> None:
    assert requirements("client") <= pinned()


def test_each_image_asks_for_its_own_part() -> None:
    asked = "RUN python /src/requirements.py /src/pyproject.toml"
    assert any(line.startswith(f"{asked} > ") for line in stages(SERVER)["requirements"])
    assert any(line.startswith(f"{asked} client > ") for line in stages(CLIENT)["requirements"])


@pytest.mark.parametrize("stage", ["base", "wheel"])
def test_what_both_images_begin_with_is_the_same_so_that_it_is_made_once(stage: str) -> None:
    assert stages(SERVER)[stage] == stages(CLIENT)[stage]


@BOTH
def test_a_change_of_code_reaches_only_what_comes_after_the_dependencies(dockerfile: Path) -> None:
    found = stages(dockerfile)
    code = re.compile(r"COPY .*\b(proto|common|server|client|lab|\.)$")
    assert [name for name, lines in found.items() if any(map(code.match, lines))] == ["wheel"]
    brought = [line.split()[1] for line in found[""] if line.startswith("COPY ")]
    assert set(brought[:-1]) == {"--from=requirements"}
    assert brought[-1] == "--from=wheel"


def test_torch_is_installed_before_anything_that_changes_more_often() -> None:
    lines = stages(CLIENT)[""]
    torch = next(number for number, line in enumerate(lines) if "/torch.txt" in line and line.startswith("RUN"))
    constraints = next(number for number, line in enumerate(lines) if "/constraints.txt" in line)
    assert torch < constraints


def test_no_index_is_named() -> None:
    assert "ARG TORCH_INDEX_URL=" in stages(CLIENT)[""]
    for dockerfile in (SERVER, CLIENT):
        assert "://" not in dockerfile.read_text()


@BOTH
def test_nothing_needs_a_newer_builder(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    assert "<<" not in text
    assert not re.search(r"^#\s*syntax", text, re.MULTILINE)
    assert "--mount" not in text


def test_the_servers_health_is_checked_seldom_once_it_serves_and_often_before() -> None:
    (check,) = (line for line in stages(SERVER)[""] if line.startswith("HEALTHCHECK"))
    assert "--start-interval" not in check  # refused by builders before Docker 25, whose default it is
    seconds = {name: int(value) for name, value in re.findall(r"--([a-z-]+)=(\d+)s", check)}
    assert seconds["interval"] >= 30
    assert seconds["start-period"] > seconds["interval"]


@BOTH
def test_whoever_runs_it_is_not_root_and_is_the_same_everywhere(dockerfile: Path) -> None:
    assert "USER 10001:10001" in stages(dockerfile)[""]
    compose = yaml_text((DEPLOY / "docker-compose.yml").read_text())
    assert "--owner=10001" in compose["services"]["certificates"]["command"]
    assert {pod["securityContext"]["runAsUser"] for _, pod in pods()} == {10001}


@pytest.mark.parametrize(("dockerfile", "config"), [(SERVER, ServerConfig), (CLIENT, ClientConfig)])
def test_every_variable_is_an_option_of_the_command(dockerfile: Path, config: type[BaseModel]) -> None:
    variables = {name for name in environment(stages(dockerfile)[""]) if name.startswith("FEDDBP_")}
    assert "FEDDBP_CERTS" in variables
    assert variables <= {option.variable("FEDDBP_") for option in options_of(config)}


@BOTH
def test_every_file_it_copies_is_there_and_let_in(dockerfile: Path) -> None:
    ignore = (CHECKOUT / ".dockerignore").read_text().splitlines()
    let_in = {line[1:].rstrip("/") for line in ignore if line.startswith("!")}
    lines = [line for lines in stages(dockerfile).values() for line in lines]
    copied = {
        name for line in lines if line.startswith("COPY ") and "--from=" not in line for name in line.split()[1:-1]
    }
    assert copied == let_in
    assert all((CHECKOUT / name).exists() for name in copied)


def test_everything_else_stays_outside_the_images() -> None:
    lines = [line for line in (CHECKOUT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
