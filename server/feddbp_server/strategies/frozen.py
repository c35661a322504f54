"""Frozen features on the server: class means from the sums and counts that clients release, perhaps with noise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from feddbp_common.differential_privacy.accountant import noise_for
from feddbp_common.differential_privacy.mechanism import deviation_of_counts, deviation_of_sums
from feddbp_common.methods.frozen import COUNTS, NOISE, SUMS, FrozenSettings
from feddbp_common.secure_sums import threshold_of
from feddbp_common.wire import Payload, PrototypeSet
from feddbp_common.wire.rules import MAGNITUDE_BOUND
from feddbp_server.strategies.base import RunFacts, Strategy, Upload

Reals = npt.NDArray[np.float64]
_SURE: Final = 2.0
"""Deviations of the noise above zero from which a class is taken to have samples."""


class FrozenStrategy(Strategy[FrozenSettings]):
    """Every client uploads the same release in each of its rounds, so that the last round alone is the state."""

    def __init__(self, settings: FrozenSettings, facts: RunFacts) -> None:
        super().__init__(settings, facts)
        privacy = facts.privacy
        self._noise = 0.0 if privacy.dp == "off" else noise_for(privacy.epsilon, privacy.delta)

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        shape = self.facts.shape
        sums, counts = np.zeros((shape.classes, shape.feature_dim)), np.zeros(shape.classes)
        releases = 0
        for upload in uploads:
            sums += upload.payload.tensors[SUMS]
            counts += upload.payload.tensors[COUNTS]
            releases += 1
        return self._state(state, sums, counts, noise=releases)

    def from_means(self, state: Payload, means: Payload, *, round_number: int) -> Payload:
        clients, sharers = self.facts.shape.clients, threshold_of(self.facts.shape.clients)
        sums, counts = (clients * means.tensors[name].astype(np.float64) for name in (SUMS, COUNTS))
        # in a secure sum everybody adds a share of the noise; the total is that of all clients, or a little less
        return self._state(state, sums, counts, noise=clients / sharers if self.facts.privacy.secure_sums else clients)

    def _state(self, state: Payload, sums: Reals, counts: Reals, *, noise: float) -> Payload:
        """Of sums over clients; `noise` is the variance of their noise, as a multiple of that of one whole noise."""
        shape = self.facts.shape
        held = counts > max(0.5, _SURE * deviation_of_counts(self._noise) * noise**0.5)
        if not held.any():
            return state
        # a false release may have large sums of next to no samples; clients take no values out of bounds
        means = np.clip(sums[held] / counts[held, np.newaxis], -MAGNITUDE_BOUND, MAGNITUDE_BOUND)
        class_ids = np.flatnonzero(held).astype(np.int32)
        prototypes = PrototypeSet(class_ids=class_ids, vectors=means.astype(np.float32))
        if not self._noise:
            return Payload(prototypes=prototypes)
        lengths = np.zeros(shape.classes, dtype=np.float32)
        lengths[held] = noise * shape.feature_dim * (deviation_of_sums(self._noise) / counts[held]) ** 2
        return Payload(prototypes=prototypes, tensors={NOISE: lengths})

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        return state
