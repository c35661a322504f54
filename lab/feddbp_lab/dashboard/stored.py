"""Runs in files: the state directory of a server, the output of a demo, or the cells of an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from feddbp_common.config.run import RunConfig
from feddbp_common.humanize import short_device
from feddbp_common.wire import PrototypeSet
from feddbp_lab.dashboard.model import Json, ReportRow
from feddbp_lab.dashboard.source import RunSource
from feddbp_lab.results.damage import damage_as_error
from feddbp_lab.results.run_files import RunFiles
from feddbp_lab.results.run_info import run_info
from feddbp_lab.results.run_results import RunResults, has_trained
from feddbp_server.reporting.history import RoundRecord
from feddbp_server.reporting.prototype_snapshots import snapshot_files

_NOT_MEASURED: Final = {"train": 0.0, "evaluate": 0.0, "collect": 0.0}
"""Of a packed cell, which has no times; the page shows none."""


class StoredRun(RunSource):
    """A run that is read once: it has ended, or is read as it stands."""

    def __init__(self, files: RunFiles) -> None:
        super().__init__()
        self.files = files
        with damage_as_error(str(files.path)):
            self._fill(files.results())

    def _fill(self, results: RunResults) -> None:
        summary, model = results.summary, self.model
        config = RunConfig.model_validate(summary["config"])
        has_prototypes = bool(snapshot_files(self.files.state))
        model.start(run_info(config, run_id=summary["run_id"], shares_prototypes=has_prototypes))
        for client in _clients(summary, self.files.clients()):
            model.join(client)
        for line in results.metrics:
            model.report(_row(line))
        for record in self.files.rounds():
            model.close_round(_round(record))
        model.set_complete()
        troubles = self.files.troubles()
        model.set_status(
            {**_status(summary), "served": self.files.is_served(), **troubles, "notes": self.files.notes}, {}
        )

    async def load_prototypes(self) -> dict[int, PrototypeSet]:
        return self._snapshots or self.files.snapshots()

    async def client_prototypes(self, client_id: int) -> list[Json]:
        return self.files.client_prototypes(client_id)


def _clients(summary: dict[str, Any], joined: dict[int, Json]) -> Iterator[Json]:
    for entry in summary["per_client"]:
        known = joined.get(entry["client"], {})
        yield {
            "id": entry["client"],
            "name": str(entry.get("name") or known.get("name") or ""),
            "architecture": entry["architecture"],
            "device": short_device(str(known.get("device", ""))),
            "parameters": entry["parameters"],
            "label_counts": known.get("label_counts", []),
            "classes_held": entry["classes_held"],
            "train_samples": entry["train_samples"],
            "test_samples": entry["test_samples"],
        }


def _row(line: dict[str, Any]) -> ReportRow:
    seconds = line["seconds"] or _NOT_MEASURED
    return ReportRow(
        client=line["client"],
        round=line["round"],
        accuracy=line["accuracy"],
        samples=line["test_samples"],
        train=seconds["train"],
        evaluate=seconds["evaluate"],
        collect=seconds["collect"],
        up=line["bytes_up"],
        down=line["bytes_down"],
        has_trained=has_trained(line),
        losses=line["losses"],
    )


def _round(record: RoundRecord) -> Json:
    return {
        "round": record.round,
        "opened_at": record.opened_at,
        "seconds": record.seconds,
        "aggregation": record.aggregation_seconds,
        "missing": record.missing,
        "memory": record.resident_bytes,
        "clients": record.clients,
    }


def _status(summary: dict[str, Any]) -> Json:
    last = (summary.get("accuracy") or {}).get("last")
    return {
        "phase": summary["outcome"],
        "round": summary["completed_rounds"],
        "rounds": summary["rounds"],
        "done": summary["completed_rounds"],
        "missing": [],
        "reason": summary["reason"],
        "seconds_left": None,
        "mean_accuracy": last["weighted"] if last else None,
        "bytes_up": summary["bytes_up"],
        "bytes_down": summary["bytes_down"],
        "refusals": {},
        "incidents": [],
        "seconds": summary["seconds"],
        "stored": True,
        "trouble": "",
    }
