"""Mistakes in address and certificates, against servers on loopback."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from feddbp_common.errors import ConfigurationError
from feddbp_common.rpc.credentials import OPERATOR, SERVER, CertificateDirectory, check_address, split_address
from feddbp_common.rpc.diagnosis import find_mistake
from feddbp_lab.pki.certificates import Authority


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("certs"), ["127.0.0.1", "localhost"])


def made(directory: Path, hosts: list[str]) -> Path:
    authority = Authority.create(directory)
    authority.issue_server(hosts)
    authority.issue_party(OPERATOR)
    return directory


@asynccontextmanager
async def serving(certs: Path | None = None, *, with_certificates: bool = True) -> AsyncIterator[str]:
    server = grpc.aio.server()
    if certs is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        credentials = CertificateDirectory(certs).server_credentials(clients_have_certificates=with_certificates)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A server of something else, which answers anything with these bytes."""

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def mistake(address: str, certs: Path | None = None, subject: str | None = OPERATOR) -> str:
    """The message; empty if there is no mistake."""
    found = await find_mistake(address, certs=certs, subject=subject)
    return "" if found is None else f"{int(found.exit_code)}: {found}"


async def test_a_server_that_answers_as_expected_is_no_mistake(certs: Path) -> None:
    async with serving() as plain, serving(certs) as with_tls, serving(certs, with_certificates=False) as with_tokens:
        assert await mistake(plain) == ""
        assert await mistake(with_tls, certs) == ""
        assert await mistake(with_tokens, certs, None) == ""


async def test_a_server_that_is_not_there_may_come(certs: Path) -> None:
    async with serving() as address:
        pass
    assert await mistake(address) == ""
    assert await mistake(address, certs) == ""
    for host in ("nowhere.invalid", "a..b"):
        assert await mistake(f"{host}:1") == ""
        assert await mistake(f"{host}:1", certs) == ""


async def test_a_server_that_accepts_and_closes_may_be_shutting_down(certs: Path) -> None:
    async with answering(b"") as address:
        assert await mistake(address) == ""
        assert await mistake(address, certs) == ""


async def test_another_authority(certs: Path, tmp_path: Path) -> None:
    other = made(tmp_path / "other", ["127.0.0.1"])
    async with serving(certs) as address:
        assert re.fullmatch(
            rf"2: --certs {other}: the server at {address} has a certificate of another authority than ca\.pem \(.+\)",
            await mistake(address, other),
        )


async def test_another_authority_and_a_name_that_is_not_in_the_certificate(tmp_path: Path) -> None:
    other = made(tmp_path / "other", ["127.0.0.1"])
    async with serving(made(tmp_path / "elsewhere", ["fl.example.org"])) as address:
        assert "has a certificate of another authority than ca.pem" in await mistake(address, other)


async def test_a_name_that_is_not_in_the_certificate(certs: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(certs, elsewhere)
    Authority.load(elsewhere).issue_server(["fl.example.org", "10.1.2.3"])
    async with serving(elsewhere) as address:
        for host in ("127.0.0.1", "localhost"):
            given = f"{host}:{split_address(address)[1]}"
            assert await mistake(given, certs) == (
                f"2: --server {given}: the server's certificate is not for {host}, but for fl.example.org, 10.1.2.3; "
                "give that name, or make a certificate with `feddbp certs server DIR --host fl.example.org "
                f"--host 10.1.2.3 --host {host} --replace`"
            )


async def test_tls_where_there_is_none_and_none_where_there_is(certs: Path) -> None:
    async with serving() as plain, serving(certs) as with_tls:
        assert await mistake(plain, certs) == f"2: --server {plain}: the server does not use TLS; leave out --certs"
        assert await mistake(with_tls) == f"2: --server {with_tls}: the server uses TLS; give --certs"


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"<!DOCTYPE HTML>", b"SSH-2.0-OpenSSH_9.2\r\n"]
)
async def test_another_kind_of_server(certs: Path, answer: bytes) -> None:
    async with answering(answer) as address:
        for directory in (None, certs):
            assert await mistake(address, directory) == (
                f"2: --server {address}: what answers there is no feddbp server: it does not speak HTTP/2; "
                "check the port"
            )


async def test_a_certificate_that_the_server_does_not_accept(certs: Path, tmp_path: Path) -> None:
    other = made(tmp_path / "other", ["127.0.0.1"])
    shutil.copy(certs / "ca.pem", other)
    async with serving(certs) as address:
        refused, closed = f"4: the server at {address} does not accept", "it closes the connection"
        assert await mistake(address, other) == f"{refused} {other}/operator.pem: {closed}"
        assert await mistake(address, certs, None) == f"{refused} callers without a certificate: {closed}"


async def test_a_server_certificate_that_is_out_of_date_may_be_replaced(certs: Path, tmp_path: Path) -> None:
    expired = tmp_path / "expired"
    shutil.copytree(certs, expired)
    Authority.load(expired).issue_server(["127.0.0.1"], lifetime=-timedelta(hours=1))
    pair = (expired / f"{SERVER}.key").read_bytes(), (expired / f"{SERVER}.pem").read_bytes()
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    assert await mistake(f"127.0.0.1:{port}", certs) == ""
    await server.stop(None)


# --- addresses ---


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://127.0.0.1:50051", "without http://; give 127.0.0.1:50051"),
        ("https://fl.example.org:50051/", "without https://; give fl.example.org:50051"),
        ("dns:///fl.example.org:50051", "an address is HOST:PORT, without dns://"),
        ("http://fl.example.org", "an address is HOST:PORT, without http://"),
        ("fl.example.org", "is not an address of the form HOST:PORT, give fl.example.org:50051"),
        ("localhost", "'localhost' is not an address of the form HOST:PORT, give localhost:50051"),
        ("50051", "'50051' is not an address of the form HOST:PORT, such as 127.0.0.1:50051"),
        ("fl.example.org:50051/run", "is not an address of the form HOST:PORT"),
        ("fl.example.org/run:50051", "is not an address of the form HOST:PORT"),
        ("me@fl.example.org:50051", "is not an address of the form HOST:PORT"),
        (":50051", "is not an address of the form HOST:PORT"),
        ("fl.example.org:0", "is not an address of the form HOST:PORT"),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        check_address(address)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:50051", ("127.0.0.1", 50051)),
        ("[::1]:1", ("::1", 1)),
        ("fl.example.org:65535", ("fl.example.org", 65535)),
    ],
)
def test_an_address_has_two_parts(address: str, parts: tuple[str, int]) -> None:
    check_address(address)
    assert split_address(address) == parts
