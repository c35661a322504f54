"""Fixtures of the chaos tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from light_runs import LIGHT_RUN, undisturbed_outcome
from processes import Outcome

from feddbp_common.rpc.credentials import OPERATOR, ClientCredentials, client_subject
from feddbp_lab.pki.certificates import Authority


@pytest.fixture(scope="session")
def undisturbed_light(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The outcome of a run of light clients without faults."""
    return undisturbed_outcome(tmp_path_factory.mktemp("undisturbed"), *LIGHT_RUN)


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates for a server on loopback, three clients and an operator."""
    directory = tmp_path_factory.mktemp("certs")
    authority = Authority.create(directory)
    authority.issue_server(["127.0.0.1"])
    for subject in (*map(client_subject, range(3)), OPERATOR):
        authority.issue_party(subject)
    return directory


@pytest.fixture(scope="session")
def access(certs: Path) -> ClientCredentials:
    """Credentials of parties that have a certificate."""
    return ClientCredentials(certs=certs)
