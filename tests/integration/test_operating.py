"""`feddbp status`, `pause`, `resume` and `stop` against real servers, with and without certificates and tokens."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from light_runs import Crowd, status_when
from processes import Federation, federation

from feddbp_common.artifacts import AUDIT_NAME, TOKENS_NAME
from feddbp_common.rpc.credentials import OPERATOR, SERVER, client_subject
from feddbp_lab.cli import main
from feddbp_lab.pki.certificates import Authority, write_secret

WAITING_RUN = ("--clients", 3, "--min-clients", 3, "--rounds", 5, "--linger", 0)
TOKENS = {OPERATOR: "of-the-operator", client_subject(0): "of-client-0"}


class Operator:
    """Gives commands to a server."""

    def __init__(self, running: Federation, *access: object) -> None:
        self._where = ["--server", running.address, *map(str, access)]

    def __call__(self, command: str, *options: str) -> int:
        return main([command, *self._where, *options])


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("FEDDBP_")]:
        monkeypatch.delenv(variable)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    authority = Authority.create(directory)
    authority.issue_server(["127.0.0.1"])
    for subject in (client_subject(0), OPERATOR):
        authority.issue_party(subject)
    return directory


def as_somebody(certs: Path, directory: Path, subject: str | None) -> Path:
    """A directory in which the operator's certificate is that of another, or missing."""
    directory.mkdir()
    shutil.copy(certs / "ca.pem", directory)
    for kind in ("pem", "key"):
        if subject is not None:
            shutil.copy(certs / f"{subject}.{kind}", directory / f"operator.{kind}")
    return directory


# --- without credentials ---


