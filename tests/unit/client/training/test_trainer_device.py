"""A client's rounds on its device: memory between rounds, chunks when it is full, precision, seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from feddbp_client.compute.devices import CPU
from feddbp_client.compute.plan import Compute
from feddbp_client.compute.precision import Precision
from feddbp_client.compute.random_state import RandomState, seed_generators
from feddbp_client.data import ClientData, Split
from feddbp_client.methods.base import LocalMethod, Task
from feddbp_client.models.blocks import Backbone
from feddbp_client.training.errors import TrainingError
from feddbp_client.training.optimization import Optimization
from feddbp_client.training.trainer import LocalTrainer, RoundResult
from feddbp_client.training.weight_average import WeightAverage
from feddbp_common.config.data import DataConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.wire import Payload

CLASSES, BATCH = 3, 8
META = torch.device("meta")
ALL_STATE: dict[str, Any] = {"momentum": 0.9, "keep_optimizer": True, "ema": 0.9}


class Filling(nn.Module):
    """A body on a device that has room for `most` images, from a given pass with gradients on."""

    def __init__(self, most: int, *, from_pass: int = 0, without_gradients: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.most = most
        self.from_pass = from_pass
        self._without_gradients = without_gradients
        self._passes = 0
        self.parts = nn.Sequential(
            nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.Dropout(0.2), nn.ReLU()
        )

    def forward(self, images: Tensor) -> Tensor:
        self._passes += torch.is_grad_enabled()
        if torch.is_grad_enabled() != self._without_gradients and self._passes >= self.from_pass:
            self._check(len(images))
        features: Tensor = self.parts(images)
        return features

    def _check(self, images: int) -> None:
        if images > self.most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def split(count: int, seed: int) -> Split:
    random = np.random.default_rng(seed)
    labels = torch.from_numpy(random.integers(CLASSES, size=count))
    images = random.integers(256, size=(count, 4, 4, 1), dtype=np.uint8)
    images[:, :2, :2, 0] = 80 * labels.numpy()[:, None, None]
    return Split(images, labels)


def client(
    body: nn.Module, *, method: str = "fedproto", compute: Compute | None = None, **training: Any
) -> LocalTrainer:
    settings = {"local_epochs": 2, "batch_size": BATCH, "learning_rate": 0.1, "feature_dim": 8, **training}
    config = RunConfig(
        method=method,
        # features are collected in the steps themselves, so that a step that was made twice would show
        method_settings={"fedproto": {"collect": "running"}, "feddbp": {"k_top": 4}}.get(method, {}),
        rounds=3,
        data=DataConfig(dataset="custom", classes=CLASSES),
        training=TrainingConfig.model_validate(settings),
    )
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in body.parameters():
            weight.normal_(std=0.3)
    local: LocalMethod[Any] = config.method_spec.load_trainer()(
        backbone=Backbone(body),
        make_head=lambda: nn.Linear(8, CLASSES),
        settings=config.settings,
        task=Task(classes=CLASSES, feature_dim=8, rounds=3),
    )
    data = ClientData(train=split(37, 0), test=split(20, 1), classes=CLASSES, class_names=("a", "b", "c"))
    return LocalTrainer(method=local, data=data, config=config, client_id=0, compute=compute)


def trained(trainer: LocalTrainer, rounds: int = 1) -> list[RoundResult]:
    return [trainer.train(Payload(), number, lambda *_: None) for number in range(rounds)]


def everything(trainer: LocalTrainer, results: list[RoundResult]) -> dict[str, Any]:
    """All that a round leaves behind: the client's state, its uploads and its metrics, without times."""
    state = trainer.state()
    found: dict[str, Any] = {f"model {name}": tensor.tolist() for name, tensor in state.model.items()}
    found |= {f"optimiser {name}": tensor.tolist() for name, tensor in state.optimizer.items()}
    found |= {f"average {name}": tensor.tolist() for name, tensor in state.average.items()}
    for number, result in enumerate(results):
        assert result.upload is not None
        assert result.upload.prototypes is not None
        found[f"upload {number}"] = result.upload.prototypes.vectors.tolist()
        found[f"losses {number}"] = [(term.name, term.value) for term in result.metrics.losses]
        found[f"correct {number}"] = [entry.correct for entry in result.metrics.accuracies]
    return found


