"""The devices of a process for its clients: who trains where, how many at a time, and with how many threads."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from feddbp_client.compute.devices import CPU, choose_devices, describe
from feddbp_client.compute.hardware import Hardware, TorchHardware
from feddbp_client.compute.memory import ImageBudget, StreamPool
from feddbp_client.compute.modes import tune
from feddbp_client.compute.precision import Precision, compute_narrow_maps_exactly
from feddbp_client.compute.slots import TrainingSlots
from feddbp_client.config import ComputeConfig, Mode, Threads
from feddbp_client.models.blocks import backbones_in
from feddbp_common.humanize import client_names, quantity


@dataclass(frozen=True, kw_only=True)
class Compute:
    """The device of a client, and how the client computes there; by default on the CPU in float32."""

    device: torch.device = CPU
    hardware: Hardware = field(default_factory=TorchHardware)
    precision: Precision = field(default_factory=Precision)
    mode: Mode = Mode.DEFAULT
    image_budget: ImageBudget = field(default_factory=lambda: ImageBudget(0))
    shared: bool = False
    """Whether several clients of the process use the device, so that an idle one keeps its model on the host."""
    streams: StreamPool | None = None
    """Streams of a card on which several clients train at the same time."""

    def __str__(self) -> str:
        return describe(self.device, self.hardware)

    def prepare(self, method: nn.Module) -> None:
        """Sets how the backbones of a method are computed; no name in its state changes."""
        for backbone in backbones_in(method):
            backbone.half_type = self.precision.half
            if self.device.type == "cpu" and self.precision.half is torch.bfloat16:
                compute_narrow_maps_exactly(backbone)
        if self.mode is Mode.FAST:
            tune(method, self.device, self.hardware)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Runs a block with the device as the current one, and in a stream of its own if others train there too."""
        if self.device.type != "cuda":
            yield
        elif self.streams is None:
            with torch.cuda.device(self.device):
                yield
        else:
            with self.streams.stream():
                yield


@dataclass(frozen=True, kw_only=True)
class ComputePlan:
    """How the clients of a process share its devices."""

    clients: Mapping[int, Compute]
    slots: TrainingSlots
    threads: int

    def lines(self) -> Iterator[str]:
        """A line for each device: its clients, and how they compute."""
        for device in dict.fromkeys(compute.device for compute in self.clients.values()):
            here = {client_id: compute for client_id, compute in self.clients.items() if compute.device == device}
            first = next(iter(here.values()))
            images = f", up to {gibibytes(first.image_budget.limit)} for images" if first.image_budget.limit else ""
            threads = quantity(self.threads, "CPU thread")
            yield f"{first}: {client_names(here)}, {first.precision}, {threads}{images}"


def plan_compute(
    config: ComputeConfig,
    client_ids: Sequence[int],
    hardware: Hardware | None = None,
    environ: Mapping[str, str] = os.environ,
) -> ComputePlan:
    """Chooses devices for the clients of a process; raises ConfigurationError if one cannot be used."""
    hardware = hardware or TorchHardware()
    devices = choose_devices(client_ids, gpu=config.gpu, device=config.chosen_device, hardware=hardware)
    clients_on = Counter(devices.values())
    if config.gpu_memory_share < 1:
        for device in clients_on:
            if device.type == "cuda":
                hardware.limit_memory(device, config.gpu_memory_share)
    # on a CPU clients share torch's generator during rounds as well, and the cores
    jobs = {device: config.jobs_per_gpu if device.type == "cuda" else 1 for device in clients_on}
    common = {
        device: Compute(
            device=device,
            hardware=hardware,
            precision=Precision.mixed(device, hardware) if config.amp else Precision(device=device),
            mode=config.mode,
            image_budget=ImageBudget.for_device(device, hardware, config.image_memory, config.gpu_memory_share),
            shared=device.type != "cpu" and count > 1,
            streams=StreamPool(device, jobs[device]) if jobs[device] > 1 else None,
        )
        for device, count in clients_on.items()
    }
    slots = TrainingSlots(jobs, one_at_a_time=config.deterministic)
    return ComputePlan(
        clients={client_id: common[device] for client_id, device in devices.items()},
        slots=slots,
        threads=_threads(config.threads, hardware.cores(), slots.count, environ),
    )


def gibibytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _threads(asked: Threads, cores: int, trainings: int, environ: Mapping[str, str]) -> int:
    """By default a training's share of the cores, and at most OMP_NUM_THREADS, as schedulers set it."""
    if asked != "auto":
        return asked
    share = max(1, cores // trainings)
    limit = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(share, int(limit)) if limit.isdecimal() and int(limit) else share
