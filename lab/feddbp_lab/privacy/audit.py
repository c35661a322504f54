"""Audits a finished run: what its uploads, and their sums, tell about the samples and labels behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from feddbp_client.compute.devices import CPU
from feddbp_client.data import Split
from feddbp_client.data.batches import channels_first, scaled
from feddbp_client.inference.restore import restore_method
from feddbp_client.training.checkpoint import read_checkpoint
from feddbp_client.training.setup import LocalOptions, load_client_data
from feddbp_common.artifacts import CHECKPOINT_NAME
from feddbp_common.config.catalog import CUSTOM_DATASET
from feddbp_common.config.run import RunConfig, run_from_proto
from feddbp_common.differential_privacy.mechanism import Release
from feddbp_common.errors import ConfigurationError
from feddbp_common.seeding import derive_seed
from feddbp_lab.privacy.attacks import Mean, Reference, Rows
from feddbp_lab.privacy.seen import (
    ClientSamples,
    Seen,
    best_possible_auc,
    label_distances,
    labels_told,
    redrawn,
    stored_release,
    sums_of,
    uploads_of,
)
from feddbp_lab.privacy.tally import Tally

if TYPE_CHECKING:
    from feddbp_client.data import ClientData
    from feddbp_client.methods.base import LocalMethod

SIZES: Final = ((1, 4), (5, 9), (10, 29), (30, 99), (100, None))
"""Samples of a class behind a prototype, from and to."""
UPLOAD: Final = "a client's upload"
SUM: Final = "the sum over clients"
NOTHING: Final = "no member: must be 0.5"
ALONE: Final = "a prototype of one image: must be 1"
_REFERENCE_SAMPLES: Final = 4000
_BATCH: Final = 256
_REDRAWS: Final = 19
"""Of a release with noise, besides the one that was sent."""


@dataclass
class Audit:
    """What an attacker achieves, by what it sees."""

    method: str
    dataset: str
    clients: int
    membership: dict[str, dict[tuple[int, int | None], Tally]] = field(default_factory=dict)
    """By what is attacked and by the samples of the class."""
    baselines: dict[str, Tally] = field(default_factory=dict)
    labels: dict[str, float] = field(default_factory=dict)
    """Mean distance of the distribution of labels that an attacker infers from the true one."""
    told: str = ""
    """The form of counts, of those in `labels`, that the server of this run sees."""
    hides_uploads: bool = False
    """Whether the server of this run sees sums over clients alone."""
    bound: float | None = None
    """What the AUC of no attack on a client's upload exceeds, if the run promises differential privacy."""

    def tally(self, attacked: str, samples: int) -> Tally:
        size = next(size for size in SIZES if samples <= (size[1] or samples))
        return self.membership.setdefault(attacked, {}).setdefault(size, Tally())

    def baseline(self, name: str) -> Tally:
        return self.baselines.setdefault(name, Tally())