# --- a device that is out of memory


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("from_pass", [1, 3, 12])
def test_a_round_that_ran_out_of_memory_has_the_bits_of_one_that_began_in_chunks(norm: bool, from_pass: int) -> None:
    """The memory is full from the first step, in the middle of a round, or in the second round."""
    failing = client(Filling(3, from_pass=from_pass, norm=norm), accumulate=True, **ALL_STATE)
    careful = client(Filling(BATCH, norm=norm), accumulate=True, **ALL_STATE)
    found, expected = [], []
    for number in range(2):
        found.append(failing.train(Payload(), number, lambda *_: None))
        careful._training.chunk = failing._training.chunk
        expected.append(careful.train(Payload(), number, lambda *_: None))
        assert failing._training.chunk == (None if number == 0 and from_pass == 12 else 2)
    assert everything(failing, found) == everything(careful, expected)


@pytest.mark.parametrize("method", ["fedproto", "fedlfp", "feddbp", "local"])
def test_chunks_change_a_network_without_batch_norm_by_rounding_alone(method: str) -> None:
    def weights(most: int) -> dict[str, Tensor]:
        body = Filling(most)
        body.parts[3] = nn.Identity()  # no dropout, whose draws depend on the chunks
        trainer = client(body, method=method, accumulate=True)
        trained(trainer)
        assert (trainer._training.chunk is None) == (most >= BATCH)
        return dict(trainer.state().model)

    whole, chunked = weights(BATCH), weights(3)
    for name, expected in whole.items():
        assert torch.allclose(chunked[name], expected, rtol=1e-4, atol=1e-6), name


def test_without_permission_a_full_device_is_an_error() -> None:
    with pytest.raises(TrainingError, match=r"out of memory in training on 8 images of 1x4x4 .* --accumulate"):
        trained(client(Filling(4)))


def test_evaluation_and_collection_need_no_permission_for_chunks() -> None:
    full = client(Filling(6, without_gradients=True), method="feddbp")
    roomy = client(Filling(1000), method="feddbp")
    results = [trained(trainer)[0] for trainer in (full, roomy)]
    assert (full._evaluation.chunk, full._collection.chunk) == (5, 4)
    one, other = (result.upload.prototypes for result in results if result.upload is not None)
    assert one is not None
    assert other is not None
    assert np.allclose(one.vectors, other.vectors, atol=1e-6)
    assert results[0].metrics.accuracies == results[1].metrics.accuracies


def test_a_client_that_was_stopped_does_not_begin_again() -> None:
    body = Filling(2)
    trainer = client(body, accumulate=True)
    original = body._check

    def stop(images: int) -> None:
        trainer.stop()
        original(images)

    body._check = stop  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match="stopped"):
        trained(trainer)


# --- memory between rounds


def test_gradients_are_released_after_a_round() -> None:
    trainer = client(Filling(1000))
    trained(trainer)
    assert [weight.grad for weight in trainer.method.parameters()] == [None] * len(list(trainer.method.parameters()))


def test_gradients_are_released_after_a_round_that_failed() -> None:
    trainer = client(Filling(4, from_pass=3))
    with pytest.raises(TrainingError, match="out of memory"):
        trained(trainer)
    assert all(weight.grad is None for weight in trainer.method.parameters())


def recorded_moves(trainer: LocalTrainer) -> list[str]:
    moves: list[str] = []
    move = trainer.method.to

    def to(device: torch.device) -> nn.Module:
        moves.append(str(device))
        return move(device)

    trainer.method.to = to  # type: ignore[assignment, method-assign]
    return moves


def test_the_model_of_an_idle_client_is_on_the_host_if_others_share_its_device() -> None:
    shared = client(Filling(1000), compute=Compute(device=torch.device("cpu", 0), shared=True))
    alone = client(Filling(1000), compute=Compute(device=torch.device("cpu", 0)))
    for trainer, expected in ((shared, ["cpu:0", "cpu"]), (alone, ["cpu:0"])):
        moves = recorded_moves(trainer)
        trained(trainer)
        assert moves == expected
        moves.clear()
        trainer.evaluate(Payload(), 1)
        assert moves == expected


