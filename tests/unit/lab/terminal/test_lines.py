"""Progress as lines: a line per round, with the accuracy that the server's summary has."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab_samples import run_status

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.config.run import RunConfig
from feddbp_lab.results.run_results import MetricsTail
from feddbp_lab.terminal.lines import PlainDisplay


def report(client: int, number: int, accuracy: float, *, trained: bool) -> Mapping[str, Any]:
    losses = {"total": 1.0} if trained else {}
    counts = {"test_samples": 50, "bytes_up": 1000, "bytes_down": 500}
    return {"client": client, "round": number, "accuracy": accuracy, "losses": losses, **counts}


def lines_of(run: RunConfig, metrics: Path, *reports: Mapping[str, Any]) -> list[str]:
    """What is printed of a run that has ended."""
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in reports))
    output = io.StringIO()
    display = PlainDisplay(output=output, title="a run", run=run, metrics=MetricsTail(metrics), clock=lambda: 0.0)
    display.show(run_status(phase=pb.PHASE_FINISHED, round=run.rounds, rounds=run.rounds))
    return [line for line in output.getvalue().splitlines() if "/" in line]


def test_a_client_that_has_not_trained_is_not_in_the_accuracy(tmp_path: Path) -> None:
    lines = lines_of(
        RunConfig(clients=2, rounds=2, participation=0.5),
        tmp_path / "metrics.jsonl",
        *(report(0, 0, 0.1, trained=True), report(1, 0, 0.1, trained=False)),
        *(report(0, 1, 0.8, trained=False), report(1, 1, 0.1, trained=True)),
        *(report(0, 2, 0.8, trained=False), report(1, 2, 0.6, trained=False)),
    )
    assert "80.0 % over 1 of 2 clients" in lines[0]
    assert "70.0 % over 2 of 2 clients" in lines[1]


def test_rounds_of_a_run_with_newcomers_have_lines(tmp_path: Path) -> None:
    lines = lines_of(
        RunConfig(clients=2, rounds=3, newcomers=1, newcomer_rounds=2),
        tmp_path / "metrics.jsonl",
        report(0, 0, 0.1, trained=True),
        report(1, 1, 0.1, trained=True),
        report(1, 2, 0.4, trained=True),
        *(report(0, 3, 0.8, trained=False), report(1, 3, 0.6, trained=False)),
    )
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    assert "accuracy – " in " ".join(lines[0].split())
    assert "40.0 % over 1 of 2 clients" in lines[1]
    assert "70.0 % over 2 of 2 clients" in lines[2]
