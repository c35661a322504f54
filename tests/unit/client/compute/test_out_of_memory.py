"""Devices that are out of memory: chunks where they are allowed, else an error that says what to change."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from fake_hardware import FOUR_2080_TI, GIB, FakeHardware
from torch import Tensor, nn

from feddbp_client.compute.memory import ImageBudget, StreamPool
from feddbp_client.compute.out_of_memory import MemoryGuard, Pass, is_out_of_memory
from feddbp_client.compute.plan import Compute
from feddbp_client.compute.precision import Precision
from feddbp_client.models.blocks import Backbone
from feddbp_client.training.errors import TrainingError

SECOND = torch.device("cuda:1")


class Start:
    """Counts how often the start is returned to."""

    def __init__(self) -> None:
        self.restored = 0

    def restore(self) -> None:
        self.restored += 1


class Limited(nn.Module):
    """A body for which a device has room for so many images at once."""

    def __init__(self, most: int, *parts: nn.Module) -> None:
        super().__init__()
        self.most = most
        self.sizes: list[int] = []
        self.parts = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), *parts)

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(len(images))
        if len(images) > self.most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nAnd more")
        features: Tensor = self.parts(images)
        return features


def guard(network: nn.Module, **compute: Any) -> MemoryGuard:
    return MemoryGuard(network, Compute(**compute), client_id=3, image_shape=(3, 2, 2))


def training(network: nn.Module, batch: int = 8) -> Any:
    def work() -> int:
        network.train()
        network(torch.ones(batch, 3, 2, 2)).sum().backward()
        return batch

    return work


def advice(**changed: Any) -> str:
    """The error for a 2080 Ti without room for a single image."""
    kind = Pass(**{"name": "training", "batch": 32, "may_chunk": False, "trains": True, **changed.pop("kind", {})})
    network = Backbone(Limited(0))
    hardware = FakeHardware(gpus=FOUR_2080_TI.gpus, free={1: GIB // 4})
    with pytest.raises(TrainingError) as raised:
        guard(network, device=SECOND, hardware=hardware, **changed).run(kind, training(network, 32), Start())
    return str(raised.value)


def test_chunks_are_halved_until_they_fit(caplog: pytest.LogCaptureFixture) -> None:
    body, start = Limited(3), Start()
    kind = Pass(name="training", batch=8, trains=True)
    network = Backbone(body)
    assert guard(network).run(kind, training(network), start) == 8
    assert kind.chunk == 2
    assert start.restored == 2
    assert body.sizes[:2] == [8, 4]
    assert set(body.sizes[2:]) == {2}
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "client 3: cpu is out of memory in training on 8 images of 3x2x2 in float32; starting it again in chunks of 4",
        "client 3: cpu is out of memory in training on 4 images of 3x2x2 in float32; starting it again in chunks of 2",
    ]


def test_the_chunks_that_fit_are_kept() -> None:
    body = Limited(4)
    kind, network = Pass(name="training", batch=8, trains=True), Backbone(body)
    once = guard(network)
    once.run(kind, training(network), Start())
    body.sizes.clear()
    once.run(kind, training(network), Start())
    assert max(body.sizes) == 4


def test_kinds_of_passes_have_chunks_of_their_own() -> None:
    body = Limited(4)
    network = Backbone(body)
    both = guard(network)
    small, large = Pass(name="training", batch=4), Pass(name="evaluation", batch=8)
    both.run(large, training(network), Start())
    body.most = 100
    both.run(small, training(network, 4), Start())
    assert (small.chunk, large.chunk) == (None, 4)
    assert body.sizes[-1] == 4


def test_batch_norm_has_chunks_of_two_at_least_and_that_they_matter_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    network = Backbone(Limited(1, nn.BatchNorm1d(4)))
    kind = Pass(name="training", batch=8, trains=True)
    with pytest.raises(TrainingError, match="on 2 images"):
        guard(network).run(kind, training(network), Start())
    assert "in chunks of 2, each with batch norm statistics of its own" in caplog.text


def test_one_image_that_does_not_fit_is_an_error() -> None:
    network = Backbone(Limited(0))
    with pytest.raises(TrainingError, match="on 1 image of 3x2x2"):
        guard(network).run(Pass(name="training", batch=8), training(network), Start())


def test_a_network_without_a_backbone_of_ours_cannot_be_chunked() -> None:
    network = Limited(4)
    with pytest.raises(TrainingError, match="on 8 images"):
        guard(network).run(Pass(name="training", batch=8), training(network), Start())


def test_an_error_names_the_card_its_memory_and_the_images_and_says_what_to_change() -> None:
    assert advice() == (
        "cuda:1 (NVIDIA GeForce RTX 2080 Ti) is out of memory with 0.2 GiB of 11.0 GiB free in training on 32 images "
        "of 3x2x2 in float32; give the client --amp or a device with more memory, or the server --accumulate or a "
        "smaller --batch-size"
    )


def test_an_error_does_not_propose_what_is_done_already() -> None:
    half = Precision(device=SECOND, half=torch.float16)
    assert advice(precision=half, kind={"may_chunk": True}).endswith(
        "on 1 image of 3x2x2 in float16; give the client a device with more memory, or the server a smaller "
        "--batch-size"
    )


def test_an_error_proposes_to_give_back_memory_of_images_and_of_other_trainings() -> None:
    shared = {"image_budget": ImageBudget(GIB), "streams": StreamPool(SECOND, 2)}
    assert "give the client --amp, fewer --jobs-per-gpu, a smaller --image-memory or a device" in advice(**shared)


def test_an_error_in_evaluation_proposes_nothing_for_training() -> None:
    assert "server" not in advice(kind={"trains": False})


def test_other_errors_are_not_tried_again() -> None:
    start, network = Start(), Backbone(nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        guard(network).run(Pass(name="training", batch=8), training(network), start)
    assert not start.restored


def test_tensors_of_a_failed_pass_are_freed_before_the_next() -> None:
    kept: list[weakref.ref[Tensor]] = []

    class Watching(Start):
        def restore(self) -> None:
            assert kept[0]() is None
            super().restore()

    def work() -> None:
        activations = torch.ones(100)
        if not kept:
            kept.append(weakref.ref(activations))
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    start = Watching()
    guard(Backbone(nn.Identity())).run(Pass(name="training", batch=8), work, start)
    assert start.restored == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_that_mean_too_little_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
