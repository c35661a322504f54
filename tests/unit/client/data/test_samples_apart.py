"""Under differential privacy no sample may change what becomes of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feddbp_client.training.setup import LocalOptions, load_client_data
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import ConfigurationError

RUN: dict[str, Any] = {"data": {"dataset": "custom", "classes": 2, "image_size": 8}, "privacy": {"dp": "frozen"}}


def load(path: Path, images: Any, *, test: bool = True, run: dict[str, Any] = RUN) -> int:
    labels = np.arange(len(images)) % 2
    parts = {"x_train": images, "y_train": labels} | ({"x_test": images[:4], "y_test": labels[:4]} if test else {})
    np.savez(path, **parts)
    options = LocalOptions(data=path, data_dir=Path(), model=None)
    return len(load_client_data(RunConfig.model_validate(run), 0, options).train)


def images(high: float = 1.0) -> Any:
    return np.random.default_rng(0).uniform(0, high, size=(24, 8, 8)).astype(np.float32)


def test_samples_with_a_test_part_and_a_fixed_scale_are_admitted(tmp_path: Path) -> None:
    assert load(tmp_path / "data.npz", images()) == 24
    assert load(tmp_path / "bytes.npz", (255 * images()).astype(np.uint8)) == 24


def test_a_split_by_chance_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"data.npz: has no test part; under differential privacy give one"):
        load(tmp_path / "data.npz", images(), test=False)
    assert load(tmp_path / "data.npz", images(), test=False, run={"data": RUN["data"]}) == 18


def test_pixels_that_are_scaled_by_those_of_other_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"float pixels from .*, scaled by the lowest and the highest"):
        load(tmp_path / "data.npz", images(high=3.0))
