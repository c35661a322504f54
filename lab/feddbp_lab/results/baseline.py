"""The `local` run with which the clients of another run are compared, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from feddbp_common.errors import ConfigurationError
from feddbp_lab.results.comparison import ComparedRun, Comparison
from feddbp_lab.results.run_results import RunResults
from feddbp_lab.results.splits import LOCAL


def check_local(baseline: Path, method: str) -> None:
    """Raises ConfigurationError unless a run that is given as the baseline is of local training."""
    if method != LOCAL:
        raise ConfigurationError(f"--baseline {baseline}: this is a run of {method}, not of {LOCAL}")


def check_same_clients(baseline: Path, local: RunResults, run: RunResults) -> None:
    """Raises ConfigurationError unless clients that both runs have are on the same samples."""
    if problem := next(_problems(local, run), None):
        raise ConfigurationError(f"--baseline {baseline}: clients cannot be compared with themselves: {problem}")


def _problems(local: RunResults, run: RunResults) -> Iterator[str]:
    comparison = Comparison([ComparedRun(name="baseline", results=local), ComparedRun(name="run", results=run)])
    yield from comparison.obstacles()
    yield from comparison.other_splits()
    theirs, ours = _test_samples(local), _test_samples(run)
    for client in sorted(theirs.keys() & ours.keys()):
        if theirs[client] != ours[client]:
            yield f"client {client} has {theirs[client]} test samples there and {ours[client]} here"


def _test_samples(results: RunResults) -> dict[int, int]:
    return {line["client"]: line["test_samples"] for line in results.metrics}
