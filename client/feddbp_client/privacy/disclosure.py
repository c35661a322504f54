"""Disclosure control of an upload: small classes are left out, counts are rounded, prototypes get noise."""

from __future__ import annotations

import secrets
from dataclasses import replace

import numpy as np

from feddbp_common.config.exchange import PrivacyConfig
from feddbp_common.label_counts import Counts, declared_counts, in_buckets
from feddbp_common.methods.fedlfp import COUNTS
from feddbp_common.wire import Payload
from feddbp_common.wire.payload import FloatArray, row_norms


def disclosed(payload: Payload, label_counts: Counts, privacy: PrivacyConfig) -> Payload:
    """What may leave the client: no prototype of fewer samples than the run's bound, and counts as declared."""
    if payload.prototypes is not None and privacy.min_class_samples:
        fewest = privacy.min_class_samples
        payload = payload.with_classes(label_counts[payload.prototypes.class_ids] >= fewest)
    buckets = privacy.declares_counts and privacy.counts == "buckets"
    if payload.prototypes is not None and payload.prototypes.counts is not None and buckets:
        declared = declared_counts(label_counts, privacy)[payload.prototypes.class_ids].astype(np.int32)
        payload = replace(payload, prototypes=replace(payload.prototypes, counts=declared))
    if COUNTS in payload.tensors and buckets:
        payload = replace(payload, tensors={**payload.tensors, COUNTS: in_buckets(payload.tensors[COUNTS])})
    if payload.prototypes is not None and privacy.noise_multiplier:
        vectors = clipped_with_noise(payload.prototypes.vectors, privacy)
        payload = replace(payload, prototypes=replace(payload.prototypes, vectors=vectors))
    return payload


def clipped_with_noise(vectors: FloatArray, privacy: PrivacyConfig) -> FloatArray:
    """Rows of at most the bound, with Gaussian noise on every channel.

    This has no epsilon: one image changes the whole map to trained features. The noise comes from the operating system:
    everybody knows the run's seed, and could subtract noise drawn from it.
    """
    random = np.random.default_rng(secrets.randbits(256))
    bound = privacy.clip_bound
    shorter = vectors * np.minimum(1.0, bound / np.maximum(row_norms(vectors), 1e-300))[:, np.newaxis]
    noisy: FloatArray = (shorter + random.normal(0.0, privacy.noise_multiplier * bound, vectors.shape)).astype(
        np.float32
    )
    return noisy
