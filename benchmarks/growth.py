"""How the server's cost grows: CPU time of a round and memory, against the clients N and against the classes C.

`python -m benchmarks.growth [PNG]` also draws both with their slopes. Clients are light ones in two processes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from benchmarks import bars
from benchmarks.measurement import Measurement, table_of
from benchmarks.round import Setting, Workers, product
from benchmarks.servers import cpu_seconds, peak_bytes, resident_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROCESSES = 2
CLIENTS = (25, 50, 100, 200, 400)
CLASSES = (10, 50, 100, 200)
FEW_CLASSES, FEW_CLIENTS = 10, 50
WARM_UP = 2


@dataclass(frozen=True, kw_only=True)
class Point:
    """What a server costs at one size; memory is above that of the same server before anybody joined."""

    setting: Setting
    cpu_seconds: float
    """Of a round."""
    bytes: int

    @property
    def client_milliseconds(self) -> float:
        return 1000 * self.cpu_seconds / self.setting.clients


def point(clients: int, classes: int) -> Point:
    setting = Setting(clients=clients, classes=classes, rounds=WARM_UP + max(4, 400 // clients))
    with product(setting, None) as (address, pid):
        idle = resident_bytes(pid)
        workers = Workers(address, "-", clients, None, processes=PROCESSES)
        try:
            for _ in range(WARM_UP):
                workers.do_round("ours")
            before = cpu_seconds(pid)
            for _ in range(setting.rounds - WARM_UP):
                workers.do_round("ours")
            spent = (cpu_seconds(pid) - before) / (setting.rounds - WARM_UP)
            return Point(setting=setting, cpu_seconds=spent, bytes=peak_bytes(pid) - idle)
        finally:
            workers.kill()


@dataclass(frozen=True, kw_only=True)
class Growth:
    by_clients: Sequence[Point]
    by_classes: Sequence[Point]

    def measurements(self) -> list[Measurement]:
        fewest, most = self.by_clients[0], self.by_clients[-1]
        cpu, memory = self.client_slopes()
        class_cpu, class_memory = self.class_slopes()
        return [
            Measurement(
                question=f"server CPU of a client and round, N={most.setting.clients} against {fewest.setting.clients}",
                value=most.client_milliseconds / fewest.client_milliseconds,
                bar=bars.CPU_GROWTH,
                detail=f"{cpu:.2f} ms and {memory:.0f} kB more for each client at C={FEW_CLASSES}",
            ),
            Measurement(
                question="server CPU of a client and round for each class more",
                value=class_cpu,
                bar=None,
                unit="us",
                detail=f"and {class_memory:.1f} kB of memory, at N={FEW_CLIENTS}",
            ),
        ]

    def client_slopes(self) -> tuple[float, float]:
        """Milliseconds of CPU a round and kB for each client more."""
        clients = [point.setting.clients for point in self.by_clients]
        return (
            _slope(clients, [1000 * point.cpu_seconds for point in self.by_clients]),
            _slope(clients, [point.bytes / 1e3 for point in self.by_clients]),
        )

    def class_slopes(self) -> tuple[float, float]:
        """Microseconds of CPU a round and kB, of one client, for each class more."""
        classes = [point.setting.classes for point in self.by_classes]
        return (
            _slope(classes, [1000 * point.client_milliseconds for point in self.by_classes]),
            _slope(classes, [point.bytes / point.setting.clients / 1e3 for point in self.by_classes]),
        )

    def draw(self, path: Path) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 5), layout="constrained")
        (cpu, memory), (class_cpu, class_memory) = figure.subplots(2, 2)
        clients = [point.setting.clients for point in self.by_clients]
        classes = [point.setting.classes for point in self.by_classes]
        _line(cpu, clients, [1000 * point.cpu_seconds for point in self.by_clients], "ms a client")
        _line(memory, clients, [point.bytes / 1e6 for point in self.by_clients], "MB a client")
        _line(class_cpu, classes, [point.client_milliseconds for point in self.by_classes], "ms a class")
        per_client = [point.bytes / point.setting.clients / 1e3 for point in self.by_classes]
        _line(class_memory, classes, per_client, "kB a class")
        for axes, of in ((cpu, "server CPU of a round (ms)"), (memory, "memory (MB)")):
            axes.set(xlabel=f"clients N, C = {FEW_CLASSES}", ylabel=of)
        for axes, of in ((class_cpu, "server CPU of a client (ms)"), (class_memory, "memory of a client (kB)")):
            axes.set(xlabel=f"classes C, N = {FEW_CLIENTS}", ylabel=of)
        figure.savefig(path, dpi=80)


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return float(np.polyfit(x, y, 1)[0])


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], unit: str) -> None:
    slope, start = np.polyfit(x, y, 1)
    axes.plot(x, y, "o", color="tab:blue")
    axes.plot([0, max(x)], [start, start + slope * max(x)], color="tab:orange", label=f"{slope:.3g} {unit}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)


def grow() -> Growth:
    return Growth(
        by_clients=[point(clients, FEW_CLASSES) for clients in CLIENTS],
        by_classes=[point(FEW_CLIENTS, classes) for classes in CLASSES],
    )


def measure() -> list[Measurement]:
    return grow().measurements()


def main(words: Sequence[str]) -> int:
    grown = grow()
    for path in words[:1]:
        grown.draw(Path(path))
    Console().print(table_of(grown.measurements()))
    for at in (*grown.by_clients, *grown.by_classes):
        print(f"{at.setting.name}: {at.client_milliseconds:.2f} ms a client and round, {at.bytes / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
