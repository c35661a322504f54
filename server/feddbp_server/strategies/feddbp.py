"""FedDBP on the server: one average per class; each client keeps its own values in its most important channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from feddbp_common.methods.feddbp import FedDBPSettings
from feddbp_common.methods.fusion import Marks, fuse_channels, mark_top_channels, top_channels_of
from feddbp_common.seeding import derive_seed
from feddbp_common.wire import FisherScores, Payload, PrototypeSet, TopChannels
from feddbp_server.strategies.base import RunFacts, Shapes, Upload
from feddbp_server.strategies.prototype_averaging import PrototypeAveraging
from feddbp_server.strategies.robust import tensor_average


class FedDBPStrategy(PrototypeAveraging[FedDBPSettings]):
    """Prototypes of clients have equal weight; fusion happens on download, from the client's own last upload.

    Where clients fuse for themselves, all receive the same averages.

    Guides are weighted by the clients' training samples, as in FedAvg.
    """

    def __init__(self, settings: FedDBPSettings, facts: RunFacts) -> None:
        super().__init__(settings, facts)
        self.personalises = not facts.shape.fusion_at_client
        self.aggregates_prototypes_only = not settings.guided

    def layout(self, shapes: Shapes) -> Shapes:
        return shapes

    def kept_part(self, upload: Payload) -> Payload:
        prototypes, fisher = upload.prototypes, upload.fisher
        if not self.personalises or prototypes is None:
            return super().kept_part(upload)
        if isinstance(fisher, FisherScores):
            fisher = TopChannels(top_channels_of(fisher.scores, self.settings.k_top))
        own = replace(prototypes, vectors=prototypes.vectors.copy())
        return Payload(prototypes=own, fisher=fisher, tensors=upload.tensors)

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        if not self.settings.guided:
            return super().aggregate(state, uploads, round_number=round_number)
        guides = tensor_average(self.facts)

        def with_guides() -> Iterator[Upload]:
            for upload in uploads:
                guides.add(upload.payload.tensors, weight=upload.samples, of=f"client {upload.client_id}")
                yield upload

        if self.settings.exchanges_prototypes:
            averaged = super().aggregate(state, with_guides(), round_number=round_number)
            return replace(averaged, tensors=guides.result())
        for _ in with_guides():
            pass
        return Payload(tensors=guides.result())

    def from_means(self, state: Payload, means: Payload, *, round_number: int) -> Payload:
        if not self.settings.exchanges_prototypes:
            return means
        averaged = super().from_means(state, means, round_number=round_number)
        return replace(averaged, tensors=means.tensors)

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        shared = state.prototypes
        if shared is not None and self.settings.anchors != "global":
            return replace(state, prototypes=self._control(shared))
        if (
            shared is None
            or own_upload is None
            or own_upload.prototypes is None
            or self.settings.without_personalisation
            or not self.personalises
        ):
            return state
        fisher = own_upload.fisher
        if isinstance(fisher, FisherScores):
            fisher = TopChannels(top_channels_of(fisher.scores, self.settings.k_top))
        assert fisher is not None  # required by the upload rules
        fused = fuse_channels(shared, own_upload.prototypes, fisher.channels, eta=self.settings.eta)
        return replace(state, prototypes=fused)

    def kept_channels(self, own_upload: Payload) -> Marks | None:
        fuses = self.settings.anchors == "global" and not self.settings.without_personalisation
        # without scores in the upload, its client fuses by itself
        return _important(own_upload, self.settings.k_top) if fuses and own_upload.fisher is not None else None

    def _control(self, shared: PrototypeSet) -> PrototypeSet:
        """Anchors of the same lengths that tell nothing of their class, the same in every round and for all clients."""
        random = np.random.RandomState(derive_seed(self.facts.seed, "anchors") % 2**32)  # its stream never changes
        classes, width = self.facts.shape.classes, self.facts.shape.feature_dim
        if self.settings.anchors == "random":
            drawn = random.standard_normal((classes, width))[shared.class_ids]
            lengths = np.linalg.norm(shared.vectors, axis=1) / np.linalg.norm(drawn, axis=1)
            return PrototypeSet(class_ids=shared.class_ids, vectors=(drawn * lengths[:, np.newaxis]).astype(np.float32))
        # a cycle through all classes in random order: none keeps its own prototype
        order = random.permutation(classes)
        order = order[np.isin(order, shared.class_ids)]
        source = np.empty(classes, dtype=np.int64)
        source[order] = np.roll(order, 1)
        rows = np.searchsorted(shared.class_ids, source[shared.class_ids])
        return PrototypeSet(class_ids=shared.class_ids, vectors=shared.vectors[rows])


def _important(upload: Payload, k: int) -> Marks:
    assert upload.prototypes is not None
    if isinstance(upload.fisher, FisherScores):
        return mark_top_channels(upload.fisher.scores, k)
    assert isinstance(upload.fisher, TopChannels)
    marks = np.zeros(upload.prototypes.vectors.shape, dtype=bool)
    np.put_along_axis(marks, upload.fisher.channels.astype(np.intp), True, axis=1)
    return marks
