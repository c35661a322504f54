"""What a run lets others see of its clients' samples: prototypes of one client, their sums, and counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from feddbp_client.privacy.disclosure import clipped_with_noise
from feddbp_common.artifacts import RELEASE_NAME
from feddbp_common.config.exchange import PrivacyConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.differential_privacy.accountant import noise_for
from feddbp_common.differential_privacy.mechanism import Release, deviation_of_counts, deviation_of_sums
from feddbp_common.errors import ConfigurationError
from feddbp_common.label_counts import in_buckets
from feddbp_common.methods.sums import MIN_HOLDERS
from feddbp_lab.privacy.attacks import Mean, Rows, total_variation

Labels = npt.NDArray[np.int64]
EXACT: Final = "samples of each class"
BUCKETS: Final = "samples as powers of two"
RELEASED: Final = "counts with noise"
CLASSES: Final = "which classes, without counts"
SUMMED: Final = "the sum over clients"
BLIND: Final = "nothing"


@dataclass(frozen=True)
class Seen:
    """A prototype that others see."""

    vector: Mean
    weight: float
    """Of one sample of the client in it."""
    noise: float = 0.0
    """Variance of the noise on each channel."""


@dataclass(frozen=True, eq=False)
class ClientSamples:
    """A client's training samples as its uploads are made of them."""

    features: Rows
    labels: Labels
    release: Release | None = None
    """What it has released, in a run with differential privacy."""

    def counts(self, classes: int) -> Labels:
        return np.bincount(self.labels, minlength=classes)


def stored_release(config: RunConfig, directory: Path) -> Release | None:
    """The release in a client's directory; None in a run without differential privacy."""
    if config.privacy.dp == "off":
        return None
    try:
        return Release.of(np.load(directory / RELEASE_NAME, allow_pickle=False))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{directory / RELEASE_NAME} cannot be read: {error}") from None


def redrawn(client: ClientSamples, config: RunConfig, random: np.random.Generator) -> ClientSamples:
    """The client with another release of the same samples: one draw tells little of what an attack finds on average."""
    multiplier = _noise_of(config)
    sums = np.zeros((config.classes, client.features.shape[1]))
    np.add.at(sums, client.labels, client.features)
    sums += random.normal(0.0, deviation_of_sums(multiplier), sums.shape)
    counts = client.counts(config.classes) + random.normal(0.0, deviation_of_counts(multiplier), config.classes)
    return replace(client, release=Release(sums.astype(np.float32), counts.astype(np.float32)))


def uploads_of(client: ClientSamples, config: RunConfig) -> dict[int, Seen]:
    """A client's prototypes by class, as it uploads them."""
    privacy, counts = config.privacy, client.counts(config.classes)
    if client.release is not None:
        deviation = deviation_of_sums(_noise_of(config))
        return {int(label): _released(client.release, int(label), deviation) for label in np.flatnonzero(counts)}
    held = [int(label) for label in np.flatnonzero(counts >= max(1, privacy.min_class_samples))]
    means = {label: client.features[client.labels == label].mean(axis=0) for label in held}
    if not privacy.noise_multiplier or not held:
        return {label: Seen(mean, 1 / counts[label]) for label, mean in means.items()}
    noisy = clipped_with_noise(np.stack([means[label] for label in held]).astype(np.float32), privacy)
    variance = (privacy.noise_multiplier * privacy.clip_bound) ** 2
    return {
        label: Seen(vector.astype(np.float64), 1 / counts[label], variance)
        for label, vector in zip(held, noisy, strict=True)
    }


def sums_of(clients: Sequence[ClientSamples], config: RunConfig) -> list[dict[int, Seen]]:
    """By client and class, the mean over all clients: all that is left to see where only sums leave the clients."""
    uploads = [uploads_of(client, config) for client in clients]
    fewest = MIN_HOLDERS if config.privacy.secure_sums and config.privacy.dp == "off" else 1
    by_class: dict[int, dict[int, Seen]] = {}
    for index, of_client in enumerate(uploads):
        for label, seen in of_client.items():
            by_class.setdefault(label, {})[index] = seen
    means = {
        label: _mean(by_client, by_samples=config.method_spec.fixed_network is not None)
        for label, by_client in by_class.items()
        if len(by_client) >= fewest
    }
    return [
        {label: means[label][index] for label in of_client if label in means} for index, of_client in enumerate(uploads)
    ]


def _mean(by_client: Mapping[int, Seen], *, by_samples: bool) -> dict[int, Seen]:
    """The mean of prototypes, in which every client or every sample has the same weight, with each client's share."""
    found = by_client.values()
    weights = np.array([1 / seen.weight if by_samples else 1.0 for seen in found])
    shares = weights / weights.sum()
    vector = np.asarray(sum(share * seen.vector for share, seen in zip(shares, found, strict=True)))
    noise = float(sum(share**2 * seen.noise for share, seen in zip(shares, found, strict=True)))
    return {
        index: Seen(vector, seen.weight * float(share), noise)
        for (index, seen), share in zip(by_client.items(), shares, strict=True)
    }


def _noise_of(config: RunConfig) -> float:
    """The noise multiplier of one client's release."""
    return float(noise_for(config.privacy.epsilon, config.privacy.delta) / config.noise_sharers**0.5)


def _released(release: Release, label: int, deviation: float) -> Seen:
    count = max(1.0, float(release.counts[label]))
    return Seen(release.sums[label].astype(np.float64) / count, 1 / count, (deviation / count) ** 2)


def best_possible_auc(privacy: PrivacyConfig) -> float | None:
    """The AUC of no attack on a release with noise is above this, whatever it knows; None without the promise.

    Telling one sample's presence is telling two Gaussians apart whose means are one sensitivity apart.
    """
    if privacy.dp == "off":
        return None
    return math.erfc(-1 / (2 * noise_for(privacy.epsilon, privacy.delta))) / 2


def label_distances(clients: Sequence[ClientSamples], config: RunConfig) -> dict[str, float]:
    """What each form of exchange tells of a client's labels: the mean distance from their true distribution."""
    counts = np.stack([client.counts(config.classes) for client in clients])
    seen: dict[str, npt.NDArray[np.float64]] = {
        EXACT: counts.astype(np.float64),
        BUCKETS: np.stack([in_buckets(row) for row in counts]).astype(np.float64),
        CLASSES: (counts > 0).astype(np.float64),
        SUMMED: np.broadcast_to(counts.sum(axis=0), counts.shape).astype(np.float64),
        BLIND: np.ones(counts.shape),
    }
    released = [client.release for client in clients if client.release is not None]
    if released:
        seen[RELEASED] = np.stack([np.maximum(release.counts, 1e-9) for release in released]).astype(np.float64)
    true = counts.astype(np.float64)
    return {
        form: float(np.mean([total_variation(*pair) for pair in zip(found, true, strict=True)]))
        for form, found in seen.items()
    }


def labels_told(config: RunConfig) -> str:
    """Which of these forms the server of a run sees."""
    if config.privacy.secure_sums:
        return SUMMED
    if config.privacy.dp != "off":
        return RELEASED
    return BUCKETS if config.privacy.counts == "buckets" else EXACT
