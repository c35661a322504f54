"""What a cell needs of the machine it runs on, and what there is."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from pydantic import ByteSize, Field, model_validator

from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError
from feddbp_common.humanize import human_bytes

_TOLERANCE: Final = 1e-6
_CGROUP_LIMIT: Final = "sys/fs/cgroup/memory.max"


class Resources(FrozenModel):
    """Resources: what a cell needs; what is not given is shared out among the cells that run at the same time."""

    num_cpus: float | None = Field(None, gt=0, description="CPU cores of a cell; a fraction lets several share a core")
    num_gpus: float | None = Field(
        None, ge=0, description="GPUs of a cell; a fraction lets several share a GPU and caps the memory each may take"
    )
    memory: ByteSize | None = Field(
        None,
        gt=0,
        description="memory of a cell, e.g. 4GB; cells only run together if theirs fits",
    )

    @model_validator(mode="after")
    def _whole_gpus(self) -> Self:
        if self.num_gpus is not None and self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise ConfigurationError(f"num_gpus: {self.num_gpus:g} is neither a fraction of one GPU nor a whole number")
        return self

    def or_else(self, others: Resources) -> Resources:
        """These, and for what is not given the others."""
        return Resources.model_validate({**others.model_dump(), **self.model_dump(exclude_none=True)})

    def request(self, default: Request) -> Request:
        return Request(
            cpus=self.num_cpus or default.cpus,
            gpus=default.gpus if self.num_gpus is None else self.num_gpus,
            memory=int(self.memory or default.memory),
        )


@dataclass(frozen=True, kw_only=True)
class Request:
    """The resources of one cell, with nothing left open."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0

    def fits(self, cpus: float, gpus: float, memory: float) -> bool:
        return self.cpus <= cpus + _TOLERANCE and self.gpus <= gpus + _TOLERANCE and self.memory <= memory

    def __str__(self) -> str:
        return describe(self.cpus, self.gpus, self.memory)


def describe(cpus: float, gpus: float, memory: float) -> str:
    parts = [f"{cpus:.3g} CPU{'s' if cpus != 1 else ''}", f"{gpus:.3g} GPU{'s' if gpus != 1 else ''}"]
    return ", ".join(parts) + (f" and {human_bytes(memory)} of memory" if memory else "")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What a cell was given: its request, and the GPUs by number."""

    request: Request
    gpus: tuple[int, ...] = ()
    caps_memory: bool = True
    """Whether a fraction of a GPU limits the memory that is taken."""

    @property
    def processes(self) -> int:
        """Client processes, of one thread each on the CPU: results do not depend on how many there are."""
        return 1 if self.gpus else max(1, int(self.request.cpus + _TOLERANCE))

    @property
    def threads(self) -> int:
        """Of a client process; beside a GPU they prepare its batches."""
        return max(1, int(self.request.cpus + _TOLERANCE)) if self.gpus else 1

    @property
    def gpu_share(self) -> float:
        """The part of its GPU's memory that the cell may take."""
        return self.request.gpus if self.caps_memory and 0 < self.request.gpus < 1 else 1.0


@dataclass
class MachineCapacity:
    """The free resources of this machine, given to cells and taken back."""

    cpus: float
    gpus: tuple[int, ...] = ()
    memory: int = 0
    _free_gpus: dict[int, float] = field(init=False)

    def __post_init__(self) -> None:
        self._total = self.cpus, len(self.gpus), self.memory
        self._free_gpus = dict.fromkeys(self.gpus, 1.0)

    def check(self, request: Request) -> None:
        """Raises ConfigurationError if the request would not fit on the idle machine."""
        if not request.fits(*self._total):
            raise ConfigurationError(f"a cell asks for {request}; this machine has {describe(*self._total)}")

    def allocate(self, request: Request) -> Allocation | None:
        """Resources for a cell; None if there are not enough free ones."""
        gpus = self._free_gpus_for(request.gpus)
        if gpus is None or not request.fits(self.cpus, request.gpus, self.memory):
            return None
        self._change(request, gpus, -1)
        return Allocation(request=request, gpus=gpus)

    def release(self, allocation: Allocation) -> None:
        self._change(allocation.request, allocation.gpus, +1)

    def _free_gpus_for(self, count: float) -> tuple[int, ...] | None:
        """Those with the most room, so that cells are spread over them."""
        if count == 0:
            return ()
        each = min(count, 1.0)
        free = sorted((-share, number) for number, share in self._free_gpus.items() if share >= each - _TOLERANCE)
        needed = max(1, round(count))
        return tuple(number for _, number in free[:needed]) if len(free) >= needed else None

    def _change(self, request: Request, gpus: tuple[int, ...], sign: int) -> None:
        self.cpus += sign * request.cpus
        self.memory += sign * request.memory
        for number in gpus:
            self._free_gpus[number] += sign * min(request.gpus, 1.0)


def machine_memory(root: Path = Path("/")) -> int:
    """The memory of this machine, or of the container this process is in."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = (root / _CGROUP_LIMIT).read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total
