"""A probe of `feddbp gpu-check` as the process it is."""

from __future__ import annotations

import pytest
import torch

from feddbp_client.config import ComputeConfig
from feddbp_lab.device_check.probe import ProbeFailedError, ProbeOptions, run_probe


def test_a_probe_trains_in_a_process_of_its_own_and_recovers_from_full_memory() -> None:
    found = run_probe(
        ProbeOptions(
            compute=ComputeConfig(device="cpu", deterministic=True, threads=1),
            architecture="mini_plain",
            image_size=8,
            batch_size=8,
            steps=2,
            accumulate=True,
            memory_limit=4,
        )
    )
    assert found.seconds_per_step > 0
    assert len(found.sha256) == 64
    assert [warning.rpartition("; ")[2] for warning in found.warnings] == ["starting it again in chunks of 4"]
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_error_of_a_probe_is_one_line() -> None:
    options = ProbeOptions(
        compute=ComputeConfig(device="cpu"), architecture="none", image_size=8, batch_size=8, steps=2
    )
    with pytest.raises(ProbeFailedError, match=r"^no architecture is called 'none'"):
        run_probe(options)
