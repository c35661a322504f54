"""`feddbp health` with servers that serve, do not serve, do not answer, or require a certificate."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2 import HealthCheckResponse

from feddbp_common.rpc.credentials import CertificateDirectory
from feddbp_lab.cli import main
from feddbp_lab.pki.parties import make_parties


@contextmanager
def serving(certs: Path | None = None, **services: int) -> Iterator[str]:
    health = HealthServicer()
    for name, status in services.items():
        health.set(name, status)
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if certs is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        credentials = CertificateDirectory(certs).server_credentials(clients_have_certificates=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("parties")
    make_parties(directory, hosts=["127.0.0.1"], ids=[0], lifetime=timedelta(days=1))
    return directory


@pytest.mark.parametrize(
    ("status", "code", "output"),
    [
        (HealthCheckResponse.SERVING, 0, "serving\n"),
        (HealthCheckResponse.NOT_SERVING, 1, "not serving\n"),
    ],
)
def test_the_exit_code_says_whether_it_serves(
    status: int, code: int, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(rounds=status) as address:
        assert main(["health", "--server", address, "--service", "rounds"]) == code
    assert capsys.readouterr().out == output


def test_without_a_service_the_server_itself_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as address:
        assert main(["health", "--server", address]) == 0
    assert capsys.readouterr().out == "serving\n"


def test_an_unknown_service_does_not_serve(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as address:
        assert main(["health", "--server", address, "--service", "nothing"]) == 1
    assert capsys.readouterr().out == "service unknown\n"


def test_no_server_is_exit_code_3_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as address:
        pass
    assert main(["health", "--server", address]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"feddbp: error: no server answers at {address}")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("party", ["server", "operator"])
def test_a_server_that_requires_certificates_gets_one(
    parties: Path, party: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(parties / "server") as address:
        assert main(["health", "--server", address, "--certs", str(parties / party)]) == 0
    assert capsys.readouterr().out == "serving\n"


def test_a_client_certificate_does_not_pass(parties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(parties / "server") as address:
        # a client's directory has neither the probe's certificate nor the operator's
        assert main(["health", "--server", address, "--certs", str(parties / "client-0")]) == 4
    assert "does not accept callers without a certificate" in capsys.readouterr().err


def test_another_machine_is_not_called_without_encryption(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--server", "fl.example.org:50051"]) == 2
    assert "use --certs or --insecure" in capsys.readouterr().err
