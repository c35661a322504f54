"""The Compose files: the committed ones are what the command prints, and what it prints is safe and complete."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deploy_files import CHECKOUT, DEPLOY, environment, stages, yaml_documents, yaml_text
from pydantic import BaseModel

from feddbp_client.config import ClientConfig
from feddbp_common.config.command_line import settings_parser
from feddbp_common.config.sources import resolve
from feddbp_lab.cli import main
from feddbp_lab.commands.compose import ComposeConfig, FileConfig, compose_file
from feddbp_lab.commands.options import DemoRun
from feddbp_server.config import ServerConfig

SIZES = pytest.mark.parametrize("clients", [1, 8, 20])


def written(clients: int = 8, **file: Any) -> dict[str, Any]:
    return yaml_text(compose_file(ComposeConfig(file=FileConfig(**file), run=DemoRun(clients=clients))))


def mounts(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """By volume: where it is, and whether it is only read."""
    found = {}
    for volume in service.get("volumes", ()):
        name, target, *mode = volume.split(":")
        found[name] = (target, mode == ["ro"])
    return found


def resolved(model: type[BaseModel], arguments: list[str], dockerfile: str) -> Any:
    """The options as the command in the image understands them."""
    image = environment(stages(DEPLOY / dockerfile)[""])
    flags = settings_parser("x", "", model).parse_args(arguments)
    return resolve(model, flags, env_prefix="FEDDBP_", environ=image)


# --- the committed files ---


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.gpu.yml"])
def test_a_committed_file_is_what_its_own_first_lines_say_makes_it(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    committed = (DEPLOY / name).read_text()
    made_by = re.search(r"^# Made by `(.*?)`", committed, re.MULTILINE)
    assert made_by is not None
    program, *arguments = shlex.split(made_by[1])
    assert program == "feddbp"
    assert main(arguments) == 0
    assert capsys.readouterr().out == committed


def test_the_default_is_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compose"]) == 0
    assert capsys.readouterr().out == (DEPLOY / "docker-compose.yml").read_text()
    command = written()["services"]["server"]["command"]
    assert resolved(ServerConfig, command, "server.Dockerfile").run == DemoRun().as_run()


def test_a_base_installation_without_jinja2_prints_the_same_file() -> None:
    code = "import sys; sys.modules['jinja2'] = None; from feddbp_lab.cli import main; sys.exit(main(['compose']))"
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed == (DEPLOY / "docker-compose.yml").read_text()


def test_what_a_file_was_made_by_makes_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "compose",
        "--clients=3",
        "--method=fedproto",
        "--data-dir=../my data",
        "--dataset=cifar10",
        "--seed=7",
    ]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    told = re.search(r"`feddbp (.*?)`", first)
    assert told is not None
    assert main(shlex.split(told[1])) == 0
    assert capsys.readouterr().out == first


# --- hardening ---


@SIZES
def test_every_service_is_hardened(clients: int) -> None:
    for name, service in written(clients)["services"].items():
        assert service["init"] is True, name
        assert service["read_only"] is True, name
        assert service["tmpfs"] == ["/tmp"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["pids_limit"] > 0, name
        assert "privileged" not in service, name
        assert "ports" not in service, name


def test_only_the_maker_of_certificates_is_root_and_it_has_no_network() -> None:
    services = written()["services"]
    assert {name for name, service in services.items() if "user" in service or "cap_add" in service} == {"certificates"}
    assert services["certificates"]["cap_add"] == ["CHOWN"]
    assert services["certificates"]["network_mode"] == "none"


def test_the_network_leads_nowhere() -> None:
    file = written()
    assert file["networks"] == {"federation": {"internal": True}}
    others = [service for name, service in file["services"].items() if name != "certificates"]
    assert all(service["networks"] == ["federation"] for service in others)


# --- identities ---


@SIZES
def test_every_client_has_its_own_id_certificate_and_state(clients: int) -> None:
    services = written(clients)["services"]
    for number in range(clients):
        service = services[f"client-{number}"]
        config = resolved(ClientConfig, service["command"], "client.Dockerfile")
        assert config.identity.id == number
        assert config.identity.server == "server:50051"
        assert mounts(service) == {
            f"certs-client-{number}": (str(config.identity.certs), True),
            f"state-client-{number}": (str(config.identity.state_dir), False),
        }
    assert f"client-{clients}" not in services


@SIZES
def test_a_key_is_seen_by_its_owner_and_its_maker_alone(clients: int) -> None:
    services = written(clients)["services"]
    seen: dict[str, set[str]] = {}
    for name, service in services.items():
        for volume in mounts(service):
            seen.setdefault(volume, set()).add(name)
    assert seen.pop("authority") == {"certificates"}
    assert seen.pop("certs-operator") == {"certificates", "status"}
    for volume, readers in seen.items():
        kind, _, owner = volume.partition("-")
        assert readers == ({owner, "certificates"} if kind == "certs" else {owner})


@SIZES
def test_certificates_are_made_for_exactly_these_clients(clients: int) -> None:
    file = written(clients)
    service = file["services"]["certificates"]
    assert f"--ids=0-{clients - 1}" in service["command"]
    parties = {target.removeprefix("/parties/") for target, _ in mounts(service).values()}
    assert parties == {"authority", "server", "operator", *(f"client-{number}" for number in range(clients))}
    assert all(volume in file["volumes"] for every in file["services"].values() for volume in mounts(every))


# --- order and end ---


@SIZES
def test_everyone_waits_for_what_it_needs_and_comes_back_after_a_crash(clients: int) -> None:
    services = written(clients)["services"]
    made, healthy = {"condition": "service_completed_successfully"}, {"condition": "service_healthy"}
    assert services["server"]["depends_on"] == {"certificates": made}
    for name in ("server", *(f"client-{number}" for number in range(clients))):
        assert services[name]["restart"].startswith("on-failure"), name
        if name != "server":
            assert services[name]["depends_on"] == {"certificates": made, "server": healthy}
    assert any(line.startswith("HEALTHCHECK") for line in stages(DEPLOY / "server.Dockerfile")[""])


@SIZES
def test_the_server_waits_for_all_clients(clients: int) -> None:
    config = resolved(ServerConfig, written(clients)["services"]["server"]["command"], "server.Dockerfile")
    assert config.rounds.min_clients == config.run.clients == clients
    assert config.listen.host == "0.0.0.0"
    assert mounts(written(clients)["services"]["server"]) == {
        "certs-server": (str(config.listen.certs), True),
        "state-server": (str(config.listen.state_dir), False),
    }


def test_each_image_is_built_once() -> None:
    built = {name: service["image"] for name, service in written()["services"].items() if "build" in service}
    assert built == {"server": "feddbp-server", "client-0": "feddbp-client"}


@SIZES
def test_clients_do_not_compete_for_cores(clients: int) -> None:
    services = written(clients)["services"]
    for number in range(clients):
        client = services[f"client-{number}"]
        assert client["environment"] == {"FEDDBP_THREADS": "1"}
        given = [f"--{name.removeprefix('FEDDBP_').lower()}={value}" for name, value in client["environment"].items()]
        assert resolved(ClientConfig, [*client["command"], *given], "client.Dockerfile").compute.threads == 1


# --- options ---


def test_method_settings_are_told_to_the_server_only_where_they_differ() -> None:
    run = DemoRun(method_settings={"tau": 0.2})
    command = yaml_text(compose_file(ComposeConfig(run=run)))["services"]["server"]["command"]
    assert [argument for argument in command if argument.startswith("--set")] == ["--set=tau=0.2"]
    assert resolved(ServerConfig, command, "server.Dockerfile").run == run.as_run()


@pytest.mark.parametrize(
    ("directory", "source"),
    # a bare word is still a directory, beside the file, and no volume; one called 2024 is still a word
    [("data", "data"), ("./2024", "2024"), ("../sets", "../sets"), ("/mnt/a $5: #disk", "/mnt/a $$5: #disk")],
)
def test_a_directory_of_data_is_mounted_to_be_read_whatever_it_is_called(directory: str, source: str) -> None:
    file = written(2, data_dir=Path(directory))
    for client in ("client-0", "client-1"):
        mount = file["services"][client]["volumes"][-1]
        assert mount.pop("bind") == {"create_host_path": False}
        assert mount == {"type": "bind", "source": source, "target": "/data", "read_only": True}
    assert source not in file["volumes"]
    assert environment(stages(DEPLOY / "client.Dockerfile")[""])["FEDDBP_DATA_DIR"] == "/data"


def test_data_that_would_have_to_be_downloaded_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compose", "--dataset", "cifar10"]) == 2
    assert "cannot download CIFAR-10; give --data-dir" in capsys.readouterr().err


def test_gpus_go_round_among_the_clients() -> None:
    services = written(5, gpus=2)["services"]
    devices = [service["deploy"]["resources"]["reservations"]["devices"][0] for service in services.values()]
    assert [device["device_ids"] for device in devices] == [["0"], ["1"], ["0"], ["1"], ["0"]]
    assert set(services) == {name for name in written(5)["services"] if name.startswith("client-")}


# --- monitoring ---


def test_the_monitoring_overlay_finds_the_files_and_addresses_it_builds_on() -> None:
    (overlay,) = yaml_documents(DEPLOY / "docker-compose.monitoring.yml")
    services = overlay["services"]
    files = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", ())]
    assert all((DEPLOY / file).exists() for file in files if file.startswith("./"))
    port = services["server"]["environment"]["FEDDBP_METRICS_PORT"]
    assert f"127.0.0.1:{port}" in (DEPLOY / "monitoring/prometheus.yml").read_text()
    assert f"s/127.0.0.1:{port}/server:{port}/" in services["prometheus"]["command"][0]
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", ()))


# --- the trials ---


def test_trials_say_that_they_are_skipped_where_there_is_no_engine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.trials"],
        cwd=CHECKOUT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "SKIPPED" in done.stdout
