"""Statuses and results of runs that never took place."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

from feddbp.v1 import federation_pb2 as pb
from feddbp_lab.results.run_results import RunResults

ARCHITECTURES = ("mini_plain", "mini_residual", "mini_depthwise", "mini_inception", "mini_dense", "mini_squeeze")


def printed(renderable: RenderableType, *, width: int = 80, height: int = 24) -> str:
    console = Console(record=True, width=width, height=height, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def metrics(correct: int, *, test_samples: int = 50) -> pb.RoundMetrics:
    return pb.RoundMetrics(
        accuracies=[pb.Accuracy(rule="other", correct=1), pb.Accuracy(rule="head", correct=correct)],
        inference="head",
        test_samples=test_samples,
    )


def client(
    number: int,
    activity: pb.ClientActivity.ValueType = pb.CLIENT_ACTIVITY_TRAINING,
    *,
    epochs_done: int = 0,
    metrics_round: int | None = None,
    correct: int = 0,
) -> pb.ClientStatus:
    status = pb.ClientStatus(
        client_id=number,
        activity=activity,
        capabilities=pb.Capabilities(
            architecture=ARCHITECTURES[number % len(ARCHITECTURES)], parameters=123_456, device="cpu"
        ),
        classes_held=3,
        train_samples=170,
        test_samples=50,
    )
    status.last_seen.FromSeconds(1_000_000)
    if epochs_done:
        status.progress.CopyFrom(pb.Progress(epochs_done=epochs_done, epochs=5))
    if metrics_round is not None:
        status.metrics.CopyFrom(metrics(correct))
        status.metrics_round = metrics_round
    return status


def run_status(*clients: pb.ClientStatus, **fields: Any) -> pb.RunStatus:
    values = {"phase": pb.PHASE_COLLECTING, "round": 3, "rounds": 10, "min_clients": 8, **fields}
    return pb.RunStatus(
        run_id="abc-1", method="feddbp", clients=clients, bytes_up=1_234_567, bytes_down=640_000, **values
    )


def results(*, clients: int = 3, rounds: int = 4, outcome: str = "finished") -> RunResults:
    lines = [_line(number, at) for at in range(rounds + 1) for number in range(clients)]
    curve = [{**_point(at), "clients": clients} for at in range(rounds + 1)]
    return RunResults(
        metrics=lines,
        summary={
            "method": "feddbp",
            "dataset": "digits",
            "config": {"method": "feddbp", "data": {"dataset": "digits"}},
            "clients": clients,
            "seed": 0,
            "outcome": outcome,
            "reason": "all rounds are done" if outcome == "finished" else "too few clients",
            "completed_rounds": rounds,
            "accuracy": {"best": curve[-1], "last": curve[-1]},
            "bytes_up": 1_500_000,
            "bytes_down": 800,
            "seconds": 42.0,
            "prototypes_sha256": "ab" * 32,
            "per_client": [
                {
                    "client": number,
                    "architecture": ARCHITECTURES[number % len(ARCHITECTURES)],
                    "classes_held": 2 + number,
                    "train_samples": 100 + number,
                }
                for number in range(clients)
            ],
            "curve": curve,
        },
    )


def _accuracy(number: int, at: int) -> float:
    return 0.0 if at == 0 else 1 - 0.5 / (at + number / 3)


def _line(number: int, at: int) -> dict[str, Any]:
    return {
        "client": number,
        "round": at,
        "accuracy": _accuracy(number, at),
        "test_samples": 50,
        "losses": {"ce_shared": 2 / (at + 1), **({"l_s": 0.01 / at} if at else {})},
        "bytes_up": 1000,
        "bytes_down": 500,
    }


def _point(at: int) -> dict[str, Any]:
    return {"round": at, "weighted": _accuracy(1, at), "unweighted": _accuracy(1, at), "std_over_clients": 0.031}