def test_a_client_that_fails_leaves_the_device_as_well() -> None:
    trainer = client(Filling(4), compute=Compute(device=torch.device("cpu", 0), shared=True))
    moves = recorded_moves(trainer)
    with pytest.raises(TrainingError, match="out of memory"):
        trained(trainer)
    assert moves[-1] == "cpu"


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_state_of_a_kept_optimiser_moves_with_the_model(optimizer: str) -> None:
    momentum = 0.9 if optimizer == "sgd" else 0.0
    settings = TrainingConfig(optimizer=optimizer, momentum=momentum, keep_optimizer=True)
    local = client(Filling(1000)).method
    optimization = Optimization(local, settings, Precision(), rounds=range(1))
    optimization.move_to(META)  # nothing to move yet
    optimization.begin_round(0, steps=1)
    optimization.step(sum(weight.sum() for weight in local.parameters()))  # type: ignore[arg-type]
    optimization.end_round()
    optimization.move_to(META)
    devices = {
        name.rpartition(".")[2]: tensor.device for name, tensor in optimization.state().items() if "param" in name
    }
    assert devices.pop("step", CPU) == CPU
    assert set(devices.values()) == {META}


def test_counters_that_kernels_read_themselves_move_with_the_model() -> None:
    def fused(groups: list[dict[str, Any]], **_: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, fused=True)

    local = client(Filling(1000)).method
    settings = TrainingConfig(keep_optimizer=True)
    optimization = Optimization(local, settings, Precision(), rounds=range(1), make_optimizer=fused)
    optimization.begin_round(0, steps=1)
    optimization.step(sum(weight.sum() for weight in local.parameters()))  # type: ignore[arg-type]
    optimization.end_round()
    optimization.load_state(optimization.state())
    optimization.move_to(META)
    counters = {tensor.device for name, tensor in optimization.state().items() if name.endswith(".step")}
    assert counters == {META}


def test_averaged_weights_move_with_the_model() -> None:
    average = WeightAverage(nn.Linear(2, 2), 0.9)
    average.move_to(META)
    assert {tensor.device for name, tensor in average.state().items() if name != "steps"} == {META}


# --- precision and seeds


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_a_client_learns_in_mixed_precision(half: torch.dtype) -> None:
    def loss(compute: Compute) -> list[float]:
        trainer = client(Filling(1000), compute=compute, local_epochs=6)
        return [
            next(term.value for term in result.metrics.losses if term.name == "total") for result in trained(trainer, 3)
        ]

    exact, mixed = loss(Compute()), loss(Compute(precision=Precision(half=half)))
    assert mixed != exact
    assert mixed[-1] < 0.7 * mixed[0]
    assert mixed[-1] == pytest.approx(exact[-1], rel=0.1)


@contextmanager
def recording_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Replaces what seeds CUDA devices."""
    calls: list[str] = []

    @contextmanager
    def selected(device: torch.device) -> Iterator[None]:
        calls.append(f"select {device}")
        yield

    monkeypatch.setattr(torch.cuda, "device", selected)
    record: Callable[[str], Callable[[int], None]] = lambda name: lambda seed: calls.append(f"{name} {seed}")  # noqa: E731
    monkeypatch.setattr(torch.cuda, "manual_seed", record("seed"))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", record("seed all"))
    yield calls


def test_a_client_seeds_its_own_device_and_the_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with recording_cuda(monkeypatch) as calls:
        seed_generators(5, torch.device("cuda:1"))
        assert calls == ["select cuda:1", "seed 5"]
        drawn = torch.rand(3)
        calls.clear()
        seed_generators(5, CPU)
        assert calls == []
    assert torch.equal(torch.rand(3), drawn)


def test_neither_building_nor_training_a_client_resets_the_generators_of_other_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = client(Filling(1000))
    with recording_cuda(monkeypatch) as calls:
        trained(trainer)
    assert calls == []


def test_a_random_state_is_returned_to() -> None:
    state = RandomState()
    drawn = torch.rand(3)
    state.restore()
    assert torch.equal(torch.rand(3), drawn)
