"""`python -m benchmarks [NAME...]`: measures, and shows the figures beside their bars."""

from __future__ import annotations

import sys
from importlib import import_module

from rich.console import Console
from rich.table import Table

from benchmarks.measurement import Measurement

QUESTIONS = ("training_step", "fisher_pass", "wire_bytes", "round_gap", "closing", "ingest", "startup")


def main(names: list[str]) -> int:
    unknown = set(names) - set(QUESTIONS)
    if unknown:
        print(f"there is no benchmark {', '.join(sorted(unknown))}; there are: {', '.join(QUESTIONS)}", file=sys.stderr)
        return 2
    console = Console()
    measured: list[Measurement] = []
    for name in names or QUESTIONS:
        with console.status(f"measuring {name}"):
            measured += import_module(f"benchmarks.{name}").measure()
    console.print(_table(measured))
    return 0 if all(measurement.holds for measurement in measured) else 1


def _table(measured: list[Measurement]) -> Table:
    table = Table("what", "measured", "bar", "", "detail")
    for measurement in measured:
        sign = "<=" if measurement.at_most else ">="
        table.add_row(
            measurement.question,
            f"{measurement.value:.3g} {measurement.unit}",
            f"{sign} {measurement.bar:g} {measurement.unit}",
            "[green]holds[/]" if measurement.holds else "[red]missed[/]",
            measurement.detail,
        )
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
