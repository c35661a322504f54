"""The kind of CPU, the cores that this process may use, which in a container or under a scheduler are often fewer than
the machine has, and how numerical libraries use them.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CGROUPS: Final = "sys/fs/cgroup"
_DETAILS: Final = ("cpu family", "model", "CPU implementer", "CPU part", "CPU variant")
"""The fields of /proc/cpuinfo that tell CPUs of one name apart: the first two of x86, the others of ARM."""


def usable_cores(root: Path = Path("/")) -> int:
    """The smaller of the cores this process may run on and the processor time its control groups allow, in cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(int, _quotas(root))]))


def processor(root: Path = Path("/")) -> str:
    """The kind of CPU, on which the bits of a result depend.

    Virtual machines often have a name without a generation, and ARM's cores have none, so what identifies them is
    given, too.
    """
    first, _, _ = _text(root / "proc/cpuinfo").partition("\n\n")
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    name = fields.get("model name") or platform.processor() or platform.machine()
    details = (f"{detail.split()[-1]} {fields[detail]}" for detail in _DETAILS if detail in fields)
    return ", ".join((name, *details))


def let_waiting_threads_sleep() -> None:
    """Lets threads of torch that wait for each other sleep; to be called before torch is imported.

    By default they spin. While other processes use one of their two cores, a training step of ResNet-18 then takes 850
    to 2,770 ms, instead of 206 to 364.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def limit_blas_threads() -> None:
    """Limits the BLAS of numpy to one thread; to be called before torch is given its number of threads.

    Our matrices are small. Split between threads, each product waits for the slowest one: on a busy machine the
    eigenvectors of 512 x 512 take three times as long in two threads, those of 100 x 100 twenty times. With one thread,
    results do not depend on the number of cores either.
    """
    # only libraries that are loaded can be limited
    import numpy  # noqa: F401
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, user_api="blas")


def _quotas(root: Path) -> Iterator[float]:
    """Processor time per time, as the control groups of this process and those around them limit it."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if controllers and "cpu" not in names:
            continue
        mount = root / _CGROUPS / controllers  # version 2 has one hierarchy, without a list of controllers
        for group in _groups_up_to(mount, path):
            limit = _text(group / "cpu.max") or " ".join(
                _text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
            )
            quota, _, period = limit.strip().partition(" ")
            if quota.isdecimal() and period.isdecimal() and int(period):
                yield int(quota) / int(period)


def _groups_up_to(mount: Path, path: str) -> Iterator[Path]:
    """The directory of a control group and those it is in; a container may see only the last of them."""
    group = mount / path.strip("/")
    while group != mount:
        yield group
        group = group.parent
    yield mount


def _text(path: Path) -> str:
    """The content of a file; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
