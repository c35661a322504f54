"""`feddbp certs`: keys that exist are kept, and the commands that error messages name can be pasted."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from feddbp_common.errors import ConfigurationError
from feddbp_common.rpc.credentials import CertificateDirectory, client_subject
from feddbp_lab.cli import main
from feddbp_lab.pki.certificates import Authority, alternative_names


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with an authority, and with a space in its name."""
    path = tmp_path / "our certs"
    Authority.create(path)
    return path


def certs(kind: str, directory: Path, *options: str) -> int:
    return main(["certs", kind, str(directory), *options])


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize(
    ("kind", "first", "again", "message"),
    [
        ("server", ["--host", "localhost"], ["--host", "fl.example.org"], "server.key exists already (and 1 more)"),
        ("client", ["--id", "1"], ["--ids", "0-2"], "client-1.key exists already (and 1 more)"),
        ("operator", [], [], "operator.key exists already (and 1 more)"),
        ("probe", [], [], "probe.key exists already (and 1 more)"),
        ("tokens", ["--ids", "0-1"], ["--ids", "5"], "tokens.txt exists already (and 1 more)"),
    ],
)
def test_existing_keys_are_only_replaced_on_request(
    kind: str, first: list[str], again: list[str], message: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs(kind, directory, *first) == 0
    before = contents(directory)
    assert certs(kind, directory, *again) == 2
    assert f"{directory}/{message}; give --replace to make new ones instead" in capsys.readouterr().err
    assert contents(directory) == before
    assert certs(kind, directory, *again, "--replace") == 0
    after = contents(directory)
    assert before.keys() <= after.keys()
    assert after["ca.key"] == before["ca.key"]
    assert after != before


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("init", []),
        ("server", ["--host", "localhost"]),
        ("client", ["--ids", "0-1"]),
        ("operator", []),
        ("probe", []),
        ("tokens", ["--ids", "0-1"]),
    ],
)
def test_every_file_that_is_written_is_listed(
    kind: str, options: list[str], directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "other" if kind == "init" else directory
    before = set(contents(where)) if where.exists() else set()
    assert certs(kind, where, *options) == 0
    listed = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert sorted(listed) == sorted(set(contents(where)) - before)


def test_keys_of_all_parties_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certs("parties", tmp_path, "--host", "localhost", "--ids", "0") == 0
    listed = [str(Path(line).relative_to(tmp_path)) for line in capsys.readouterr().out.splitlines()]
    subjects = ("server/server", "server/probe", "operator/operator", "client-0/client-0")
    assert listed == [f"{subject}.{kind}" for subject in subjects for kind in ("pem", "key")]


def command_in(message: str) -> list[str]:
    """The command between backticks, as a shell reads it; a placeholder becomes a host name."""
    (command,) = re.findall("`(.*)`", message)
    program, *words = shlex.split(command.replace("--host NAME", "--host localhost"))
    assert program == "feddbp"
    return words


@pytest.mark.parametrize("given", [["fl.example.org"], ["127.0.0.1", "fl.example.org"]])
def test_a_servers_certificate_is_valid_on_its_own_machine_too(given: list[str], directory: Path) -> None:
    hosts = [word for host in given for word in ("--host", host)]
    assert certs("server", directory, *hosts) == 0
    certificate = x509.load_pem_x509_certificate((directory / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    expected = alternative_names(["fl.example.org", "localhost", "127.0.0.1"])
    assert len(list(names)) == 3
    assert set(names) == set(expected)


@pytest.mark.parametrize("subject", ["server", "operator", "probe", client_subject(3)])
@pytest.mark.parametrize("state", ["missing", "expired", "damaged"])
def test_the_command_for_a_certificate_that_cannot_be_used_makes_it(subject: str, state: str, directory: Path) -> None:
    files = CertificateDirectory(directory)
    if state == "expired":
        Authority.load(directory).issue_party(subject, lifetime=-timedelta(hours=1))
    elif state == "damaged":
        (directory / f"{subject}.pem").write_text("no certificate")
    with pytest.raises(ConfigurationError) as raised:
        files.certificate(subject)
    assert main(command_in(str(raised.value))) == 0
    files.certificate(subject)
    files.key(subject)


def test_the_command_for_a_missing_authority_makes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certs("operator", tmp_path / "new") == 2
    assert main(command_in(capsys.readouterr().err)) == 0
    assert certs("operator", tmp_path / "new") == 0


def test_a_directory_without_the_authoritys_key_is_not_where_the_command_works(directory: Path) -> None:
    (directory / "ca.key").unlink()
    with pytest.raises(ConfigurationError, match=r"--id 0` makes it where ca\.key is"):
        CertificateDirectory(directory).key(client_subject(0))
