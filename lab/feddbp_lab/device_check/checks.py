"""What a device does: its hardware, the time of a step in every mode, equal bits, copies, and full memory."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from feddbp_client.compute.devices import card_of, describe
from feddbp_client.compute.hardware import Hardware
from feddbp_client.compute.modes import can_compile
from feddbp_client.compute.plan import gibibytes
from feddbp_client.compute.precision import Precision
from feddbp_client.config import ComputeConfig
from feddbp_common.version import VERSION
from feddbp_lab.device_check.probe import ProbeFailedError, ProbeOptions, ProbeResult

RunProbe = Callable[[ProbeOptions], ProbeResult]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A line of the report; `holds` is None where there is nothing to hold."""

    question: str
    answer: str
    holds: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained to see how a device does."""

    architecture: str
    image_size: int
    batch_size: int
    steps: int


def hardware_findings(device: torch.device, hardware: Hardware) -> Iterator[Finding]:
    yield Finding(question="feddbp, Python", answer=f"{VERSION}, {platform.python_version()} on {platform.platform()}")
    yield Finding(question="torch", answer=f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {_cudnn()}")
    yield Finding(question="CPU cores", answer=str(hardware.cores()))
    for card in hardware.cards():
        free = gibibytes(hardware.free_bytes(torch.device("cuda", card.index)))
        capability = ".".join(map(str, card.capability))
        yield Finding(
            question=f"cuda:{card.index}",
            answer=f"{card.name}, compute capability {capability}, {free} of {gibibytes(card.total_bytes)} free",
        )
    if hardware.cards():
        yield Finding(question="driver", answer=_driver())
    else:
        yield Finding(
            question="GPU", answer="Apple's" if hardware.has_mps() else "none that torch sees; the CPU is checked"
        )
    yield Finding(question="checked", answer=describe(device, hardware))
    yield Finding(question="--amp", answer=f"trains in {Precision.mixed(device, hardware)}")
    if card_of(device, hardware) is not None:
        compiled = "channels last, compiled" if can_compile(device, hardware) else "channels last, not compiled"
        yield Finding(question="--fast", answer=compiled)
    else:
        yield Finding(question="--fast", answer="changes nothing without a CUDA GPU")


class DeviceCheck:
    """Runs probes on a device and says what they found."""

    def __init__(self, device: torch.device, workload: Workload, run: RunProbe) -> None:
        self._device = device
        self._workload = workload
        self._run = run
        self._plain: ProbeResult | None = None

    def findings(self) -> Iterator[Finding]:
        """One after the other, as the probes end."""
        yield from self._step_times()
        yield from self._determinism()
        if self._is_cuda:
            yield from self._copies()
        yield from self._full_memory()

    @property
    def _is_cuda(self) -> bool:
        return self._device.type == "cuda"

    def _probe(
        self, *, accumulate: bool = False, memory_limit: int | None = None, copies: bool = False, **compute: Any
    ) -> ProbeResult:
        workload = self._workload
        return self._run(
            ProbeOptions(
                compute=ComputeConfig(device=str(self._device), **compute),
                architecture=workload.architecture,
                image_size=workload.image_size,
                batch_size=workload.batch_size,
                steps=workload.steps,
                accumulate=accumulate,
                memory_limit=memory_limit,
                copies=copies,
            )
        )

    def _step_times(self) -> Iterator[Finding]:
        modes: dict[str, dict[str, Any]] = {
            "float32": {},
            "--amp": {"amp": True},
            "--deterministic": {"deterministic": True},
        }
        if self._is_cuda:
            modes |= {
                "--fast": {"fast": True},
                "--fast --amp": {"fast": True, "amp": True},
                "--image-memory 0": {"image_memory": 0},
            }
        for name, compute in modes.items():
            question = f"step, {name}"
            try:
                result = self._probe(**compute)
            except ProbeFailedError as error:
                yield Finding(question=question, answer=str(error), holds=False)
                continue
            self._plain = self._plain or result
            memory = f", {gibibytes(result.peak_bytes)} at most" if self._is_cuda else ""
            faster = self._plain.seconds_per_step / result.seconds_per_step
            yield Finding(
                question=question,
                answer=f"{1000 * result.seconds_per_step:.2f} ms ({faster:.2f} times the speed of float32){memory}",
            )

    def _determinism(self) -> Iterator[Finding]:
        question = "two trainings with --deterministic"
        try:
            one, other = (self._probe(deterministic=True) for _ in range(2))
        except ProbeFailedError as error:
            yield Finding(question=question, answer=str(error), holds=False)
            return
        same = one.sha256 == other.sha256
        yield Finding(question=question, answer="the same bits" if same else "different bits", holds=same)

    def _copies(self) -> Iterator[Finding]:
        try:
            found = self._probe(copies=True)
        except ProbeFailedError as error:
            yield Finding(question="copies to the GPU", answer=str(error), holds=False)
            return
        pinned, pageable = found.pinned_bytes_per_second, found.pageable_bytes_per_second
        yield Finding(
            question="copies to the GPU",
            answer=f"{pinned / 1e9:.1f} GB/s from pinned memory, {pageable / 1e9:.1f} GB/s from pageable",
        )

    def _full_memory(self) -> Iterator[Finding]:
        question = "out of memory, with --accumulate" + ("" if self._is_cuda else " (simulated)")
        try:
            found = self._probe(accumulate=True, memory_limit=self._tight_memory())
        except ProbeFailedError as error:
            yield Finding(question=question, answer=str(error), holds=False)
            return
        chunks = [warning.rpartition("; ")[2] for warning in found.warnings if "in chunks of" in warning]
        answer = f"recovered: {chunks[-1]}" if chunks else "memory was not full, nothing to recover from"
        yield Finding(question=question, answer=answer, holds=bool(chunks))

    def _tight_memory(self) -> int:
        """Between what is in use before training and what training would like to use."""
        if not self._is_cuda or self._plain is None:
            return self._workload.batch_size // 2
        idle, peak = self._plain.idle_bytes, self._plain.peak_bytes
        return idle + (peak - idle) * 6 // 10


def _cudnn() -> str:
    return str(torch.backends.cudnn.version() or "none")


def _driver() -> str:
    """The version of NVIDIA's driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown: nvidia-smi is not on the path"
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return ", ".join(dict.fromkeys(done.stdout.split())) or "unknown"
