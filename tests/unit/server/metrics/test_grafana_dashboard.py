"""The dashboard asks for metrics that exist, by labels they have.

It is held against the documentation's table, which a live server is held against in `tests/integration`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from metrics import MetricKind, documented

MONITORING = Path(__file__).parents[4] / "deploy" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana-dashboard.json").read_text())
OF_A_HISTOGRAM = ("_bucket", "_sum", "_count")
OF_THE_SCRAPE = {"instance"}
"""Labels Prometheus adds."""


def targets() -> Iterator[tuple[str, str, str]]:
    """Title, expression and legend of everything that is drawn."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]


def kind_of(sample: str) -> MetricKind | None:
    """The metric a sample's name belongs to."""
    known = documented()
    for ending in OF_A_HISTOGRAM:
        kind = known.get(sample.removesuffix(ending))
        if sample.endswith(ending) and kind is not None and kind.type == "histogram":
            return MetricKind(kind.type, kind.labels | ({"le"} if ending == "_bucket" else set()))
    kind = known.get(sample)
    return None if kind is None or kind.type == "histogram" else kind


def names_in(expression: str) -> list[str]:
    return re.findall(r"\bfeddbp_\w+", expression)


@pytest.mark.parametrize(("title", "expression", "legend"), list(targets()))
def test_every_expression_names_metrics_and_labels_that_exist(title: str, expression: str, legend: str) -> None:
    names = names_in(expression)
    assert names
    kinds = [kind_of(name) for name in names]
    assert None not in kinds, f"{title}: {expression}"
    labels = set.intersection(*({*kind.labels} for kind in kinds if kind is not None)) | OF_THE_SCRAPE
    asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
    for group in re.findall(r"\bby \(([^)]*)\)", expression):
        asked |= {name.strip() for name in group.split(",")}
    asked |= set(re.findall(r"\{\{(\w+)\}\}", legend))
    assert asked <= labels, f"{title}: {expression}"


@pytest.mark.parametrize(("title", "expression", "legend"), list(targets()))
def test_only_what_rises_is_asked_for_its_rate(title: str, expression: str, legend: str) -> None:
    for name in names_in(expression):
        kind = kind_of(name)
        assert kind is not None
        is_rated = re.search(rf"\b(rate|increase)\({name}\b", expression) is not None
        assert is_rated is (kind.type != "gauge"), f"{title}: {expression}"


@pytest.mark.parametrize(
    "name",
    [
        "feddbp_round",
        "feddbp_phase",
        "feddbp_clients",
        "feddbp_mean_accuracy",
        "feddbp_uploads_accepted_total",
        "feddbp_calls_refused_total",
        "feddbp_bytes_up_total",
        "feddbp_bytes_down_total",
        "feddbp_grpc_call_seconds_bucket",
        "feddbp_aggregation_seconds_sum",
        "feddbp_storage_trouble",
    ],
)
def test_the_dashboard_shows_what_operators_need(name: str) -> None:
    assert any(name in names_in(expression) for _, expression, _ in targets())


def test_the_dashboard_uses_the_selected_data_source_and_server() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "instance"}
    assert names_in(variables["instance"]["definition"]) == ["feddbp_run_info"]
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {"${datasource}"}
    assert all('instance=~"$instance"' in expression for _, expression, _ in targets())


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        covered = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & covered, panel["title"]
        cells |= covered


def test_prometheus_scrapes_the_port_the_documentation_names() -> None:
    assert "127.0.0.1:9464" in (MONITORING / "prometheus.yml").read_text()
