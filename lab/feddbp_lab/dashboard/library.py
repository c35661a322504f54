"""The runs a dashboard serves: one on a server, one in files, or a folder of them to browse and compare."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from feddbp_common.artifacts import DATABASE_NAME, METRICS_NAME, PACKED_METRICS_NAME, SUMMARY_NAME
from feddbp_common.config.identity import canonical
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError, FedDBPError
from feddbp_common.methods import method_named
from feddbp_common.printable import printable_values
from feddbp_lab.dashboard.model import Json
from feddbp_lab.dashboard.source import RunSource
from feddbp_lab.dashboard.stored import StoredRun
from feddbp_lab.results.baseline import check_local, check_same_clients
from feddbp_lab.results.damage import DAMAGE, damage_as_error
from feddbp_lab.results.run_files import RunFiles, find_runs, last_accuracies
from feddbp_lab.results.run_info import exchange_text
from feddbp_lab.results.run_results import read_summary
from feddbp_lab.results.splits import LOCAL, split_of
from feddbp_server.reporting.unfinished import summarise_unfinished

_OPEN_RUNS: Final = 8
"""Runs of a folder that stay in memory."""
_CHANGING: Final = (SUMMARY_NAME, METRICS_NAME, PACKED_METRICS_NAME, DATABASE_NAME, f"{DATABASE_NAME}-wal")
"""Files that a run writes to in every round, and those that it has at its end."""


class Stamp(NamedTuple):
    """Tells whether a run has changed since it was read; every round changes it."""

    files: tuple[tuple[str, int, int], ...]
    """Name, time and size."""
    is_served: bool


class Listing(NamedTuple):
    """The runs of a folder."""

    runs: list[Json]
    damaged: list[Json]
    """Those whose files cannot be read, with the problem."""
    configs: dict[str, RunConfig]
    """By key, of the runs whose configuration this version knows."""


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """What the list of runs has of one of them, as of its files at that time."""

    stamp: Stamp
    entry: Json
    problem: str = ""
    """Empty unless its files cannot be read."""
    config: RunConfig | None = None


class Library:
    """Finds and opens runs by their key.

    A folder is looked at again whenever its list is asked for; runs that are found later do not change the keys of
    others. Of its runs only those are read again whose files have changed.
    """

    def __init__(
        self, *, single: RunSource | None = None, folder: Path | None = None, runs: Sequence[Path] = ()
    ) -> None:
        self.single = single
        self.folder = folder
        self._keys = {path: str(number) for number, path in enumerate(runs)}
        self._paths = {key: path for path, key in self._keys.items()}
        self._open: OrderedDict[str, tuple[tuple[Stamp, ...], RunSource]] = OrderedDict()
        self._listed: dict[str, _Listed] = {}
        self._listing = asyncio.Lock()

    async def get(self, key: str, *, newest: bool = False) -> RunSource | None:
        """None if there is no such run; raises FedDBPError, in one line, for one whose files are damaged.

        `newest` reads a run again that has changed: once for a page, whose parts are of the same reading.
        """
        if self.single is not None:
            return self.single if key == "0" else None
        if key not in self._paths:
            return None
        if newest or key not in self._open:
            configs = (await self.listing()).configs
            stamps = self._stamps(key, configs)
            if key not in self._open or self._open[key][0] != stamps:
                self._open[key] = stamps, await asyncio.to_thread(self._read, key, configs)
            while len(self._open) > _OPEN_RUNS:
                self._open.popitem(last=False)
        self._open.move_to_end(key)
        return self._open[key][1]

    async def listing(self) -> Listing:
        """The runs that are in the folder now."""
        async with self._listing:
            keys = await asyncio.to_thread(self._list)
        found = {key: self._listed[key] for key in keys}
        return Listing(
            runs=[listed.entry for listed in found.values() if not listed.problem],
            damaged=[{**listed.entry, "problem": listed.problem} for listed in found.values() if listed.problem],
            configs={key: listed.config for key, listed in found.items() if listed.config is not None},
        )

    def _stamps(self, key: str, configs: Mapping[str, RunConfig]) -> tuple[Stamp, ...]:
        """Of a run, and of the local runs that it may be compared with."""
        return tuple(_stamp(self._paths[each]) for each in (key, *locals_of(key, configs)))

    def _read(self, key: str, configs: Mapping[str, RunConfig]) -> RunSource:
        source = StoredRun(RunFiles(self._paths[key]))
        for local in locals_of(key, configs):
            with suppress(FedDBPError):  # of another run: this one is shown all the same
                source.baseline = read_baseline(self._paths[local])
                break
        return source

    def _list(self) -> list[str]:
        """Reads the runs that are new or have changed; returns the keys of all."""
        assert self.folder is not None
        keys = [self._keys.setdefault(path, str(len(self._keys))) for path in find_runs(self.folder)]
        self._paths = {key: path for path, key in self._keys.items()}
        for key in keys:
            stamp = _stamp(self._paths[key])
            if key not in self._listed or self._listed[key].stamp != stamp:
                self._listed[key] = _list_run(key, self._paths[key], stamp)
        return keys


def _list_run(key: str, path: Path, stamp: Stamp) -> _Listed:
    try:
        with damage_as_error(str(path)):
            summary = _summary(path)
            entry = _entry(key, path, summary) | {"served": stamp.is_served}
    except FedDBPError as error:
        return _Listed(stamp=stamp, entry={"key": key, "name": path.name}, problem=str(error))
    config = None
    with suppress(*DAMAGE):
        config = RunConfig.model_validate(summary["config"])
    return _Listed(stamp=stamp, entry=entry, config=config)


def _stamp(path: Path) -> Stamp:
    found = []
    for file in (folder / name for folder in (path, path / "server") for name in _CHANGING):
        with suppress(OSError):
            status = file.stat()
            found.append((f"{file.parent.name}/{file.name}", status.st_mtime_ns, status.st_size))
    return Stamp(tuple(found), RunFiles(path).is_served())


def read_baseline(path: Path, run: RunFiles | None = None) -> dict[int, float]:
    """Every client's newest accuracy in the `local` run at a path; raises FedDBPError if it cannot be compared.

    Without files of the run, as of one on another machine, only the method is checked.
    """
    with damage_as_error(str(path)):
        local = RunFiles(path).results()
        check_local(path, local.summary["method"])
        accuracies = last_accuracies(local.metrics)
    if run is not None:
        with damage_as_error(str(run.path)):
            check_same_clients(path, local, run.results())
    return accuracies


def locals_of(key: str, configs: Mapping[str, RunConfig]) -> list[str]:
    """The keys of the `local` runs with which the clients of a run can be compared."""
    run = configs.get(key)
    if run is None or run.method == LOCAL:
        return []
    split = split_of(canonical(run))
    return [other for other, found in configs.items() if found.method == LOCAL and split_of(canonical(found)) == split]


def _entry(key: str, path: Path, summary: dict[str, Any]) -> Json:
    accuracy = summary["accuracy"]
    return {
        "key": key,
        "name": path.name,
        "method": summary["method"],
        "title": method_named(summary["method"]).title,
        "settings": summary["config"].get("method_settings", {}),
        "dataset": summary["dataset"],
        "alpha": summary["config"].get("data", {}).get("alpha"),
        "exchange": exchange_text(summary["config"]),
        "clients": summary["clients"],
        "rounds": summary["rounds"],
        "completed": summary["completed_rounds"],
        "seed": summary["seed"],
        "outcome": summary["outcome"],
        "best": accuracy["best"]["weighted"] if accuracy["best"] else None,
        "last": accuracy["last"]["weighted"] if accuracy["last"] else None,
        "seconds": summary["seconds"],
        "bytes": summary["bytes_up"] + summary["bytes_down"],
        "curve": [[point["round"], round(point["weighted"], 5)] for point in summary["curve"]],
    }


def _summary(path: Path) -> dict[str, Any]:
    for directory in (path, path / "server"):
        if (directory / SUMMARY_NAME).exists():
            return read_summary(directory)
    unfinished: dict[str, Any] | None = printable_values(summarise_unfinished(RunFiles(path).state))
    if unfinished is None:
        raise ConfigurationError(f"{path} has no run in it, or no longer")
    return unfinished
