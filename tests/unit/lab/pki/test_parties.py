"""`feddbp certs parties`: a directory per party, created once and kept while its certificate is valid."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from feddbp_common.errors import ConfigurationError
from feddbp_lab.cli import main
from feddbp_lab.pki.parties import make_local_parties, make_parties

YEAR = timedelta(days=365)


def make(directory: Path, *, hosts: tuple[str, ...] = ("server", "127.0.0.1"), lifetime: timedelta = YEAR) -> set[str]:
    issued = make_parties(directory, hosts=hosts, ids=[0, 3], lifetime=lifetime)
    return {str(path.relative_to(directory)) for path in issued}


def files(directory: Path) -> dict[str, set[str]]:
    return {party.name: {path.name for path in party.iterdir()} for party in directory.iterdir()}


EVERYTHING = {
    "server/server.pem",
    "server/probe.pem",
    "operator/operator.pem",
    "client-0/client-0.pem",
    "client-3/client-3.pem",
}


def test_each_party_gets_its_own_files_and_nothing_more(tmp_path: Path) -> None:
    assert make(tmp_path) == EVERYTHING
    assert files(tmp_path) == {
        "authority": {"ca.pem", "ca.key"},
        "server": {"ca.pem", "server.pem", "server.key", "probe.pem", "probe.key"},
        "operator": {"ca.pem", "operator.pem", "operator.key"},
        "client-0": {"ca.pem", "client-0.pem", "client-0.key"},
        "client-3": {"ca.pem", "client-3.pem", "client-3.key"},
    }


def test_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    make(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.key")} == {0o600}


def test_valid_certificates_are_kept(tmp_path: Path) -> None:
    make(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert make(tmp_path) == set()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_expired_certificates_are_replaced(tmp_path: Path) -> None:
    make(tmp_path, lifetime=timedelta(days=-1))
    assert make(tmp_path) == EVERYTHING
    assert make(tmp_path) == set()


def test_a_certificate_without_its_key_is_replaced(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "client-3" / "client-3.key").unlink()
    assert make(tmp_path) == {"client-3/client-3.pem"}


def test_another_host_name_replaces_the_servers_certificate(tmp_path: Path) -> None:
    make(tmp_path)
    assert make(tmp_path, hosts=("fl.example.org",)) == {"server/server.pem"}


def test_another_authority_replaces_every_certificate(tmp_path: Path) -> None:
    make(tmp_path)
    shutil.rmtree(tmp_path / "authority")
    assert make(tmp_path) == EVERYTHING
    authorities = {path.read_bytes() for path in tmp_path.rglob("ca.pem")}
    assert len(authorities) == 1


def test_the_command_prints_the_certificates_it_issued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["certs", "parties", str(tmp_path), "--host", "server", "--ids", "0-1"]
    assert main(arguments) == 0
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last == [str(tmp_path / "client-1" / f"client-1.{kind}") for kind in ("pem", "key")]
    assert main(arguments) == 0
    assert capsys.readouterr().out == ""


def test_the_owner_of_keys_is_changed_and_that_of_certificates_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = []
    monkeypatch.setattr(os, "chown", lambda path, user, group: changed.append((path.name, user, group)))
    assert main(["certs", "parties", str(tmp_path), "--host", "server", "--ids", "0", "--owner", "10001"]) == 0
    assert changed == [(f"{name}.key", 10001, -1) for name in ("server", "probe", "operator", "client-0")]


def test_a_user_who_may_not_change_owners_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refused)
    assert main(["certs", "parties", str(tmp_path), "--host", "server", "--ids", "0", "--owner", "10001"]) == 2
    assert capsys.readouterr().err == (
        "feddbp: error: --owner 10001: Operation not permitted; only root may change the owner of a file\n"
    )


LOCAL = {"server": ["server"], "clients": ["client-0", "client-1"]}


def test_parties_of_one_machine_get_certificates_of_an_authority_without_a_key(tmp_path: Path) -> None:
    made = tmp_path / "new" / "certs"
    make_local_parties(made, LOCAL)
    assert files(made) == {
        "server": {"ca.pem", "server.pem", "server.key"},
        "clients": {"ca.pem", "client-0.pem", "client-0.key", "client-1.pem", "client-1.key"},
    }
    assert (made / "server" / "ca.pem").read_bytes() == (made / "clients" / "ca.pem").read_bytes()
    assert {path.stat().st_mode & 0o777 for path in made.rglob("*.key")} == {0o600}
    assert list(made.parent.iterdir()) == [made]


def test_a_federation_that_is_resumed_on_one_machine_keeps_its_certificates(tmp_path: Path) -> None:
    make_local_parties(tmp_path / "certs", LOCAL)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    make_local_parties(tmp_path / "certs", LOCAL)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_parties_of_one_machine_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot write .*certs: Not a directory|File exists"):
        make_local_parties(tmp_path / "file" / "certs", LOCAL)
