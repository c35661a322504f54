"""`python -m benchmarks [NAME...]`: runs benchmarks and prints their results next to the targets."""

from __future__ import annotations

import sys
from importlib import import_module

from rich.console import Console

from benchmarks.measurement import Measurement, table_of

QUESTIONS = (
    "training_step",
    "augmentation",
    "fisher_pass",
    "many_clients",
    "wire_bytes",
    "round",
    "ladder",
    "flower",
    "growth",
    "round_gap",
    "closing",
    "ingest",
    "admission",
    "startup",
)


def main(names: list[str]) -> int:
    unknown = set(names) - set(QUESTIONS)
    if unknown:
        print(f"unknown benchmark {', '.join(sorted(unknown))}; known: {', '.join(QUESTIONS)}", file=sys.stderr)
        return 2
    console = Console()
    measured: list[Measurement] = []
    for name in names or QUESTIONS:
        with console.status(f"measuring {name}"):
            measured += import_module(f"benchmarks.{name}").measure()
    console.print(table_of(measured))
    return 0 if all(measurement.holds for measurement in measured) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
