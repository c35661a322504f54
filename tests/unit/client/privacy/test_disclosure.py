"""Noise on prototypes of trained features: clipped, not drawn from the run's seed, and without an epsilon."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feddbp_client.privacy.disclosure import clipped_with_noise
from feddbp_client.training.setup import LocalOptions, build_client
from feddbp_common.config.exchange import PrivacyConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.wire import Payload


def test_rows_are_clipped_before_noise() -> None:
    vectors = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=np.float32)
    found = clipped_with_noise(vectors, PrivacyConfig(noise_multiplier=1e-9))
    np.testing.assert_allclose(found, np.array([[0.6, 0.8], [0.3, 0.4], [0, 0]]), atol=1e-6)


def test_noise_has_the_multiple_of_the_bound_and_is_never_the_same() -> None:
    privacy = PrivacyConfig(noise_multiplier=0.5, clip_bound=4.0)
    first, second = (clipped_with_noise(np.zeros((50, 400), dtype=np.float32), privacy) for _ in range(2))
    assert first.std() == pytest.approx(2.0, rel=0.05)
    assert (first != second).all()


def test_a_client_of_the_same_seed_uploads_other_prototypes() -> None:
    config = RunConfig.model_validate(
        {
            "method": "fedproto",
            "clients": 4,
            "training": {"local_epochs": 1, "feature_dim": 16},
            "privacy": {"noise_multiplier": 0.1},
        }
    )
    client = build_client(config, "test", 0, LocalOptions(data=None, data_dir=Path(), model=None))
    before = client.trainer.state().copied()
    uploads = []
    for _ in range(2):
        client.trainer.load_state(before)
        upload = client.trainer.train(Payload(), 0, lambda *_: None).upload
        assert upload is not None
        assert upload.prototypes is not None
        uploads.append(upload.prototypes)
    assert uploads[0].class_ids.tolist() == uploads[1].class_ids.tolist()
    assert (uploads[0].vectors != uploads[1].vectors).all()
