"""One short training with the options of a client, as a process: modes of torch last until a process ends.

`python -m feddbp_lab.device_check.probe OPTIONS` prints the result as its last line; both are JSON.
"""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from feddbp_client.compute.devices import CPU
from feddbp_client.compute.modes import set_mode
from feddbp_client.compute.plan import Compute, plan_compute
from feddbp_client.compute.transfers import CudaLink
from feddbp_client.config import ComputeConfig
from feddbp_client.data import ClientData, Split
from feddbp_client.training.setup import build_method
from feddbp_client.training.trainer import LocalTrainer
from feddbp_common.config.command_line import run_command
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.errors import FedDBPError
from feddbp_common.wire import Payload

PROG: Final = "gpu-check"
_CLASSES: Final = 10
_ROUNDS: Final = 3
"""The first without prototypes, the second with them but slow while kernels are chosen and compiled."""
_COPIED_BYTES: Final = 32 * 2**20
_COPIES: Final = 20


class ProbeOptions(BaseModel):
    """A training, and the options of the client that does it."""

    compute: ComputeConfig
    architecture: str
    image_size: int
    batch_size: int
    steps: int
    """Steps per round."""
    accumulate: bool = False
    memory_limit: int | None = None
    """Bytes a CUDA GPU has for it; on a CPU, the most images it has memory for at once."""
    copies: bool = False
    """Whether to measure copies to the device."""


class ProbeResult(BaseModel):
    seconds_per_step: float
    sha256: str
    """Of the weights after training."""
    warnings: list[str]
    idle_bytes: int = 0
    """Memory of a CUDA GPU before training."""
    peak_bytes: int = 0
    pinned_bytes_per_second: float = 0.0
    pageable_bytes_per_second: float = 0.0


class ProbeFailedError(FedDBPError):
    """A probe ended with an error, whose last line is the message."""


def run_probe(options: ProbeOptions) -> ProbeResult:
    """Runs a probe in a process of its own."""
    command = [sys.executable, "-P", "-m", __name__, options.model_dump_json()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ProbeFailedError(last.removeprefix(f"{PROG}: error: "))
    return ProbeResult.model_validate_json(done.stdout.strip().splitlines()[-1])


def probe(options: ProbeOptions) -> ProbeResult:
    """Trains a client for some rounds, and times the steps of the last one."""
    set_mode(options.compute.mode)
    plan = plan_compute(options.compute, [0])
    torch.set_num_threads(plan.threads)
    compute = plan.clients[0]
    warnings = _Warnings()
    logging.getLogger("feddbp.client").addHandler(warnings)
    trainer = _trainer(options, compute)
    idle = torch.cuda.memory_reserved(compute.device) if compute.device.type == "cuda" else 0
    if options.memory_limit is not None:
        _limit_memory(trainer, options.memory_limit, compute)
    received, metrics = Payload(), None
    for number in range(_ROUNDS):
        result = trainer.train(received, number, lambda *_: None)
        assert result.upload is not None
        received, metrics = Payload(prototypes=result.upload.prototypes), result.metrics
    assert metrics is not None
    pinned, pageable = _bandwidths(compute) if options.copies else (0.0, 0.0)
    return ProbeResult(
        seconds_per_step=metrics.seconds.train / options.steps,
        sha256=_digest(trainer.method),
        warnings=warnings.messages,
        idle_bytes=idle,
        peak_bytes=torch.cuda.max_memory_reserved(compute.device) if compute.device.type == "cuda" else 0,
        pinned_bytes_per_second=pinned,
        pageable_bytes_per_second=pageable,
    )


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _trainer(options: ProbeOptions, compute: Compute) -> LocalTrainer:
    training = TrainingConfig(local_epochs=1, batch_size=options.batch_size, accumulate=options.accumulate)
    config = RunConfig(data=DataConfig(dataset="custom", classes=_CLASSES), training=training, rounds=_ROUNDS)
    train = _images(options.steps * options.batch_size, options.image_size, seed=0)
    test = _images(options.batch_size, options.image_size, seed=1)
    names = tuple(map(str, range(_CLASSES)))
    shape = (3, options.image_size, options.image_size)
    return LocalTrainer(
        method=build_method(config, 0, options.architecture, "linear", shape),
        data=ClientData(train=train, test=test, classes=_CLASSES, class_names=names),
        config=config,
        client_id=0,
        compute=compute,
    )


def _images(count: int, side: int, *, seed: int) -> Split:
    random = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, side, side, 3), generator=random, dtype=torch.uint8)
    return Split(pixels.numpy(), torch.randint(_CLASSES, (count,), generator=random))


def _limit_memory(trainer: LocalTrainer, limit: int, compute: Compute) -> None:
    if compute.device.type == "cuda":
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(compute.device).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / total, compute.device)
    else:
        backbone: Any = trainer.method.backbone
        backbone[0] = _SmallDevice(backbone[0], limit)


class _SmallDevice(nn.Module):
    """A body on a device that has memory for so many images in training."""

    def __init__(self, body: nn.Module, most: int) -> None:
        super().__init__()
        self.body = body
        self._most = most

    def forward(self, images: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(images) > self._most:
            raise torch.cuda.OutOfMemoryError("simulated")
        features: Tensor = self.body(images)
        return features


def _digest(method: nn.Module) -> str:
    digest = hashlib.sha256()
    for tensor in method.state_dict().values():
        digest.update(tensor.detach().to(CPU).contiguous().numpy().tobytes())
    return digest.hexdigest()


def _bandwidths(compute: Compute) -> tuple[float, float]:
    """Bytes per second from pinned and from pageable memory to a CUDA GPU; zeros for other devices."""
    if compute.device.type != "cuda":
        return 0.0, 0.0
    pixels = torch.zeros(_COPIED_BYTES, dtype=torch.uint8)
    link = CudaLink(compute.device)
    pinned = link.buffer(pixels.shape, pixels.dtype)
    return (
        _bytes_per_second(lambda: link.send(pinned).wait()),
        _bytes_per_second(lambda: pixels.to(compute.device)),
    )


def _bytes_per_second(copy: Callable[[], object]) -> float:
    copy()  # allocates memory
    started = time.perf_counter()
    for _ in range(_COPIES):
        copy()
    return _COPIES * _COPIED_BYTES / (time.perf_counter() - started)


def _main(argv: Sequence[str]) -> int:
    print(probe(ProbeOptions.model_validate_json(argv[0])).model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(run_command(PROG, _main))
