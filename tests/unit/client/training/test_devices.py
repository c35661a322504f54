"""Selection of a client's device, and results on a device without float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from feddbp_client.inference.trained_client import prediction_of
from feddbp_client.methods.scores import ScoreKind
from feddbp_client.training.devices import choose_device
from feddbp_common.errors import ConfigurationError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A machine with this number of CUDA GPUs, and with or without an Apple GPU."""
    cuda, mps = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [((2, False), "cuda:0"), ((1, True), "cuda:0"), ((0, True), "mps"), ((0, False), "cpu")],
    indirect=["machine"],
)
@pytest.mark.usefixtures("machine")
def test_auto_selects_the_best_available_device(expected: str) -> None:
    assert choose_device(gpu=None, device="auto") == torch.device(expected)


@pytest.mark.parametrize("machine", [(2, True)], indirect=True)
@pytest.mark.usefixtures("machine")
def test_the_requested_device_is_selected() -> None:
    assert choose_device(gpu=1, device="auto") == torch.device("cuda:1")
    assert choose_device(gpu=None, device="cuda") == torch.device("cuda:0")
    assert choose_device(gpu=None, device="mps") == torch.device("mps")
    assert choose_device(gpu=None, device="cpu") == torch.device("cpu")


@pytest.mark.parametrize("machine", [(0, False)], indirect=True)
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("gpu", "device", "message"),
    [
        (0, "auto", "--gpu 0: torch sees no GPU here; use --device cpu to train without one"),
        (None, "cuda:1", "--device cuda:1: torch sees no GPU here"),
        (None, "mps", "--device mps: torch sees no Apple GPU here"),
        (None, "meta", "--device meta: not supported"),
        (None, "gpu", "--device gpu: not a device"),
    ],
)
def test_an_unavailable_device_is_an_error(gpu: int | None, device: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        choose_device(gpu=gpu, device=device)


class OnApple(Tensor):
    """Scores on an Apple GPU."""

    def double(self) -> Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    def cpu(self) -> Tensor:  # type: ignore[override]
        return self.as_subclass(Tensor)


def test_scores_are_moved_to_the_cpu_before_the_conversion_to_float64() -> None:
    scores = torch.tensor([-2.0, -1.0, -torch.inf]).as_subclass(OnApple)
    prediction = prediction_of(scores, ScoreKind.DISTANCE, ("cat", "dog", "emu"), top=3)
    assert [(candidate.name, candidate.value) for candidate in prediction.candidates] == [("dog", 1.0), ("cat", 2.0)]
