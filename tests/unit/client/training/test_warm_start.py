"""Warm start: the first weights of a client from a checkpoint of another run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from trained_samples import GREY, checkpoint_of, run_of

from feddbp_client.training.checkpoint import Checkpoint
from feddbp_client.training.setup import build_method
from feddbp_client.training.warm_start import read_initial, warm_start
from feddbp_common.errors import ConfigurationError


def started_from(checkpoint: Checkpoint, method: str = "feddbp", architecture: str = "mini_plain") -> str:
    fresh = build_method(run_of(method), 1, architecture, "linear", GREY)
    return warm_start(fresh, checkpoint, architecture=architecture, image_shape=GREY)


def test_all_weights_are_taken_from_a_run_of_the_same_method(tmp_path: Path) -> None:
    checkpoint = checkpoint_of()
    checkpoint.save(tmp_path / "checkpoint.safetensors")
    method = build_method(run_of("feddbp"), 1, "mini_plain", "linear", GREY)
    said = warm_start(method, read_initial(tmp_path), architecture="mini_plain", image_shape=GREY)
    assert said.endswith("all of its weights")
    for name, weight in method.named_parameters():
        assert torch.equal(weight, checkpoint.state.model[name])


def test_of_another_method_the_backbone_is_taken() -> None:
    said = started_from(checkpoint_of("local"))
    assert "the backbone, but not" in said


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        (checkpoint_of(architecture="mini_dense"), "has mini_dense, this client mini_plain; see --model"),
        (replace(checkpoint_of(), image_shape=(3, 16, 16)), r"images of shape \[3, 16, 16\], this client has"),
    ],
)
def test_what_does_not_fit_is_refused(checkpoint: Checkpoint, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        started_from(checkpoint)


def test_weights_that_have_diverged_are_refused() -> None:
    checkpoint = checkpoint_of()
    next(weight for name, weight in checkpoint.state.model.items() if name.startswith("backbone.")).fill_(torch.nan)
    with pytest.raises(ConfigurationError, match="has diverged"):
        started_from(checkpoint)


def test_a_file_that_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--init-from: there is no checkpoint .*nowhere"):
        read_initial(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match=r"--init-from: cannot read the checkpoint .*: File name too long"):
        read_initial(tmp_path / ("x" * 300))
    (tmp_path / "client-0").mkdir()
    checkpoint_of().save(tmp_path / "client-0" / "checkpoint.safetensors")
    with pytest.raises(ConfigurationError, match=r"--init-from: .* give one, such as .*client-0"):
        read_initial(tmp_path)
