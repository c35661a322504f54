"""`python -m benchmarks.executors [CELLS]`: small cells on this machine and by Ray, with 1, 2 and 4 slots.

Needs the extra [ray]. All runs are made in one go, in turn, so that other load on the machine affects all alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.measurement import seconds_of
from feddbp_common.cpu_cores import usable_cores

_SLOTS: Final = (1, 2, 4)
_SUBREAPER: Final = "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"
_GRID: Final = """
title = "Small cells"
seeds = [{seeds}]
[base]
clients = 2
rounds = 1
training = {{ local_epochs = 1, feature_dim = 32 }}
[axes]
method = ["local"]
"""


def main(cells: int) -> int:
    console = Console()
    table = Table("slots", "local", "Ray", "overhead per cell", "throughput, local", "throughput, Ray")
    with tempfile.TemporaryDirectory() as directory, _ray() as address, console.status("measuring"):
        grid = Path(directory) / "grid.toml"
        grid.write_text(_GRID.format(seeds=", ".join(map(str, range(cells)))))
        first: tuple[float, float] | None = None
        for slots in _SLOTS:
            local, ray = (seconds_of(partial(_run, grid, slots, on)) for on in (None, address))
            first = first or (local, ray)
            table.add_row(
                str(slots),
                f"{local / cells:.2f} s per cell",
                f"{ray / cells:.2f} s per cell",
                f"{(ray - local) / cells:+.2f} s, {ray / local:.2f}x",
                f"{first[0] / local:.2f}x",
                f"{first[1] / ray:.2f}x",
            )
    console.print(f"{cells} cells of one round, {usable_cores()} cores", table, sep="\n")
    return 0


def _run(grid: Path, slots: int, address: str | None) -> None:
    """Runs the grid with so many cells at a time, each with its part of the cores."""
    part = usable_cores() / slots
    where = ("--executor", "ray", "--ray-address", address) if address else ()
    with tempfile.TemporaryDirectory(dir=grid.parent) as out:
        command = (sys.executable, "-m", "feddbp_lab.cli", "experiment", "run", str(grid), "--out", out, *where)
        options = ("--jobs", str(slots), "--num-cpus", f"{part:g}")
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _ray() -> Iterator[str]:
    os.environ[_SUBREAPER] = "true"
    import ray

    options = {"num_cpus": usable_cores(), "object_store_memory": 80_000_000, "include_dashboard": False}
    ray.init("local", log_to_driver=False, logging_level="error", **options)  # type: ignore[arg-type]
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
