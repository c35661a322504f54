"""Metrics as the documentation lists them and as a live server exports them, in the same form."""

from __future__ import annotations

import json
import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from feddbp_common.artifacts import ENDPOINT_NAME

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
_ROW = re.compile(r"^\| `(feddbp_\w+)` \| (gauge|counter|histogram) \|([^|]*)\| ([^|]+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class MetricKind:
    """Type and label names of a metric."""

    type: str
    labels: frozenset[str]


def documented() -> dict[str, MetricKind]:
    rows = _ROW.findall(OPERATIONS.read_text())
    kinds = {name: MetricKind(kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows}
    assert len(kinds) == len(rows), "a metric is listed twice"
    return kinds


class Scraped:
    """One scrape of a server."""

    def __init__(self, text: str) -> None:
        self._families = list(text_string_to_metric_families(text))

    def kinds(self) -> dict[str, MetricKind]:
        return {_full_name(family): MetricKind(family.type, _labels(family)) for family in self._families}

    def value(self, name: str, **labels: str) -> float | None:
        """The first sample with these labels among its own, or None."""
        for family in self._families:
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return None

    def labels(self, name: str) -> list[dict[str, str]]:
        """The labels of all samples of that name."""
        return [dict(sample.labels) for family in self._families for sample in family.samples if sample.name == name]


def scrape(state_dir: Path) -> Scraped:
    """Scrapes the server that has this state directory."""
    endpoint = json.loads((state_dir / ENDPOINT_NAME).read_text())
    address = f"http://{endpoint['metrics_host']}:{endpoint['metrics_port']}/metrics"
    with urllib.request.urlopen(address, timeout=20) as response:
        return Scraped(response.read().decode())


def _full_name(family: Metric) -> str:
    """The name as queries need it: the parser removes the suffix of a counter."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> frozenset[str]:
    return frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