def test_a_run_is_held_and_goes_on_and_ends_as_it_is_told(
    running_federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    server = running_federation.server(*WAITING_RUN)
    operator = Operator(running_federation)
    assert operator("pause") == 0
    assert capsys.readouterr().out == "paused before round 1/5\n"
    assert operator("pause") == 0  # it is what was asked for
    assert operator("resume") == 0
    assert capsys.readouterr().out == "paused before round 1/5\nwaiting for clients 0/3\n"
    assert operator("stop", "--yes", "--reason", "the wrong data") == 0
    assert capsys.readouterr().out == "stopped after 0/5 rounds   the wrong data\n"
    server.expect_exit(5)
    assert running_federation.summary()["reason"] == "the wrong data"
    for what in ("paused", "resumed"):
        assert server.log.count(f"an operator has {what} the run") == 1  # the second pause changed nothing
    audit = (running_federation.state_dir / AUDIT_NAME).read_text().splitlines()
    assert [json.loads(line)["what"] for line in audit] == ["paused", "resumed", "ended"]


def test_orders_that_come_too_late_say_so(running_federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    # over, but there for a while: somebody who had joined has not heard of it
    running_federation.server(*WAITING_RUN, "--linger", "60s")
    asyncio.run(joined(running_federation))
    operator = Operator(running_federation)
    assert operator("stop", "--yes") == 0
    for late in ("pause", "resume"):
        assert operator(late) == 1
    assert operator("stop", "--yes") == 0  # it is
    assert capsys.readouterr().out == 4 * "stopped after 0/5 rounds   stopped by an operator\n"


async def joined(running: Federation) -> None:
    async with Crowd(running.address, [0]):
        await status_when(running.address, lambda status: len(status.clients) == 1, "the join")


def test_the_answer_as_json(running_federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    running_federation.server(*WAITING_RUN)
    assert Operator(running_federation)("pause", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["phase"], told["held_phase"], told["round"], told["rounds"]) == ("paused", "waiting", 0, 5)


def test_no_server_is_one_line_and_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("pause", "resume"):
        assert main([command, "--server", "127.0.0.1:1"]) == 3
    assert main(["stop", "--yes", "--server", "127.0.0.1:1"]) == 3
    assert capsys.readouterr().err == 3 * "feddbp: error: no server answers at 127.0.0.1:1: connection refused\n"


# --- asking before a run is stopped ---


@contextmanager
def typed(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A terminal at which somebody types."""
    ours, theirs = pty.openpty()
    with (
        os.fdopen(ours, "wb", buffering=0) as keyboard,
        os.fdopen(theirs) as terminal,
        monkeypatch.context() as patched,
    ):
        patched.setattr(sys, "stdin", terminal)
        keyboard.write(answer)
        yield


def test_on_a_terminal_a_stop_has_to_be_meant(
    running_federation: Federation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running_federation.server(*WAITING_RUN)
    operator = Operator(running_federation)
    question = f"waiting for clients 0/3\nStop the run at {running_federation.address} for good? [y/N] "
    for answer in (b"\n", b"n\n", b"\x04"):
        with typed(answer, monkeypatch):
            assert operator("stop") == 1
        assert capsys.readouterr() == ("", f"{question}not stopped: the run continues\n")
    with typed(b"y\n", monkeypatch):
        assert operator("stop") == 0
    assert capsys.readouterr() == ("stopped after 0/5 rounds   stopped by an operator\n", question)


def test_where_nobody_can_be_asked_a_stop_needs_a_yes(
    running_federation: Federation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running_federation.server(*WAITING_RUN)
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert Operator(running_federation)("stop") == 2
    assert "confirm by --yes" in capsys.readouterr().err
    assert Operator(running_federation)("status", "--json") == 0
    assert json.loads(capsys.readouterr().out)["phase"] == "waiting"


# --- credentials ---

ORDERS = [("status",), ("pause",), ("resume",), ("stop", "--yes")]


@pytest.fixture(scope="module")
def with_certificates(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("certificates")) as running:
        running.server("--certs", certs, *WAITING_RUN)
        yield running


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_a_clients_certificate_gives_no_orders(
    order: tuple[str, ...],
    with_certificates: Federation,
    certs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    impostor = as_somebody(certs, tmp_path / "impostor", client_subject(0))
    assert Operator(with_certificates, "--certs", impostor)(*order) == 4
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        f"feddbp: error: the server at {with_certificates.address} refuses the request: "
        "the certificate of 'client-0' may not act as 'operator'\n"
    )


def test_without_a_certificate_nobody_gets_as_far_as_an_order(
    with_certificates: Federation, certs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = as_somebody(certs, tmp_path / "nobody", None)
    assert Operator(with_certificates, "--certs", nobody)("pause") == 2
    assert "cannot read operator.key: No such file or directory; `feddbp certs operator` makes it" in (
        capsys.readouterr().err
    )
    assert Operator(with_certificates)("pause") == 3  # in the clear, to a server that speaks TLS
    assert "no server answers" in capsys.readouterr().err


def test_a_certificate_of_another_authority_is_told_as_what_it_is(
    with_certificates: Federation, certs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    Authority.create(other).issue_party(OPERATOR)
    address = with_certificates.address
    assert Operator(with_certificates, "--certs", other)("pause") == 3  # it does not trust the server
    assert f"no server answers at {address}: certificate " in capsys.readouterr().err
    shutil.copy(certs / "ca.pem", other)
    assert Operator(with_certificates, "--certs", other)("pause") == 3  # the server does not trust it
    assert f"no server answers at {address}: it closes the connection, perhaps" in capsys.readouterr().err


def test_a_server_whose_certificate_has_expired_meanwhile(
    certs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expired = tmp_path / "expired"
    shutil.copytree(certs, expired)
    Authority.load(expired).issue_server(["127.0.0.1"], lifetime=-timedelta(hours=1))
    pair = (expired / f"{SERVER}.key").read_bytes(), (expired / f"{SERVER}.pem").read_bytes()
    server = grpc.server(ThreadPoolExecutor(1))  # ours would not start with it
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    try:
        assert main(["status", "--server", f"127.0.0.1:{port}", "--certs", str(certs)]) == 3
    finally:
        server.stop(None).wait()
    expected = f"feddbp: error: no server answers at 127.0.0.1:{port}: certificate has expired\n"
    assert capsys.readouterr().err == expected


def test_the_operators_certificate_is_obeyed(
    with_certificates: Federation, certs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = Operator(with_certificates, "--certs", certs)
    assert operator("pause") == 0
    assert operator("resume") == 0
    assert operator("status") == 0
    assert capsys.readouterr().out.startswith("paused before round 1/5\nwaiting for clients 0/3\n")
    refused = with_certificates.state_dir / AUDIT_NAME
    whose = {line["call"] for line in map(json.loads, refused.read_text().splitlines()) if line["what"] == "refused"}
    assert whose <= {"GetStatus", "Pause", "Resume", "Stop"}


@pytest.fixture(scope="module")
def with_tokens(certs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    directory = tmp_path_factory.mktemp("tokens")
    tokens = directory / TOKENS_NAME
    write_secret(tokens, "".join(f"{name} {token}\n" for name, token in TOKENS.items()).encode())
    with federation(directory / "federation") as running:
        running.server("--certs", certs, "--token-file", tokens, *WAITING_RUN)
        yield running


@pytest.mark.parametrize("token", [TOKENS[client_subject(0)], "made-up", None])
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_any_token_but_the_operators_gives_no_orders(
    order: tuple[str, ...],
    token: str | None,
    with_tokens: Federation,
    certs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown: tuple[object, ...] = ()
    if token is not None:
        (tmp_path / "token").write_text(token)
        shown = ("--token-file", tmp_path / "token")
    assert Operator(with_tokens, "--certs", certs, *shown)(*order) == 4
    assert "refuses the request: the token is not that of 'operator'\n" in capsys.readouterr().err


def test_the_operators_token_is_obeyed(
    with_tokens: Federation, certs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text(TOKENS[OPERATOR])
    operator = Operator(with_tokens, "--certs", certs, "--token-file", tmp_path / "token")
    assert operator("pause") == 0
    assert operator("resume") == 0
    assert capsys.readouterr().out == "paused before round 1/5\nwaiting for clients 0/3\n"
