"""`feddbp gpu-check`: what it asks of a device, with probes of machines that are not here."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from fake_hardware import APPLE, FOUR_2080_TI, GIB, NO_GPU, ONE_A100, FakeHardware

from feddbp_client.compute import hardware as real_hardware
from feddbp_lab.cli import main
from feddbp_lab.device_check import probe as probes
from feddbp_lab.device_check.checks import DeviceCheck, Finding, Workload, hardware_findings
from feddbp_lab.device_check.probe import ProbeFailedError, ProbeOptions, ProbeResult

WORKLOAD = Workload(architecture="resnet18", image_size=32, batch_size=32, steps=30)
CARD, CPU = torch.device("cuda:0"), torch.device("cpu")


class FakeProbes:
    """Answers as a healthy device does, and records what it was asked."""

    def __init__(
        self, change: Callable[[ProbeOptions, ProbeResult], ProbeResult | None] = lambda _, found: found
    ) -> None:
        self.asked: list[ProbeOptions] = []
        self._change = change

    def __call__(self, options: ProbeOptions) -> ProbeResult:
        self.asked.append(options)
        chunked = ["client 0: cuda:0 is out of memory in training; starting it again in chunks of 16"]
        found = ProbeResult(
            seconds_per_step=0.005 if options.compute.amp else 0.01,
            sha256="same",
            warnings=chunked if options.memory_limit is not None else [],
            idle_bytes=GIB,
            peak_bytes=3 * GIB,
            pinned_bytes_per_second=12e9,
            pageable_bytes_per_second=4e9,
        )
        changed = self._change(options, found)
        if changed is None:
            raise ProbeFailedError("no deterministic implementation")
        return changed


def checked(device: torch.device, probe: FakeProbes) -> dict[str, Finding]:
    return {finding.question: finding for finding in DeviceCheck(device, WORKLOAD, probe).findings()}


def test_a_card_is_timed_in_every_mode_and_checked_for_equal_bits_copies_and_full_memory() -> None:
    probe = FakeProbes()
    found = checked(CARD, probe)
    assert {question: finding.answer for question, finding in found.items()} == {
        "step, float32": "10.00 ms (1.00 times the speed of float32), 3.0 GiB at most",
        "step, --amp": "5.00 ms (2.00 times the speed of float32), 3.0 GiB at most",
        "step, --deterministic": "10.00 ms (1.00 times the speed of float32), 3.0 GiB at most",
        "step, --fast": "10.00 ms (1.00 times the speed of float32), 3.0 GiB at most",
        "step, --fast --amp": "5.00 ms (2.00 times the speed of float32), 3.0 GiB at most",
        "step, --image-memory 0": "10.00 ms (1.00 times the speed of float32), 3.0 GiB at most",
        "two trainings with --deterministic": "the same bits",
        "copies to the GPU": "12.0 GB/s from pinned memory, 4.0 GB/s from pageable",
        "out of memory, with --accumulate": "recovered: starting it again in chunks of 16",
    }
    assert not any(finding.holds is False for finding in found.values())
    assert all(options.compute.device == "cuda:0" for options in probe.asked)


def test_memory_is_made_scarce_between_what_a_client_has_and_what_it_would_take() -> None:
    probe = FakeProbes()
    checked(CARD, probe)
    (scarce,) = [options for options in probe.asked if options.memory_limit is not None]
    assert scarce.accumulate
    assert scarce.memory_limit is not None
    assert GIB < scarce.memory_limit < 3 * GIB


def test_a_cpu_has_no_fast_mode_and_its_full_memory_is_simulated() -> None:
    probe = FakeProbes()
    found = checked(CPU, probe)
    assert list(found) == [
        "step, float32",
        "step, --amp",
        "step, --deterministic",
        "two trainings with --deterministic",
        "out of memory, with --accumulate (simulated)",
    ]
    assert probe.asked[-1].memory_limit == 16
    assert not any(options.compute.fast for options in probe.asked)


def test_different_bits_fail_the_check() -> None:
    digests = iter("abcdefghijk")
    found = checked(CARD, FakeProbes(lambda _, found: found.model_copy(update={"sha256": next(digests)})))
    assert found["two trainings with --deterministic"].holds is False


def test_a_probe_that_fails_is_a_finding_and_the_others_go_on() -> None:
    found = checked(CARD, FakeProbes(lambda options, found: None if options.compute.deterministic else found))
    assert found["step, --deterministic"].answer == "no deterministic implementation"
    assert found["two trainings with --deterministic"].holds is False
    assert found["step, --fast"].holds is None
    assert found["out of memory, with --accumulate"].holds


def test_memory_that_does_not_recover_fails_the_check() -> None:
    found = checked(CARD, FakeProbes(lambda options, found: None if options.accumulate else found))
    assert found["out of memory, with --accumulate"].holds is False


@pytest.mark.parametrize(
    ("hardware", "device", "expected"),
    [
        (
            FOUR_2080_TI,
            CARD,
            {"--amp": "trains in float16", "cuda:3": "NVIDIA GeForce RTX 2080 Ti, compute capability 7.5"},
        ),
        (ONE_A100, CARD, {"--amp": "trains in bfloat16", "cuda:0": "NVIDIA A100-SXM4-80GB, compute capability 8.0"}),
        (APPLE, torch.device("mps"), {"GPU": "Apple's", "--fast": "changes nothing"}),
        (NO_GPU, CPU, {"GPU": "none that torch sees", "CPU cores": "2"}),
    ],
)
def test_the_hardware_is_described(hardware: FakeHardware, device: torch.device, expected: dict[str, str]) -> None:
    found = {finding.question: finding.answer for finding in hardware_findings(device, hardware)}
    for question, beginning in expected.items():
        assert found[question].startswith(beginning)


def test_the_command_prints_findings_as_json_and_fails_with_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setattr(real_hardware.TorchHardware, "cards", lambda _: ())
    monkeypatch.setattr(probes, "run_probe", FakeProbes())
    assert main(["gpu-check", "--device", "cpu", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {"question": "GPU", "answer": "none that torch sees; the CPU is checked", "holds": None} in printed
    monkeypatch.setattr(probes, "run_probe", FakeProbes(lambda options, found: None if options.accumulate else found))
    assert main(["gpu-check", "--device", "cpu"]) == 1
    assert "FAILED: no deterministic implementation" in capsys.readouterr().out
