"""Mistakes on the command line: one clear line, the right exit code, no traceback."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from light_runs import Crowd, start_server, status_when
from processes import Command, Federation


def expect_one_line(command: Command, code: int, *fragments: str) -> None:
    command.expect_exit(code)
    errors = [line for line in command.log.splitlines() if " error: " in line]
    assert len(errors) == 1, command.log
    assert "Traceback" not in command.log
    for fragment in fragments:
        assert fragment in errors[0]


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["--prot", "1"], ["--prot", "--help"]),
        (["--port", "http"], ["--port", "'http'"]),
        (["--port", "70000"], ["--port", "65535"]),
        (["--rounds", "0"], ["--rounds", "greater than or equal to 1"]),
        (["--method", "fedbdp"], ["'fedbdp'", "'feddbp'"]),
        (["--dataset", "mnist"], ["'mnist'", "digits"]),
        (["--set", "tau"], ["--set", "NAME=VALUE"]),
        (["--set", "tua=1"], ["'tua'", "tau"]),
        (["--set", "k_top=600"], ["600", "512"]),
        (["--clients", "3", "--min-clients", "4"], ["--min-clients", "3 clients"]),
        (["--round-deadline", "soon"], ["--round-deadline", "'soon'"]),
        (["--config", "nowhere.toml"], ["nowhere.toml", "No such file"]),
        (["--host", "0.0.0.0"], ["0.0.0.0", "--insecure"]),
    ],
)
def test_a_mistake_in_the_servers_flags(
    arguments: list[str], fragments: list[str], running_federation: Federation
) -> None:
    expect_one_line(running_federation.start("feddbp_server.cli", *arguments, name="server"), 2, *fragments)


@pytest.mark.parametrize("as_json", [False, True], ids=["plain", "json"])
def test_a_port_that_is_in_use_is_one_line_of_our_own(as_json: bool, running_federation: Federation) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = ("--port", port, *(("--json",) if as_json else ()))
        server = running_federation.start("feddbp_server.cli", *options, name="server")
        server.expect_exit(2)
    (line,) = server.log.splitlines()
    message = f"error: cannot listen on 127.0.0.1:{port}: Address already in use; another --port or --host may be free"
    assert (json.loads(line)["message"] if as_json else line.removeprefix("feddbp-server: ")) == message


async def test_a_state_directory_of_another_run(running_federation: Federation) -> None:
    server = await start_server(running_federation, "--clients", 2, "--seed", 3)
    async with Crowd(running_federation.address, [0]):
        await status_when(running_federation.address, lambda status: len(status.clients) == 1, "a join")
    server.kill()
    options = ("--state-dir", running_federation.state_dir, "--clients", 2, "--seed", 4)
    server = running_federation.start("feddbp_server.cli", *options, name="server")
    expect_one_line(server, 2, "seed is 3 there and 4 here")


@pytest.mark.parametrize(
    ("arguments", "code", "fragments"),
    [
        ([], 2, ["--id"]),
        (["--id", "0", "--ids", "0-3"], 2, ["--id", "--ids"]),
        (["--ids", "3-1"], 2, ["--ids", "3-1"]),
        (["--id", "-1"], 2, ["--id"]),
        (["--id", "0", "--gpu", "1"], 2, ["--gpu 1", "torch sees"]),
        (["--id", "0", "--device", "tpu9"], 2, ["tpu9"]),
        (["--id", "0", "--allow-import", "own,a b"], 2, ["--allow-import", "'a b'"]),
        (
            ["--id", "0", "--server", "127.0.0.1:1", "--patience", "1s"],
            3,
            [
                "127.0.0.1:1 does not answer",
                "gave up after 1s: is feddbp-server running there? --server HOST:PORT names",
            ],
        ),
    ],
)
def test_a_mistake_in_the_clients_flags(
    arguments: list[str], code: int, fragments: list[str], running_federation: Federation
) -> None:
    expect_one_line(running_federation.start("feddbp_client.cli", *arguments, name="client"), code, *fragments)


def test_a_client_without_tls_beyond_this_machine_is_warned(running_federation: Federation, tmp_path: Path) -> None:
    token = tmp_path / "client-0.token"
    token.write_text("abc")
    far = ("--server", "nowhere.invalid:50051", "--insecure", "--token-file", token, "--patience", "0s")
    client = running_federation.start("feddbp_client.cli", "--id", "0", *far, name="client")
    client.expect_exit(3)
    assert "WARNING the connection to nowhere.invalid:50051 is unencrypted" in client.log


@pytest.mark.parametrize(
    ("content", "fragment"),
    [(None, "images.npz"), (b"PK\x03\x04 this is no archive", "images.npz")],
    ids=["missing", "corrupt"],
)
def test_private_data_that_cannot_be_read(
    content: bytes | None, fragment: str, running_federation: Federation, tmp_path: Path
) -> None:
    running_federation.server()
    path = tmp_path / "images.npz"
    if content is not None:
        path.write_bytes(content)
    expect_one_line(running_federation.client("0", "--data", path), 2, fragment)


def test_an_id_the_run_does_not_have(running_federation: Federation) -> None:
    running_federation.server("--clients", 4)
    expect_one_line(running_federation.client("4"), 2, "client id 4", "0 to 3")


def test_a_transform_that_the_clients_operator_has_not_allowed(running_federation: Federation) -> None:
    module = running_federation.directory / "own_changes.py"
    module.write_text("def same(pixels, generator):\n    return pixels\n")
    running_federation.server(
        *("--clients", 1, "--rounds", 1, "--local-epochs", 1, "--linger", "0s"),
        *("--augment", "randaugment", "--transform", "own_changes:same"),
    )
    expect_one_line(running_federation.client("0"), 2, "transform own_changes:same", "--allow-import own_changes")
    running_federation.client("0", "--allow-import", "own_changes").expect_exit(0)
