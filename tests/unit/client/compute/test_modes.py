"""The modes --deterministic and --fast: settings of torch, and what becomes of a model."""

from __future__ import annotations

import copy
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fake_hardware import APPLE, FOUR_2080_TI, NO_GPU, ONE_A100, FakeHardware, cards

from feddbp_client.compute import modes
from feddbp_client.compute.devices import CPU
from feddbp_client.compute.modes import can_compile, compile_in_place, set_mode, tune
from feddbp_client.compute.plan import Compute
from feddbp_client.config import Mode
from feddbp_client.models import build_backbone
from feddbp_client.models.blocks import Backbone

CARD = torch.device("cuda:0")
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def unchanged_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undoes what a mode has set."""
    monkeypatch.setenv(WORKSPACE, "")  # so that it is as before after the test
    monkeypatch.delenv(WORKSPACE)
    cudnn = torch.backends.cudnn
    before = (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
    with torch._dynamo.config.patch(suppress_errors=False):
        yield
    torch.use_deterministic_algorithms(False)
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = before[:3]
    torch.backends.cuda.matmul.allow_tf32 = before[3]
    torch.compiler.reset()


def backbone() -> Backbone:
    torch.manual_seed(0)
    return build_backbone("mini_plain", (3, 16, 16), feature_dim=32)


def triton(monkeypatch: pytest.MonkeyPatch, *, installed: bool) -> None:
    found: Callable[[str], Any] = lambda name: importlib.util.find_spec("torch") if installed else None  # noqa: E731
    monkeypatch.setattr(modes, "find_spec", found)


def settings() -> dict[str, Any]:
    return {
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "tf32": (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32),
        "workspace": os.environ.get(WORKSPACE),
    }


def test_the_deterministic_mode_allows_only_deterministic_algorithms() -> None:
    set_mode(Mode.DETERMINISTIC)
    assert settings() == {
        "algorithms": True,
        "cudnn": (True, False),
        "tf32": (False, False),
        "workspace": ":4096:8",
    }


@pytest.mark.parametrize(("given", "expected"), [(":16:8", ":16:8"), (":4096:2:16:8", ":4096:8")])
def test_a_workspace_that_is_deterministic_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    monkeypatch.setenv(WORKSPACE, given)
    set_mode(Mode.DETERMINISTIC)
    assert os.environ[WORKSPACE] == expected


def test_the_fast_mode_allows_tf32_and_the_search_for_the_fastest_convolution() -> None:
    set_mode(Mode.FAST)
    assert settings() == {"algorithms": False, "cudnn": (False, True), "tf32": (True, True), "workspace": None}


def test_without_a_mode_torch_is_left_as_it_is() -> None:
    before = settings()
    set_mode(Mode.DEFAULT)
    assert settings() == before


@pytest.mark.parametrize(
    ("device", "hardware", "installed", "expected"),
    [
        (CARD, FOUR_2080_TI, True, True),
        (CARD, ONE_A100, True, True),
        (CARD, ONE_A100, False, False),
        (CARD, FakeHardware(gpus=cards(1, "NVIDIA GeForce GTX 1080 Ti", (6, 1), 11)), True, False),
        (torch.device("mps"), APPLE, True, False),
        (CPU, NO_GPU, True, False),
    ],
)
def test_networks_are_compiled_for_cards_that_triton_supports(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, hardware: FakeHardware, installed: bool, expected: bool
) -> None:
    triton(monkeypatch, installed=installed)
    assert can_compile(device, hardware) is expected


def test_a_compiled_network_has_the_same_names_weights_and_results(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, compiled = backbone(), backbone()
    calls: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        calls.append(graph)
        return graph.forward

    compile_in_place(compiled, backend=backend)
    images = torch.randn(4, 3, 16, 16)
    assert torch.equal(compiled(images), plain(images))
    assert calls
    assert list(compiled.state_dict()) == list(plain.state_dict())
    copied = copy.deepcopy(compiled)
    with torch.no_grad():
        for weight in copied.parameters():
            weight.zero_()
    assert not torch.equal(copied(images), plain(images))  # it runs with its own weights
    plain.load_state_dict(compiled.state_dict())


def test_a_network_that_cannot_be_compiled_runs_as_it_is() -> None:
    def backend(*_: object) -> Callable[..., Any]:
        raise RuntimeError("no compiler here")

    network = backbone()
    compile_in_place(network, backend=backend)
    images = torch.randn(4, 3, 16, 16)
    assert torch.equal(network(images), backbone()(images))


def is_channels_last(network: Backbone) -> bool:
    weights = [weight for weight in network.parameters() if weight.ndim == 4 and min(weight.shape[1:]) > 1]
    assert weights
    return all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def test_fast_convolutions_on_a_card_are_channels_last_and_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    triton(monkeypatch, installed=True)
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(modes, "compile_in_place", compiled.append)
    network = backbone()
    names = list(network.state_dict())
    Compute(device=CARD, hardware=ONE_A100, mode=Mode.FAST).prepare(network)
    assert is_channels_last(network)
    assert compiled == [network]
    assert list(network.state_dict()) == names


def test_the_fast_mode_changes_nothing_of_a_network_on_a_cpu() -> None:
    network = backbone()
    tune(network, CPU, NO_GPU)
    assert not is_channels_last(network)
    assert network[0]._compiled_call_impl is None
