"""Evaluation on the samples that a client holds out, and its splits as the device reads them."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.compute.plan import Compute
from feddbp_client.data import ClientData, Split
from feddbp_client.data.pixels import PixelRange
from feddbp_client.methods.base import LocalMethod
from feddbp_client.training.image_feed import ImageFeed
from feddbp_common.evaluation import RARE_CLASS_SAMPLES


class DeviceSplit:
    """A split as its device reads it."""

    def __init__(self, split: Split, compute: Compute, pixels: PixelRange) -> None:
        self.images = ImageFeed(split.images, compute.device, compute.image_budget, pixels=pixels)
        self.labels = split.labels.to(compute.device)

    def __len__(self) -> int:
        return len(self.labels)


class Evaluator:
    """Owns a client's test and validation samples on its device."""

    def __init__(
        self,
        method: LocalMethod,  # type: ignore[type-arg]
        data: ClientData,
        compute: Compute,
        *,
        batch_size: int,
        reports_rare_classes: bool,
        check_stop: Callable[[], None],
    ) -> None:
        """`check_stop` is called before every batch, and raises an error to stop."""
        self._method = method
        self._batch_size = batch_size
        self._check_stop = check_stop
        self._test = DeviceSplit(data.test, compute, data.pixels)
        self._validation = None if data.validation is None else DeviceSplit(data.validation, compute, data.pixels)
        rare = _is_rare(data).to(compute.device)
        self._is_rare = rare if reports_rare_classes else torch.zeros_like(rare)

    def __len__(self) -> int:
        return len(self._test) + (0 if self._validation is None else len(self._validation))

    @torch.inference_mode()
    def measure(self) -> pb.RoundMetrics:
        """The accuracy by each of the method's inference rules, and the time that it took."""
        started = time.perf_counter()
        method, validation = self._method, self._validation
        method.eval()
        hits = self._hits(self._test)
        validated = {} if validation is None else self._hits(validation)
        return pb.RoundMetrics(
            accuracies=[
                pb.Accuracy(
                    rule=rule,
                    correct=int(hits[rule].sum()),
                    validation_correct=int(validated[rule].sum()) if validated else 0,
                )
                for rule in method.reported_rules
            ],
            inference=method.inference,
            test_samples=len(self._test),
            validation_samples=0 if validation is None else len(validation),
            rare_test_samples=int(self._is_rare.sum()),
            rare_correct=int(hits[method.inference][self._is_rare].sum()),
            seconds=pb.Seconds(evaluate=time.perf_counter() - started),
        )

    def _hits(self, split: DeviceSplit) -> dict[str, torch.Tensor]:
        """By inference rule, whether each sample is predicted correctly; bool [n]."""
        hits = {rule: torch.zeros_like(split.labels, dtype=torch.bool) for rule in self._method.reported_rules}
        for start in range(0, len(split), self._batch_size):
            self._check_stop()
            batch = slice(start, start + self._batch_size)
            predictions = self._method.predict(split.images[batch])
            for rule in hits:
                hits[rule][batch] = predictions[rule] == split.labels[batch]
        return hits


def _is_rare(data: ClientData) -> torch.Tensor:
    """Which test samples are of a class of which the client has few training samples; bool [n]."""
    return torch.from_numpy(data.label_counts)[data.test.labels] < RARE_CLASS_SAMPLES
