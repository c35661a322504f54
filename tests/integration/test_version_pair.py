"""This version and the last released one, on the same wire: a plain run works, a run that needs more is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from processes import Command, Federation, federation

RELEASE = "3b4a0b2"
"""The commit of version 0.1.0."""
CHECKOUT = Path(__file__).resolve().parents[2]
ROOTS = ("proto", "common", "server", "client", "lab")
RUN = ("--clients", 2, "--min-clients", 2, "--rounds", 2, "--local-epochs", 1, "--model-group", "mini-8")
OPTIONS = (*RUN, "--method", "fedproto")
"""FedProto's bits are those of the release; FedDBP's loss is rounded otherwise since."""


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which commands are those of the last release, from this repository's history."""
    directory = tmp_path_factory.mktemp("released")
    archive = directory / "release.tar"
    made = subprocess.run(
        ["git", "-C", CHECKOUT, "archive", "-o", archive, RELEASE, *ROOTS], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"the history has no commit {RELEASE}, as in a shallow clone: {made.stderr.strip()}")
    with tarfile.open(archive) as files:
        files.extractall(directory, filter="data")
    # what an installation would leave beside the packages: it is where a command finds its version
    metadata = directory / ROOTS[0] / "feddbp-0.1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.4\nName: feddbp\nVersion: 0.1.0\n")
    return {"PYTHONPATH": os.pathsep.join(str(directory / root) for root in ROOTS)}


def test_the_environment_is_that_of_the_release(released: dict[str, str]) -> None:
    code = (
        "import feddbp_server.durable_run as old\n"
        "from feddbp_common.version import VERSION\n"
        "print(old.__file__, VERSION)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **released}, capture_output=True, text=True, check=True
    )
    file, version = found.stdout.split()
    assert file.startswith(released["PYTHONPATH"].split(os.pathsep)[2])
    assert version == "0.1.0"


def digest_of(running: Federation, server: Command, *clients: Command) -> str:
    """The digest of the prototypes, once everything has ended well."""
    for command in (server, *clients):
        command.expect_exit(0)
    digest, _ = running.outcome()
    return digest


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of a plain run in which everything is of this version."""
    with federation(tmp_path_factory.mktemp("run")) as running:
        return digest_of(running, running.server(*OPTIONS), running.client("0-1"))


def test_a_released_client_takes_part_in_a_plain_run(
    running_federation: Federation, released: dict[str, str], digest: str
) -> None:
    server = running_federation.server(*OPTIONS)
    clients = running_federation.client(0, env=released), running_federation.client(1)
    assert digest_of(running_federation, server, *clients) == digest


def test_a_client_of_this_version_takes_part_in_a_plain_run_of_a_released_server(
    running_federation: Federation, released: dict[str, str], digest: str
) -> None:
    server = running_federation.server(*OPTIONS, env=released)
    clients = running_federation.client(0, env=released), running_federation.client(1)
    assert digest_of(running_federation, server, *clients) == digest


def test_clients_of_both_versions_run_feddbp_together(running_federation: Federation, released: dict[str, str]) -> None:
    server = running_federation.server(*RUN)
    clients = running_federation.client(0, env=released), running_federation.client(1)
    assert digest_of(running_federation, server, *clients)


NEEDS_FEATURE = """
import sys
from feddbp_server.run import coordinator
from feddbp_server.cli import main

coordinator.required_features = lambda run: ["training.blur", "training.mixing"]
sys.exit(main())
"""
"""A server whose run needs features of a later version."""


def test_a_client_that_lacks_a_feature_is_refused_with_its_name_and_both_versions(
    running_federation: Federation, released: dict[str, str]
) -> None:
    (running_federation.directory / "demanding_server.py").write_text(NEEDS_FEATURE)
    running_federation.server(*OPTIONS, module="demanding_server")
    old = running_federation.client(0, env=released)
    new = running_federation.client(1)
    old.expect_exit(4)
    new.expect_exit(4)
    assert "the run needs training.blur, training.mixing, which this client (feddbp 0.1.0) does not have" in old.log
    assert "the run needs training.blur, training.mixing, which this client (feddbp 0.2" in new.log
    assert "the server is feddbp" in old.log
    assert "the server is feddbp" in new.log
