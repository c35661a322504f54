"""The names a run gets from its configuration, as the commands give them: the run id's first part, and the cell's id.

A configuration is what stands under `run` in the server's configuration file, as nested tables.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import Federation

Configuration = Mapping[str, Any]


@dataclass(frozen=True)
class StoredRun:
    """A run as a server's database names and describes it."""

    run_id: str
    config: str

    @property
    def fingerprint(self) -> str:
        return self.run_id.partition("-")[0]


def stored_run(state_dir: Path) -> StoredRun:
    with closing(sqlite3.connect(f"file:{state_dir / 'run.sqlite3'}?mode=ro", uri=True)) as database:
        run_id, config = database.execute("SELECT run_id, config FROM run").fetchone()
    return StoredRun(run_id, config)


def begin_run(federation: Federation, configuration: Configuration) -> StoredRun:
    """The run that a server begins when it is started with the configuration in its file."""
    file = federation.directory / "server.toml"
    file.write_text(f"run = {_toml(configuration)}\n", encoding="utf-8")
    server = federation.server("--config", file)
    found = stored_run(federation.state_dir)
    server.kill()
    return found


def cell_ids(federation: Federation, configurations: Sequence[Configuration]) -> list[str]:
    """The ids of the cells of a grid of these configurations, one by one; all must have the same seed."""
    (seed,) = {configuration.get("seed", 0) for configuration in configurations}
    points = [
        _toml({"label": str(number), "set": {key: value for key, value in configuration.items() if key != "seed"}})
        for number, configuration in enumerate(configurations)
    ]
    grid = federation.directory / "grid.toml"
    grid.write_text(f'title = "Grid"\naxes.configuration = [{", ".join(points)}]\n', encoding="utf-8")
    arguments = ("experiment", "run", grid, "--seeds", seed, "--dry-run")
    listing = federation.start("feddbp_lab.cli", *arguments, name="listing")
    listing.expect_exit(0)
    found = listing.log.split()
    assert len(found) == len(configurations), f"{len(configurations)} configurations, but these cells:\n{listing.log}"
    return found


def _toml(value: Any) -> str:
    """Inline, in one line; values other than tables are written as in JSON."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(held)}" for key, held in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
