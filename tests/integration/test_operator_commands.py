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
from processes import Federation, federation, wait_until

from feddbp_client.daemon.connection import CallRefusedError
from feddbp_common.artifacts import AUDIT_NAME, TOKENS_NAME
from feddbp_common.rpc.credentials import OPERATOR, SERVER, client_subject
from feddbp_lab.cli import main
from feddbp_lab.pki.certificates import Authority, write_secret

WAITING = "waiting for clients 0/3 joined   missing clients 0-2"
WAITING_RUN = ("--clients", 3, "--min-clients", 3, "--rounds", 5, "--linger", 0)
TOKENS = {OPERATOR: "of-the-operator", client_subject(0): "of-client-0"}


class Operator:
    """Runs commands against a server."""

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


def with_operator_of(certs: Path, directory: Path, subject: str | None) -> Path:
    """A directory whose operator certificate is that of another subject, or missing."""
    directory.mkdir()
    shutil.copy(certs / "ca.pem", directory)
    for kind in ("pem", "key"):
        if subject is not None:
            shutil.copy(certs / f"{subject}.{kind}", directory / f"operator.{kind}")
    return directory


# --- without credentials ---


def test_a_run_is_paused_resumed_and_stopped(
    running_federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    server = running_federation.server(*WAITING_RUN)
    operator = Operator(running_federation)
    assert operator("pause") == 0
    assert capsys.readouterr().out == "the run is paused\npaused before round 1/5\n"
    assert operator("pause") == 0  # idempotent
    assert capsys.readouterr().out == "the run was paused already\npaused before round 1/5\n"
    assert operator("resume") == 0
    assert capsys.readouterr().out == f"the run is resumed\n{WAITING}\n"
    assert operator("resume") == 0
    assert capsys.readouterr().out == f"the run was not paused\n{WAITING}\n"
    assert operator("stop", "--yes", "--reason", "the wrong data") == 0
    assert capsys.readouterr().out == "the run is stopped\nstopped after 0/5 rounds   the wrong data\n"
    server.expect_exit(5)
    assert running_federation.summary()["reason"] == "the wrong data"
    for what in ("paused", "resumed"):
        assert server.log.count(f"an operator has {what} the run") == 1  # the second pause changed nothing
    audit = (running_federation.state_dir / AUDIT_NAME).read_text().splitlines()
    assert [json.loads(line)["what"] for line in audit] == ["paused", "resumed", "ended"]


def test_commands_after_the_end_fail(running_federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    # it lingers: a client that had joined was not notified of the end
    running_federation.server(*WAITING_RUN, "--linger", "60s")
    asyncio.run(joined(running_federation))
    operator = Operator(running_federation)
    assert operator("stop", "--yes") == 0
    for late in ("pause", "resume"):
        assert operator(late) == 1
    assert operator("stop", "--yes") == 0  # idempotent
    unchanged, ended = "nothing was changed: the run has ended", "stopped after 0/5 rounds   stopped by an operator"
    lines = ["the run is stopped", ended, unchanged, ended, unchanged, ended, "the run was stopped already", ended]
    assert capsys.readouterr().out.splitlines() == lines


async def joined(running: Federation) -> None:
    async with Crowd(running.address, [0]):
        await status_when(running.address, lambda status: len(status.clients) == 1, "the join")


def test_the_status_after_a_command_as_json(running_federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    running_federation.server(*WAITING_RUN)
    assert Operator(running_federation)("pause", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["phase"], status["held_phase"], status["round"], status["rounds"]) == ("paused", "waiting", 0, 5)


def test_a_server_that_is_not_up_yet_is_waited_for(running_federation: Federation) -> None:
    earlier = running_federation.server(*WAITING_RUN)  # chooses the port
    earlier.terminate()
    earlier.expect_exit(130)
    options = ("status", "--watch", "--json", "--server", running_federation.address)
    watching = running_federation.start("feddbp_lab.cli", *options, name="watch", separate_stdout=True)
    wait_until(lambda: "no answer" in watching.log, "the notice that there is no server")
    running_federation.server(*WAITING_RUN)
    wait_until(lambda: watching.stdout_path is not None and watching.stdout_path.read_text(), "the first status")
    assert Operator(running_federation)("stop", "--yes") == 0
    watching.expect_exit(5)
    (line,) = watching.log.splitlines()
    assert line.startswith(f"feddbp status: no answer yet, waiting: no server answers at {running_federation.address}")


def test_a_watched_server_may_be_restarted(running_federation: Federation) -> None:
    server = running_federation.server(*WAITING_RUN)
    options = ("status", "--watch", "--json", "--server", running_federation.address)
    watching = running_federation.start("feddbp_lab.cli", *options, name="watch", separate_stdout=True)

    def phases() -> list[str]:
        assert watching.stdout_path is not None
        return [json.loads(line)["phase"] for line in watching.stdout_path.read_text().splitlines()]

    wait_until(phases, "the first status")
    server.terminate()
    server.expect_exit(130)
    wait_until(lambda: "no answer" in watching.log, "the notice of the outage")
    before = len(phases())
    running_federation.server(*WAITING_RUN)
    wait_until(lambda: len(phases()) > before, "a status of the restarted server")
    assert Operator(running_federation)("stop", "--yes") == 0
    watching.expect_exit(5)
    assert phases()[-1] == "stopped"
    (line,) = watching.log.splitlines()
    assert line.startswith(
        f"feddbp status: no answer, reconnecting: the server at {running_federation.address} is shut"
    )


def test_no_server_is_one_line_and_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("pause", "resume"):
        assert main([command, "--server", "127.0.0.1:1"]) == 3
    assert main(["stop", "--yes", "--server", "127.0.0.1:1"]) == 3
    assert capsys.readouterr().err == 3 * "feddbp: error: no server answers at 127.0.0.1:1: connection refused\n"


async def test_a_client_is_dropped(running_federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    running_federation.server(*WAITING_RUN)
    async with Crowd(running_federation.address, [1]):
        await status_when(running_federation.address, lambda status: len(status.clients) == 1, "a join")
        assert await asyncio.to_thread(main, ["client", "drop", "1", "--server", running_federation.address]) == 0
    assert capsys.readouterr().out.startswith("client 1 dropped; it may join again at once\n")


async def test_a_client_is_blocked_and_allowed_again(
    running_federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    server = running_federation.server(*WAITING_RUN)
    where = ("--server", running_federation.address)
    async with Crowd(running_federation.address, [1]) as crowd:
        await status_when(running_federation.address, lambda status: len(status.clients) == 1, "a join")
        assert await asyncio.to_thread(main, ["client", "block", "1", *where, "--reason", "stolen laptop"]) == 0
        blocked = capsys.readouterr().out
        assert blocked.startswith("client 1 blocked; it may not join again before it is allowed\n")
        assert "blocked: client 1" in blocked
        assert "an operator has blocked client 1: stolen laptop" in server.log
        assert await asyncio.to_thread(main, ["client", "block", "1", *where]) == 0
        assert capsys.readouterr().out.startswith("client 1 is blocked already: nothing had to be done\n")
        with pytest.raises(CallRefusedError, match="an operator has blocked client 1"):
            await crowd.ended()
    assert await asyncio.to_thread(main, ["client", "allow", "1", *where]) == 0
    allowed = capsys.readouterr().out
    assert allowed.startswith("client 1 may join again; its daemon ended when it was refused, and has to be started")
    assert "blocked" not in allowed
    assert await asyncio.to_thread(main, ["client", "allow", "1", *where]) == 0
    assert capsys.readouterr().out.startswith("client 1 is not blocked: nothing had to be done\n")
    assert await asyncio.to_thread(main, ["client", "drop", "0", *where]) == 0
    assert capsys.readouterr().out.startswith("client 0 is not in the run: nothing had to be done\n")
    for what in ("blocked", "allowed", "dropped"):
        assert server.log.count(f"WARNING an operator has {what}") == (what != "dropped")
    assert await asyncio.to_thread(main, ["client", "drop", "7", *where]) == 4
    assert "client id 7 is not one of this run's 0 to 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["client", "blok", "1"], "no command is called feddbp client 'blok'; did you mean 'block'?"),
        (["client", "block", "north"], "'north' is not a client id"),
        (["client", "block"], "the following arguments are required: ID"),
    ],
)
def test_mistakes_in_requests_about_clients(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err


# --- confirmation of a stop ---


@contextmanager
def typed(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A terminal with this input."""
    ours, theirs = pty.openpty()
    with (
        os.fdopen(ours, "wb", buffering=0) as keyboard,
        os.fdopen(theirs) as terminal,
        monkeypatch.context() as patched,
    ):
        patched.setattr(sys, "stdin", terminal)
        keyboard.write(answer)
        yield


def test_on_a_terminal_a_stop_asks_for_confirmation(
    running_federation: Federation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running_federation.server(*WAITING_RUN)
    operator = Operator(running_federation)
    question = f"{WAITING}\nStop the run at {running_federation.address}? [y/N] "
    for answer in (b"\n", b"n\n", b"\x04"):
        with typed(answer, monkeypatch):
            assert operator("stop") == 1
        assert capsys.readouterr() == ("", f"{question}not stopped: the run continues\n")
    with typed(b"y\n", monkeypatch):
        assert operator("stop") == 0
    output = "the run is stopped\nstopped after 0/5 rounds   stopped by an operator\n"
    assert capsys.readouterr() == (output, question)


def test_without_a_terminal_a_stop_needs_the_flag_yes(
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
def test_a_client_certificate_is_refused(
    order: tuple[str, ...],
    with_certificates: Federation,
    certs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    impostor = with_operator_of(certs, tmp_path / "impostor", client_subject(0))
    assert Operator(with_certificates, "--certs", impostor)(*order) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"feddbp: error: the server at {with_certificates.address} refuses the request: "
        "the certificate of 'client-0' may not act as 'operator'\n"
    )


def test_a_missing_certificate_or_plaintext_reaches_no_server(
    with_certificates: Federation, certs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = with_operator_of(certs, tmp_path / "without", None)
    assert Operator(with_certificates, "--certs", without)("pause") == 2
    hint = f"`feddbp certs operator {without}` makes it where ca.key is"
    assert f"cannot read operator.key: No such file or directory; {hint}" in capsys.readouterr().err
    assert Operator(with_certificates)("pause") == 2  # plaintext to a TLS port
    assert "the server uses TLS; give --certs" in capsys.readouterr().err


def test_certificates_of_another_authority_are_reported_as_such(
    with_certificates: Federation, certs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    Authority.create(other).issue_party(OPERATOR)
    address = with_certificates.address
    assert Operator(with_certificates, "--certs", other)("pause") == 2  # the operator does not trust the server
    assert f"the server at {address} has a certificate of another authority than ca.pem" in capsys.readouterr().err
    shutil.copy(certs / "ca.pem", other)
    assert Operator(with_certificates, "--certs", other)("pause") == 4  # the server does not trust the operator
    assert f"the server at {address} does not accept {other}/operator.pem" in capsys.readouterr().err


def test_an_expired_server_certificate_is_reported(
    certs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expired = tmp_path / "expired"
    shutil.copytree(certs, expired)
    Authority.load(expired).issue_server(["127.0.0.1"], lifetime=-timedelta(hours=1))
    pair = (expired / f"{SERVER}.key").read_bytes(), (expired / f"{SERVER}.pem").read_bytes()
    server = grpc.server(ThreadPoolExecutor(1))  # feddbp-server does not start with it
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    try:
        assert main(["status", "--server", f"127.0.0.1:{port}", "--certs", str(certs)]) == 3
    finally:
        server.stop(None).wait()
    expected = f"feddbp: error: no server answers at 127.0.0.1:{port}: certificate has expired\n"
    assert capsys.readouterr().err == expected


def test_the_operator_certificate_is_accepted(
    with_certificates: Federation, certs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = Operator(with_certificates, "--certs", certs)
    assert operator("pause") == 0
    assert operator("resume") == 0
    assert operator("status") == 0
    assert capsys.readouterr().out.startswith(
        f"the run is paused\npaused before round 1/5\nthe run is resumed\n{WAITING}\n"
    )
    audit = with_certificates.state_dir / AUDIT_NAME
    refused = {line["call"] for line in map(json.loads, audit.read_text().splitlines()) if line["what"] == "refused"}
    assert refused <= {"GetStatus", "Pause", "Resume", "Stop"}


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
def test_other_tokens_than_the_operators_are_refused(
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


def test_the_operator_token_is_accepted(
    with_tokens: Federation, certs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text(TOKENS[OPERATOR])
    operator = Operator(with_tokens, "--certs", certs, "--token-file", tmp_path / "token")
    assert operator("pause") == 0
    assert operator("resume") == 0
    assert capsys.readouterr().out == f"the run is paused\npaused before round 1/5\nthe run is resumed\n{WAITING}\n"
