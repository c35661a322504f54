"""The metrics endpoint: threads that collect on the event loop, do not block it, and end with the server."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from certificates import issue_certificates
from coordinator_runs import PATIENCE
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from feddbp_common.errors import ConfigurationError
from feddbp_server.app import Server
from feddbp_server.config import ListenConfig, ServerConfig
from feddbp_server.metrics import Monitor
from feddbp_server.metrics.exporter import Exporter, LoopIsBusyError, OnLoop
from feddbp_server.metrics.scrape_tls import ScrapeCredentials
from feddbp_server.run.admission.limits import DEFAULT_LIMITS, Limits


class Gauge:
    """A metric that may only be read on the event loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.value = 0
        self.broken = False
        self._owner = threading.get_ident()

    def families(self) -> list[Metric]:
        assert threading.get_ident() == self._owner
        if self.broken:
            raise ValueError("on purpose")
        return [GaugeMetricFamily(self.name, "A number.", self.value)]


@asynccontextmanager
async def exported(
    gauge: Gauge, limits: Limits = DEFAULT_LIMITS, tls: ScrapeCredentials | None = None
) -> AsyncIterator[Exporter]:
    registry = CollectorRegistry(support_collectors_without_names=True)
    registry.register(OnLoop(gauge.families, asyncio.get_running_loop(), limits))
    exporter = Exporter(registry, host="127.0.0.1", port=0, limits=limits, tls=tls)
    try:
        yield exporter
    finally:
        await exporter.close()


def get(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as response:
        return str(response.read().decode())


async def scraped(port: int, path: str = "/metrics") -> str:
    return await asyncio.to_thread(get, port, path)


async def test_values_are_collected_on_the_loop_at_the_moment_of_the_scrape() -> None:
    gauge = Gauge("feddbp_test")
    async with exported(gauge) as listening:
        for gauge.value in (1, 2):
            assert f"feddbp_test {gauge.value}.0" in await scraped(listening.port)


async def test_servers_in_one_process_do_not_see_each_others_numbers() -> None:
    async with exported(Gauge("feddbp_one")) as one, exported(Gauge("feddbp_other")) as other:
        assert "feddbp_other" not in await scraped(one.port)
        assert "feddbp_one" not in await scraped(other.port)


async def test_a_scrape_may_ask_for_metrics_by_name() -> None:
    async with exported(Gauge("feddbp_test")) as listening:
        assert "feddbp_test 0.0" in await scraped(listening.port, "/metrics?name[]=feddbp_test")
        assert await scraped(listening.port, "/metrics?name[]=feddbp_another") == ""


async def test_metrics_are_in_one_place() -> None:
    async with exported(Gauge("feddbp_test")) as listening:
        with pytest.raises(urllib.error.HTTPError) as refused:
            await scraped(listening.port, "/admin")
    assert (refused.value.code, refused.value.reason) == (404, "metrics are at /metrics")


async def test_a_loop_that_is_busy_gets_the_scraper_a_503() -> None:
    impatient = Limits(collect_wait=timedelta(seconds=0.05))
    async with exported(Gauge("feddbp_test"), impatient) as listening:
        answered: list[int] = []

        def scrape() -> None:
            try:
                get(listening.port)
            except urllib.error.HTTPError as error:
                answered.append(error.code)

        scraping = threading.Thread(target=scrape)
        scraping.start()
        while scraping.is_alive():
            time.sleep(0.01)  # noqa: ASYNC251 - the loop is meant to be busy
    assert answered == [503]


async def test_a_failure_to_collect_is_logged_and_the_next_scrape_works(caplog: pytest.LogCaptureFixture) -> None:
    gauge = Gauge("feddbp_test")
    async with exported(gauge) as listening:
        gauge.broken = True
        with pytest.raises(urllib.error.HTTPError) as refused:
            await scraped(listening.port)
        assert refused.value.code == 500
        gauge.broken = False
        assert "feddbp_test" in await scraped(listening.port)
    assert "a scrape failed" in caplog.text


async def test_silent_scrapers_take_a_limited_number_of_threads() -> None:
    async with exported(Gauge("feddbp_test")) as listening:
        with ExitStack() as silent:
            for _ in range(DEFAULT_LIMITS.scrapes):
                silent.enter_context(socket.create_connection(("127.0.0.1", listening.port)))
            one_more = silent.enter_context(socket.create_connection(("127.0.0.1", listening.port), timeout=20))
            assert await asyncio.to_thread(one_more.recv, 1) == b""  # closed at once
            during = [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]
            assert len(during) == DEFAULT_LIMITS.scrapes
        async with asyncio.timeout(20):
            while True:
                try:
                    assert "feddbp_test" in await scraped(listening.port)
                    break
                except (urllib.error.URLError, ConnectionError):
                    await asyncio.sleep(0.02)


async def test_slow_readers_make_room_for_a_scrape() -> None:
    """They stay connected, and read nothing of what they have asked for."""
    async with exported(Gauge("feddbp_test")) as listening:
        with ExitStack() as slow:
            readers = [
                slow.enter_context(socket.create_connection(("127.0.0.1", listening.port), timeout=60))
                for _ in range(DEFAULT_LIMITS.scrapes)
            ]
            for reader in readers:
                reader.sendall(b"GET /metrics HTTP/1.1\r\n")
            async with asyncio.timeout(DEFAULT_LIMITS.scrape_wait.total_seconds() / 2):
                while True:
                    try:
                        assert "feddbp_test" in await scraped(listening.port)
                        break
                    except (urllib.error.URLError, ConnectionError):
                        await asyncio.sleep(0.1)
                # the connection of the first is closed, so that its thread ends: it holds no room any more
                assert await asyncio.to_thread(readers[0].recv, 1) == b""


async def test_a_scraper_that_does_not_encrypt_makes_room_for_another(tmp_path: Path) -> None:
    """It is connected, and its handshake never begins."""
    limits = Limits(scrapes=1, scrape_turn=timedelta(0), scrape_wait=timedelta(hours=1))
    tls = ScrapeCredentials(issue_certificates(tmp_path, clients=1))
    async with exported(Gauge("feddbp_test"), limits, tls) as listening:
        address = ("127.0.0.1", listening.port)
        with socket.create_connection(address, timeout=PATIENCE) as silent, socket.create_connection(address):
            assert await asyncio.to_thread(silent.recv, 1) == b""


async def test_after_closing_neither_port_nor_thread_is_left() -> None:
    async with exported(Gauge("feddbp_test")) as listening:
        assert any(thread.name == "metrics" for thread in threading.enumerate())
    assert not any(thread.name == "metrics" for thread in threading.enumerate())
    with pytest.raises(urllib.error.URLError):
        await scraped(listening.port)


async def test_a_closed_loop_is_not_waited_for() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(LoopIsBusyError):
        OnLoop(list, loop).collect()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_metrics_port_in_use_is_a_configuration_error(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as taken:
        try:
            taken.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"cannot serve metrics on .*{port}: Address already in use"):
            Exporter(CollectorRegistry(), host=host, port=port)


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
async def test_a_metrics_address_other_machines_can_reach_is_warned_about(
    host: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Monitor, "listen", lambda *_, **__: 9464)
    server = Server(ServerConfig(listen=ListenConfig(metrics_port=9464, metrics_host=host, state_dir=tmp_path)))
    server._serve_metrics()
    assert (f"metrics are readable, unencrypted, by any host that reaches {host}" in caplog.text) is warned
    await server._shut_down()


async def test_an_invalid_metrics_host_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot serve metrics on nowhere\.invalid:0: "):
        Exporter(CollectorRegistry(), host="nowhere.invalid", port=0)
