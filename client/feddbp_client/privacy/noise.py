"""Noise on prototypes of trained features. It has no epsilon: one image changes the whole feature map."""

from __future__ import annotations

import secrets

import numpy as np

from feddbp_common.config.exchange import PrivacyConfig
from feddbp_common.wire.payload import FloatArray, row_norms


def clipped_with_noise(vectors: FloatArray, privacy: PrivacyConfig) -> FloatArray:
    """Rows of at most the bound, with Gaussian noise on every channel.

    The noise comes from the operating system: everybody knows the run's seed, and could subtract noise drawn from it.
    """
    random = np.random.default_rng(secrets.randbits(256))
    bound = privacy.clip_bound
    shorter = vectors * np.minimum(1.0, bound / np.maximum(row_norms(vectors), 1e-300))[:, np.newaxis]
    noisy: FloatArray = (shorter + random.normal(0.0, privacy.noise_multiplier * bound, vectors.shape)).astype(
        np.float32
    )
    return noisy
