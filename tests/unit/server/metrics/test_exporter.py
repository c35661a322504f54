"""Where metrics are scraped: a thread that asks the event loop, is never in its way, and ends with the server."""

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
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from feddbp_common.errors import ConfigurationError
from feddbp_server.app import Server
from feddbp_server.config import ListenConfig, ServerConfig
from feddbp_server.metrics import Monitor
from feddbp_server.metrics.exporter import Exporter, LoopIsBusyError, OnLoop
from feddbp_server.run.limits import DEFAULT_LIMITS, Limits


class Gauge:
    """A metric that may only be looked at where it changes."""

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
async def exported(gauge: Gauge, limits: Limits = DEFAULT_LIMITS) -> AsyncIterator[Exporter]:
    registry = CollectorRegistry(support_collectors_without_names=True)
    registry.register(OnLoop(gauge.families, asyncio.get_running_loop(), limits))
    exporter = Exporter(registry, host="127.0.0.1", port=0, limits=limits)
    try:
        yield exporter
    finally:
        await exporter.close()


def get(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as response:
        return str(response.read().decode())


async def scraped(port: int, path: str = "/metrics") -> str:
    return await asyncio.to_thread(get, port, path)


async def test_numbers_are_taken_on_the_loop_at_the_moment_of_the_scrape() -> None:
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


async def test_a_failure_to_collect_is_logged_and_hurts_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    gauge = Gauge("feddbp_test")
    async with exported(gauge) as listening:
        gauge.broken = True
        with pytest.raises(urllib.error.HTTPError) as refused:
            await scraped(listening.port)
        assert refused.value.code == 500
        gauge.broken = False
        assert "feddbp_test" in await scraped(listening.port)
    assert "a scrape failed" in caplog.text


async def test_scrapers_that_say_nothing_take_only_so_many_threads() -> None:
    async with exported(Gauge("feddbp_test")) as listening:
        with ExitStack() as silent:
            for _ in range(DEFAULT_LIMITS.scrapes):
                silent.enter_context(socket.create_connection(("127.0.0.1", listening.port)))
            one_more = silent.enter_context(socket.create_connection(("127.0.0.1", listening.port), timeout=20))
            assert await asyncio.to_thread(one_more.recv, 1) == b""  # turned away at once
            during = [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]
            assert len(during) == DEFAULT_LIMITS.scrapes
        async with asyncio.timeout(20):
            while True:
                try:
                    assert "feddbp_test" in await scraped(listening.port)
                    break
                except (urllib.error.URLError, ConnectionError):
                    await asyncio.sleep(0.02)


async def test_after_closing_nobody_listens_and_no_thread_is_left() -> None:
    async with exported(Gauge("feddbp_test")) as listening:
        assert any(thread.name == "metrics" for thread in threading.enumerate())
    assert not any(thread.name == "metrics" for thread in threading.enumerate())
    with pytest.raises(urllib.error.URLError):
        await scraped(listening.port)


async def test_a_loop_that_is_gone_is_not_waited_for() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(LoopIsBusyError):
        OnLoop(list, loop).collect()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_port_that_is_taken_is_a_mistake_of_whoever_named_it(host: str) -> None:
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


@pytest.mark.parametrize(("host", "told"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
async def test_an_address_others_can_reach_is_pointed_out(
    host: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Monitor, "listen", lambda *_: 9464)
    server = Server(ServerConfig(listen=ListenConfig(metrics_port=9464, metrics_host=host, state_dir=tmp_path)))
    server._serve_metrics()
    assert (f"metrics are readable, unencrypted, by any host that reaches {host}" in caplog.text) is told
    await server._shut_down()


async def test_a_host_that_is_none_is_a_mistake_too() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot serve metrics on nowhere\.invalid:0: "):
        Exporter(CollectorRegistry(), host="nowhere.invalid", port=0)
