"""The devices of clients, chosen by the hardware of machines that are not here."""

from __future__ import annotations

import pytest
import torch
from fake_hardware import APPLE, FOUR_2080_TI, GIB, NO_GPU, ONE_A100, ONE_H100, FakeHardware, cards
from torch import Tensor

from feddbp_client.compute.devices import CPU, choose_device, choose_devices, describe, share_out
from feddbp_client.compute.hardware import TorchHardware
from feddbp_client.compute.precision import Precision
from feddbp_client.config import Gpus
from feddbp_client.inference.trained_client import prediction_of
from feddbp_client.methods.scores import ScoreKind
from feddbp_common.errors import ConfigurationError
from feddbp_server.run.admission.limits import Limits

CUDA = [torch.device("cuda", index) for index in range(4)]
CARD_AND_APPLE = FakeHardware(gpus=ONE_A100.gpus, mps=True)


def devices(ids: range, gpu: Gpus, hardware: FakeHardware = FOUR_2080_TI) -> list[str]:
    return [str(device) for device in choose_devices(ids, gpu=gpu, device="auto", hardware=hardware).values()]


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [(FOUR_2080_TI, "cuda:0"), (CARD_AND_APPLE, "cuda:0"), (ONE_H100, "cuda:0"), (APPLE, "mps"), (NO_GPU, "cpu")],
)
def test_auto_selects_the_best_available_device(hardware: FakeHardware, expected: str) -> None:
    assert choose_device("auto", hardware) == torch.device(expected)


def test_the_requested_device_is_selected() -> None:
    assert devices(range(3, 4), (1,)) == ["cuda:1"]
    assert choose_device("cuda", FOUR_2080_TI) == torch.device("cuda:0")
    assert choose_device("cuda:3", FOUR_2080_TI) == torch.device("cuda:3")
    assert choose_device("mps", APPLE) == torch.device("mps")
    assert choose_device("cpu", FOUR_2080_TI) == torch.device("cpu")


@pytest.mark.parametrize(
    ("gpu", "device", "message"),
    [
        ((0,), "auto", "--gpu 0: torch sees no GPU here; use --device cpu to train without one"),
        ("auto", "auto", "--gpu auto: torch sees no GPU here"),
        (None, "cuda:1", "--device cuda:1: torch sees no GPU here"),
        (None, "mps", "--device mps: torch sees no Apple GPU here"),
        (None, "meta", "--device meta: not supported"),
        (None, "gpu", "--device gpu: not a device"),
    ],
)
def test_an_unavailable_device_is_an_error(gpu: Gpus, device: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        choose_devices([0], gpu=gpu, device=device, hardware=NO_GPU)


def test_a_card_that_is_not_there_is_an_error_that_counts_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match=r"--gpu 0,4: torch sees 4 \(0 to 3\) here"):
        devices(range(2), (0, 4))


def test_the_clients_of_a_process_are_shared_out_evenly_over_equal_cards() -> None:
    assert devices(range(6), (0, 1, 2, 3)) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0", "cuda:1"]
    assert devices(range(4), "auto") == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert devices(range(4), (3, 1)) == ["cuda:3", "cuda:1", "cuda:3", "cuda:1"]


def test_a_card_that_others_use_gets_fewer_clients() -> None:
    busy = FakeHardware(gpus=FOUR_2080_TI.gpus, free={0: 2 * GIB})
    assert devices(range(7), (0, 1), busy).count("cuda:0") == 1
    assert devices(range(1), "auto", busy) == ["cuda:1"]


def test_free_memory_per_client_decides() -> None:
    shared = share_out(range(6), {CUDA[0]: 10, CUDA[1]: 5})
    assert [device.index for device in shared.values()] == [0, 0, 1, 0, 0, 1]


class CountingHardware(FakeHardware):
    def free_bytes(self, device: torch.device) -> int:
        raise AssertionError("starts CUDA on a card")


def test_the_memory_of_a_single_card_is_not_asked_for() -> None:
    assert devices(range(2), (1,), CountingHardware(gpus=FOUR_2080_TI.gpus)) == ["cuda:1", "cuda:1"]


def test_a_device_is_described_by_the_name_of_its_card() -> None:
    assert describe(CUDA[1], FOUR_2080_TI) == "cuda:1 (NVIDIA GeForce RTX 2080 Ti)"
    assert describe(CPU, FOUR_2080_TI) == "cpu"
    assert describe(torch.device("mps"), APPLE) == "mps"


def test_servers_accept_the_description_of_any_card() -> None:
    odd = FakeHardware(gpus=cards(1, "card\n\x1b[31m\N{ZERO WIDTH SPACE}" + 1000 * "x", (8, 0), 1))
    described = describe(CUDA[0], odd)
    assert described.isprintable()
    assert len(described) <= Limits().name_characters


@pytest.mark.parametrize(
    ("hardware", "device", "half"),
    [
        (FOUR_2080_TI, "cuda:2", torch.float16),
        (ONE_A100, "cuda:0", torch.bfloat16),
        (ONE_H100, "cuda:0", torch.bfloat16),
        (APPLE, "mps", torch.bfloat16),
        (NO_GPU, "cpu", torch.bfloat16),
    ],
)
def test_mixed_precision_uses_the_half_type_that_the_hardware_has(
    hardware: FakeHardware, device: str, half: torch.dtype
) -> None:
    precision = Precision.mixed(torch.device(device), hardware)
    assert precision.half == half
    assert str(precision) == str(half).removeprefix("torch.")


def test_gradients_are_scaled_for_float16_alone() -> None:
    assert Precision(half=torch.float16).scaler().is_enabled()
    assert not Precision(half=torch.bfloat16).scaler().is_enabled()
    assert not Precision().scaler().is_enabled()


def test_this_machine_can_be_described() -> None:
    hardware = TorchHardware()
    assert hardware.cores() >= 1
    assert len(hardware.cards()) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert describe(choose_device("auto", hardware), hardware)


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
