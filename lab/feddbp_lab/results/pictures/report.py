"""Writes the pictures of a run beside its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from feddbp_common.atomic_files import replace_text
from feddbp_common.humanize import NO_VALUE, human_bytes, human_seconds, percent
from feddbp_common.methods import method_named
from feddbp_common.printable import printable
from feddbp_lab.results.pictures.figure import write_pictures
from feddbp_lab.results.pictures.page import render_pictures
from feddbp_lab.results.pictures.run_pictures import pictures_of
from feddbp_lab.results.run_files import RunFiles
from feddbp_lab.results.run_info import exchange_text
from feddbp_lab.results.run_results import RunResults

PICTURES_DIR: Final = "pictures"
PAGE_NAME: Final = "report.html"
_NAME_LENGTH: Final = 80
"""Characters of a name that a client gives."""


def write_run_pictures(
    run: RunFiles, results: RunResults, *, columns: int = 2, baseline: Mapping[int, float] | None = None
) -> None:
    """Writes DIR/pictures/*.png and *.svg and DIR/report.html."""
    directory = run.path
    pictures = pictures_of(run, results, baseline or {})
    files = write_pictures(pictures, directory / PICTURES_DIR, columns=columns)
    title = f"{method_named(results.summary['method']).title} on {printable(results.summary['dataset'], 80)}"
    page = render_pictures(title, _facts(results, run.notes), _clients(results), pictures, files)
    replace_text(directory / PAGE_NAME, page)


def pictures_place(directory: Path) -> str:
    """Where the pictures of a run are, for people."""
    return f"{directory / PAGE_NAME}, and as PNG and SVG in {directory / PICTURES_DIR}/"


def _facts(results: RunResults, notes: Sequence[str]) -> dict[str, str]:
    summary = results.summary
    last, best = summary["accuracy"]["last"], summary["accuracy"]["best"]
    return {
        "Clients": str(len(summary["per_client"])),
        "Rounds": str(summary["completed_rounds"]),
        **({"Exchange": exchange} if (exchange := exchange_text(summary["config"])) else {}),
        "Seed": str(summary["seed"]),
        "Outcome": str(summary["outcome"]),
        "Mean accuracy, last": _of(last),
        "Mean accuracy, best": _of(best),
        "Traffic": human_bytes(summary["bytes_up"] + summary["bytes_down"]),
        "Time": human_seconds(summary["seconds"]),
        **({"Privacy": "; ".join(summary["privacy"])} if "privacy" in summary else {}),
        **({"Damaged files": "; ".join(notes)} if notes else {}),
    }


def _clients(results: RunResults) -> list[dict[str, str]]:
    """What the command's table has of every client, by column."""
    rows = []
    for client in results.summary["per_client"]:
        accuracies = list(results.accuracies(client["client"]).values())
        row = {
            "Client": str(client["client"]),
            "Name": printable(client.get("name") or NO_VALUE, _NAME_LENGTH),
            "Architecture": printable(client["architecture"] or NO_VALUE, _NAME_LENGTH),
            "Classes": str(client["classes_held"] or NO_VALUE),
            "Samples": str(client["train_samples"] or NO_VALUE),
            "First accuracy": percent(accuracies[0] if accuracies else None),
            "Last accuracy": percent(accuracies[-1] if accuracies else None),
        }
        rows.append(row)
    if all(row["Name"] == NO_VALUE for row in rows):
        for row in rows:
            del row["Name"]
    return rows


def _of(point: dict[str, float] | None) -> str:
    return percent(None) if point is None else f"{percent(point['weighted'])} over {point['clients']:.0f} clients"
