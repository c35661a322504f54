"""Frozen features on the server: class means from the sums and counts that clients release, perhaps with noise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from feddbp_common.differential_privacy.accountant import noise_for
from feddbp_common.differential_privacy.mechanism import deviation_of_counts, deviation_of_sums
from feddbp_common.methods.frozen import COUNTS, NOISE, SUMS, FrozenSettings
from feddbp_common.wire import Payload, PrototypeSet
from feddbp_server.strategies.base import RunFacts, Strategy, Upload

_SURE: Final = 2.0
"""Deviations of the noise above zero from which a class is taken to have samples."""


class FrozenStrategy(Strategy[FrozenSettings]):
    """Every client uploads the same release in each of its rounds, so that the last round alone is the state."""

    def __init__(self, settings: FrozenSettings, facts: RunFacts) -> None:
        super().__init__(settings, facts)
        privacy = facts.privacy
        self._noise = 0.0 if privacy.dp == "off" else noise_for(privacy.epsilon, privacy.delta)

    def aggregate(self, known: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        shape = self.facts.shape
        sums, counts = np.zeros((shape.classes, shape.feature_dim)), np.zeros(shape.classes)
        releases = 0
        for upload in uploads:
            sums += upload.payload.tensors[SUMS]
            counts += upload.payload.tensors[COUNTS]
            releases += 1
        held = counts > max(0.5, _SURE * deviation_of_counts(self._noise) * releases**0.5)
        if not held.any():
            return known
        means = sums[held] / counts[held, np.newaxis]
        class_ids = np.flatnonzero(held).astype(np.int32)
        prototypes = PrototypeSet(class_ids=class_ids, vectors=means.astype(np.float32))
        if not self._noise:
            return Payload(prototypes=prototypes)
        lengths = np.zeros(shape.classes, dtype=np.float32)
        lengths[held] = releases * shape.feature_dim * (deviation_of_sums(self._noise) / counts[held]) ** 2
        return Payload(prototypes=prototypes, tensors={NOISE: lengths})

    def reply(self, known: Payload, own_upload: Payload | None) -> Payload:
        return known
