"""Certificates and keys in files: what is said of one that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from feddbp_common.errors import ConfigurationError
from feddbp_common.rpc.credentials import SERVER, CertificateDirectory, client_subject


def complaint(directory: Path, subject: str) -> str:
    with pytest.raises(ConfigurationError) as refusal:
        CertificateDirectory(directory).key(subject)
    return str(refusal.value)


def test_of_a_missing_key_it_is_said_how_to_make_it(tmp_path: Path) -> None:
    said = complaint(tmp_path, client_subject(0))
    makes = f"`feddbp certs client {tmp_path} --id 0` makes it where ca.key is"
    assert said == f"--certs {tmp_path}: cannot read client-0.key: No such file or directory; {makes}"


@pytest.mark.parametrize("subject", [SERVER, client_subject(0)])
def test_a_key_that_is_there_need_not_be_made(subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:  # root may read any file
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    assert complaint(tmp_path, subject) == f"--certs {tmp_path}: cannot read {subject}.key: Permission denied"


def test_certificates_in_a_directory_that_may_not_be_looked_into_are_named(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 300)
    assert complaint(directory, SERVER) == f"--certs {directory}: cannot read server.key: File name too long"
