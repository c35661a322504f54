"""Clients that are given the wrong address or certificates end at once, with one line, instead of retrying."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from processes import Command, Federation, federation

from feddbp_common.errors import ExitCode
from feddbp_common.rpc.credentials import client_subject
from feddbp_lab.pki.certificates import Authority

WAITING_RUN = ("--clients", 3, "--min-clients", 3)


def made(directory: Path, *hosts: str) -> Path:
    authority = Authority.create(directory)
    authority.issue_server(hosts)
    for number in range(2):
        authority.issue_party(client_subject(number))
    return directory


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates: ours, those of another authority, and ours for a server of another name."""
    directory = tmp_path_factory.mktemp("wrong")
    shutil.copytree(made(directory / "ours", "127.0.0.1"), directory / "renamed")
    Authority.load(directory / "renamed").issue_server(["fl.example.org"])
    made(directory / "other", "127.0.0.1")
    return directory


@pytest.fixture(scope="module")
def addresses(place: Path) -> Iterator[dict[str, str]]:
    """Servers without TLS, with it, with another name, and of web pages."""
    running = {name: Federation(place / name) for name in ("plain", "tls", "elsewhere")}
    for name, options in {
        "plain": (),
        "tls": ("--certs", place / "ours"),
        "elsewhere": ("--certs", place / "renamed"),
    }.items():
        running[name].directory.mkdir()
        running[name].server(*WAITING_RUN, *options)
    pages = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(place)))
    Thread(target=pages.serve_forever, daemon=True).start()
    try:
        yield {
            **{name: server.address for name, server in running.items()},
            "pages": f"127.0.0.1:{pages.server_port}",
        }
    finally:
        pages.shutdown()
        pages.server_close()
        for server in running.values():
            server.stop_all()


@pytest.mark.parametrize(
    ("server", "certs", "code", "message"),
    [
        ("tls", "other", 2, "has a certificate of another authority than ca.pem"),
        ("elsewhere", "ours", 2, "the server's certificate is not for 127.0.0.1, but for fl.example.org;"),
        ("plain", "ours", 2, "the server does not use TLS; leave out --certs"),
        ("tls", None, 2, "the server uses TLS; give --certs"),
        ("pages", None, 2, "it does not speak HTTP/2; check the port"),
        ("pages", "ours", 2, "it does not speak HTTP/2; check the port"),
    ],
)
def test_a_client_with_the_wrong_server_ends_at_once(
    server: str, certs: str | None, code: int, message: str, addresses: dict[str, str], place: Path, tmp_path: Path
) -> None:
    with federation(tmp_path / "client") as running:
        credentials = () if certs is None else ("--certs", place / certs)
        client = running.start(
            "feddbp_client.cli", "--ids", "0-1", "--server", addresses[server], *credentials, name="client"
        )
        client.expect_exit(code)
        line = only_problem(client)
    assert line.startswith("feddbp-client: error: --")
    assert message in line


def only_problem(client: Command) -> str:
    """The one line of a client's log that is neither of its device nor of its data."""
    (line,) = [line for line in client.log.splitlines() if " INFO " not in line]
    return line


def test_failed_handshakes_do_not_break_json_logs(place: Path, running_federation: Federation, tmp_path: Path) -> None:
    server = running_federation.server(*WAITING_RUN, "--certs", place / "ours", "--json")
    for certs in ((), ("--certs", place / "other")):
        options = ("--id", 0, "--server", running_federation.address, "--json", *certs)
        client = running_federation.start("feddbp_client.cli", *options, name="client")
        client.expect_exit(2)
        levels = [json.loads(line)["level"] for line in client.log.splitlines()]
        assert [level for level in levels if level != "info"] == ["error"]
    server.terminate()
    server.expect_exit(ExitCode.INTERRUPTED)
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert {line["level"] for line in lines} == {"info"}


def test_a_client_whose_certificate_the_server_does_not_accept_ends_at_once(
    addresses: dict[str, str], place: Path, running_federation: Federation, tmp_path: Path
) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(place / "other", mixed)
    shutil.copy(place / "ours" / "ca.pem", mixed)
    options = ("--id", 0, "--server", addresses["tls"], "--certs", mixed)
    client = running_federation.start("feddbp_client.cli", *options, name="client")
    client.expect_exit(ExitCode.REFUSED)
    assert only_problem(client) == (
        f"feddbp-client: error: the server at {addresses['tls']} does not accept {mixed}/client-0.pem: "
        "it closes the connection"
    )