@dataclass(frozen=True, eq=False)
class _Client:
    client_id: int
    config: RunConfig
    method: LocalMethod  # type: ignore[type-arg]
    data: ClientData
    release: Release | None

    @torch.no_grad()
    def features(self, split: Split) -> Rows:
        """The vectors whose class means the client uploads."""
        found: list[torch.Tensor] = []
        for rows in np.array_split(np.arange(len(split)), max(1, len(split) // _BATCH)):
            pixels = channels_first(split.images[rows])
            vectors = self.method.uploaded_features(scaled(pixels, self.data.pixels))
            if vectors is None:
                raise ConfigurationError(f"{self.config.method} uploads no class means, which the audit attacks")
            found.append(vectors)
        return torch.cat(found).double().numpy()


def audit(
    directory: Path, *, data_dir: Path, own_data: Mapping[int, Path], progress: Callable[[str, int, int], None]
) -> Audit:
    """Attacks the prototypes of every client below a directory, with the client's own network as the feature map.

    `progress` is called with what has been done with a client, its number, counted from 1, and the number of clients.
    """
    directories = client_directories(directory)

    def done(what: str, number: int) -> None:
        progress(what, number, len(directories))

    clients = []
    for number, path in enumerate(directories, 1):
        clients.append(_load(path, data_dir, own_data))
        done("loaded", number)
    config = clients[0].config
    result = Audit(
        method=config.method_spec.title,
        dataset=config.data.dataset,
        clients=len(clients),
        hides_uploads=config.privacy.secure_sums,
        bound=best_possible_auc(config.privacy),
        told=labels_told(config),
    )
    samples = []
    for number, client in enumerate(clients, 1):
        features, labels = client.features(client.data.train), client.data.train.labels.numpy()
        samples.append(ClientSamples(features, labels, client.release))
        done("computed features of", number)
    draws = [samples, *_redraws(samples, config)]
    sums = [sums_of(draw, config) for draw in draws]
    for number, client in enumerate(clients):
        attack = _Attack(client, _reference_splits(client, clients), result)
        for draw, of_draw in zip(draws, sums, strict=True):
            attack.on(draw[number], of_draw[number])
        done("attacked", number + 1)
    result.labels = label_distances(samples, config)
    return result


def client_directories(directory: Path) -> list[Path]:
    """The clients' directories below a demo's output, a state directory or a cell with its state."""
    found = {path.parent for path in directory.rglob(f"client-*/{CHECKPOINT_NAME}")}
    if not found:
        raise ConfigurationError(
            f"{directory} has no checkpoint of a client below it; give the output of `feddbp demo`, a client's "
            "--state-dir, or a cell of an experiment that was run with --keep-state"
        )
    if len({path.parent for path in found}) > 1:
        raise ConfigurationError(f"{directory} has clients of several runs below it; give the directory of one")
    return sorted(found, key=lambda path: int(path.name.removeprefix("client-")))


def _load(path: Path, data_dir: Path, own_data: Mapping[int, Path]) -> _Client:
    checkpoint = read_checkpoint(path)
    config = run_from_proto(checkpoint.config)
    client_id = checkpoint.client_id
    if config.data.dataset == CUSTOM_DATASET and client_id not in own_data:
        raise ConfigurationError(f"client {client_id} trained on data of its own: give --data {client_id}=PATH")
    options = LocalOptions(data=own_data.get(client_id), data_dir=data_dir, model=None)
    method = restore_method(checkpoint, CPU).eval()
    release = stored_release(config, path)
    return _Client(client_id, config, method, load_client_data(config, client_id, options), release)


def _reference_splits(client: _Client, clients: Sequence[_Client]) -> list[Split]:
    """Test samples of other clients, which nobody trained with; the client's own, if it is the only one."""
    others = [other.data.test for other in clients if other is not client]
    return [split for split in others if split.images.shape[1:] == client.data.test.images.shape[1:]] or [
        client.data.test
    ]


def _redraws(samples: Sequence[ClientSamples], config: RunConfig) -> list[list[ClientSamples]]:
    """Other releases of the same samples, over which attacks on a release with noise are averaged."""
    if config.privacy.dp == "off":
        return []
    random = np.random.default_rng(derive_seed(config.seed, "audit"))
    return [[redrawn(client, config, random) for client in samples] for _ in range(_REDRAWS)]


class _Attack:
    """An attacker that knows a client's network and other samples."""

    def __init__(self, client: _Client, reference_splits: Sequence[Split], result: Audit) -> None:
        self._config, self._client_id = client.config, client.client_id
        self._labels, self._held_out = client.data.test.labels.numpy(), client.features(client.data.test)
        self._reference = _reference(client, reference_splits)
        self._random = np.random.default_rng(derive_seed(client.config.seed, "audit", client.client_id))
        self._result = result

    def on(self, samples: ClientSamples, sums: Mapping[int, Seen]) -> None:
        """Attacks what is seen of the client, once for every draw of its noise."""
        result = self._result
        for label, upload in uploads_of(samples, self._config).items():
            members, others = samples.features[samples.labels == label], self._held_out[self._labels == label]
            scored, prototype = partial(_scored, self._reference, label), (self._client_id, label)
            result.tally(UPLOAD, len(members)).add(prototype, *scored(upload, members, others))
            if label in sums:
                result.tally(SUM, len(members)).add(prototype, *scored(sums[label], members, others))
            if len(others) > 1:
                halves = np.array_split(self._random.permutation(others), 2)
                result.baseline(NOTHING).add(prototype, *scored(upload, *halves))
                result.baseline(ALONE).add(prototype, *scored(Seen(others[0], 1.0), others[:1], others[1:]))


def _scored(reference: Reference, label: int, seen: Seen, inside: Rows, outside: Rows) -> tuple[Mean, Mean]:
    scores = partial(reference.scores, prototype=seen.vector, label=label, weight=seen.weight, noise=seen.noise)
    return scores(inside), scores(outside)


def _reference(client: _Client, splits: Sequence[Split]) -> Reference:
    share = max(1, _REFERENCE_SAMPLES // len(splits))
    parts = [Split(split.images[np.arange(len(split))[:share]], split.labels[:share]) for split in splits]
    labels = np.concatenate([part.labels.numpy() for part in parts])
    return Reference.of(np.concatenate([client.features(part) for part in parts]), labels)
