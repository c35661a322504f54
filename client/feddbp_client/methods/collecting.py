"""Class means for the upload, taken after training, as the methods' papers describe, or during it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from feddbp_client.training.class_statistics import ClassMeans, Images, PerSample, class_means
from feddbp_common.methods.contract import CollectMode


class ClassCollector:
    """Means per class of one vector per sample: a feature, a normalised feature, a row of logits.

    `post` takes every sample once after training, in eval mode. `running` averages over all steps of the round and
    `last_epoch` over those of the last epoch, in train mode while the weights change, as some published code does.
    """

    def __init__(self, mode: CollectMode, *, classes: int, width: int) -> None:
        self._mode = mode
        self._sums = torch.zeros(classes, width, dtype=torch.float64)
        self._counts = torch.zeros(classes, dtype=torch.int64)

    def begin_epoch(self, epoch: int) -> None:
        if self._mode == "last_epoch" or epoch == 0:
            self._sums.zero_()
            self._counts.zero_()

    def observe(self, vectors: Tensor, labels: Tensor) -> None:
        """Adds a training batch to the means; does nothing in mode `post`."""
        if self._mode == "post":
            return
        labels = labels.cpu()
        self._sums.index_add_(0, labels, vectors.detach().cpu().double())
        self._counts += torch.bincount(labels, minlength=len(self._counts))

    def collect(
        self, per_sample: PerSample, images: Images, labels: Tensor, *, batch_size: int, device: torch.device
    ) -> ClassMeans:
        if self._mode == "post":
            width = self._sums.shape[1]
            return class_means(per_sample, images, labels, width=width, batch_size=batch_size, device=device)
        seen = self._counts > 0
        return ClassMeans(
            class_ids=torch.nonzero(seen).flatten().numpy().astype(np.int32),
            # counts are of samples, not of how often they were seen
            counts=torch.bincount(labels.cpu(), minlength=len(seen))[seen].numpy().astype(np.int32),
            means=(self._sums[seen] / self._counts[seen].unsqueeze(1)).numpy().astype(np.float32),
        )
