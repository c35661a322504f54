"""FPL on the client: contrasts features with all cluster prototypes and aligns them with their class's mean cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from feddbp_client.losses import alignment, angular_contrast, directions
from feddbp_client.methods.prototype_model import PrototypeModel
from feddbp_client.methods.received import ClassTable
from feddbp_client.methods.scores import Scores
from feddbp_common.errors import refuse
from feddbp_common.methods.fpl import CLUSTER_CLASSES, CLUSTER_PROTOTYPES, FPLSettings
from feddbp_common.wire import Payload


@dataclass(frozen=True, eq=False)
class _Clusters:
    directions: Tensor
    """[rows, d], scaled to length one."""
    classes: Tensor
    """int64 [rows]."""
    unbiased: ClassTable
    """The mean of each class's clusters, unweighted by how many clients a cluster has."""

    @classmethod
    def from_payload(cls, payload: Payload, *, classes: int, device: torch.device) -> Self | None:
        vectors, class_ids = (payload.tensors.get(name) for name in (CLUSTER_PROTOTYPES, CLUSTER_CLASSES))
        if vectors is None and class_ids is None:
            return None
        if vectors is None or class_ids is None or len(vectors) != len(class_ids):
            refuse(CLUSTER_CLASSES, f"must name the class of every row of {CLUSTER_PROTOTYPES}")
        rows, row_classes = torch.tensor(vectors), torch.tensor(class_ids, dtype=torch.int64)
        sizes = torch.bincount(row_classes, minlength=classes)
        sums = torch.zeros(classes, rows.shape[1], dtype=torch.float64).index_add_(0, row_classes, rows.double())
        means = (sums / sizes.clamp_min(1).unsqueeze(1)).to(rows.dtype)
        return cls(
            directions=directions(rows.to(device)),
            classes=row_classes.to(device),
            unbiased=ClassTable(means.to(device), (sizes > 0).to(device)),
        )


class FPL(PrototypeModel[FPLSettings]):
    """Cross-entropy, contrast with cluster prototypes (cpcl) and alignment with unbiased ones (upcr), unweighted."""

    inference_rules = ("head", "prototype")

    _clusters: _Clusters | None = None

    @property
    def inference(self) -> str:
        return self.settings.inference

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        self._clusters = _Clusters.from_payload(payload, classes=self.task.classes, device=self.device)

    def terms(self, z: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        clusters = self._clusters
        if clusters is None:
            return {}
        unbiased = clusters.unbiased
        return {
            "cpcl": angular_contrast(z, clusters.directions, clusters.classes, labels, tau=self.settings.tau),
            "upcr": alignment(z, unbiased.vectors, labels, unbiased.known, self.settings.distance),
        }

    def scores(self, images: Tensor) -> Mapping[str, Scores]:
        return self.scores_by_prototype(images, self._clusters.unbiased if self._clusters is not None else None)
