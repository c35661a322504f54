"""The metrics of one server: its call meter, its registry and its HTTP endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric

from feddbp_server.metrics.calls import CallMeter
from feddbp_server.metrics.exporter import Exporter, OnLoop
from feddbp_server.metrics.families import NAMESPACE, call_families, run_families
from feddbp_server.metrics.scrape_tls import ScrapeCredentials
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.view import RunView


class Monitor:
    """Owns the metrics of one server; nothing is global, so that servers in one process have separate numbers."""

    def __init__(self, run: RunView, limits: Limits) -> None:
        self.meter = CallMeter()
        self._run = run
        self._limits = limits
        self._exporter: Exporter | None = None

    def listen(self, host: str, port: int, *, certs: Path | None = None) -> int:
        """Starts to answer scrapes, over TLS with certificates; returns the port. Call it on the event loop."""
        # scrapes may ask for metrics by name, and ours have names only once they are collected
        registry = CollectorRegistry(support_collectors_without_names=True)
        registry.register(OnLoop(self._families, asyncio.get_running_loop(), self._limits))
        ProcessCollector(namespace=NAMESPACE, registry=registry)
        tls = None if certs is None else ScrapeCredentials(certs)
        self._exporter = Exporter(registry, host=host, port=port, limits=self._limits, tls=tls)
        return self._exporter.port

    async def close(self) -> None:
        if self._exporter is not None:
            await self._exporter.close()
            self._exporter = None

    def _families(self) -> Iterator[Metric]:
        yield from run_families(self._run)
        yield from call_families(self.meter.methods)
