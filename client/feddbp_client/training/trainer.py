"""One round on a client: evaluate with the download, train, collect the upload."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.data import ClientData, batches
from feddbp_client.data.batches import scaled
from feddbp_client.methods.base import LocalMethod
from feddbp_client.training.devices import Precision
from feddbp_client.training.image_feed import ImageFeed
from feddbp_common.config.run import RunConfig
from feddbp_common.errors import FedDBPError
from feddbp_common.seeding import derive_seed
from feddbp_common.wire import Payload

log = logging.getLogger("feddbp.client")

PASS_BATCH: Final = 512
"""Batch size of passes without training: evaluation and collection."""

OnEpoch = Callable[[int, int], None]
"""Called after each local epoch with the epochs done and their total."""


class TrainingError(FedDBPError):
    """Local training failed or was stopped."""


@contextmanager
def as_training_error() -> Iterator[None]:
    """Converts any error of a library, a device or a user's model into a TrainingError with its first line."""
    try:
        yield
    except FedDBPError:
        raise
    except Exception as error:
        log.debug("local training failed", exc_info=True)
        line = str(error).strip().partition("\n")[0]
        raise TrainingError(f"{type(error).__name__}: {line}" if line else type(error).__name__) from error


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """The metrics of a round and, if the client trained, its upload."""

    metrics: pb.RoundMetrics
    upload: Payload | None


class LocalTrainer:
    """Runs a client's rounds on its model and data. Blocking: call it from a worker thread."""

    def __init__(
        self,
        *,
        method: LocalMethod,  # type: ignore[type-arg]
        data: ClientData,
        config: RunConfig,
        client_id: int,
        device: torch.device,
        amp: bool = False,
    ) -> None:
        self.method = method.to(device)
        self._config = config
        self._client_id = client_id
        self._device = device
        self._precision = Precision(device, amp)
        self._train_images = ImageFeed(data.train.images, device)
        self._train_labels = data.train.labels.to(device)
        self._test_images = ImageFeed(data.test.images, device)
        self._test_labels = data.test.labels.to(device)
        self._stop = threading.Event()

    def stop(self) -> None:
        """Stops a round in progress at its next batch, and every later round at its start."""
        self._stop.set()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise TrainingError("stopped")

    def evaluate(self, received: Payload, round_number: int) -> RoundResult:
        """Evaluates only: in the final evaluation, or in a round without this client's training."""
        self._check_stop()
        self._seed(round_number)
        self.method.receive(received, completed_rounds=round_number)
        return RoundResult(metrics=self._measure(), upload=None)

    def train(self, received: Payload, round_number: int, on_epoch: OnEpoch) -> RoundResult:
        metrics = self.evaluate(received, round_number).metrics
        started = time.perf_counter()
        losses = self._train(round_number, on_epoch)
        trained = time.perf_counter()
        upload = self._collect()
        metrics.losses.extend(pb.LossTerm(name=name, value=value) for name, value in losses.items())
        metrics.seconds.train = trained - started
        metrics.seconds.collect = time.perf_counter() - trained
        return RoundResult(metrics=metrics, upload=upload)

    def _seed(self, round_number: int) -> None:
        """Seeds torch from the run, the client and the round: nothing random depends on earlier rounds."""
        torch.manual_seed(derive_seed(self._config.seed, "round", self._client_id, round_number))

    @torch.inference_mode()
    def _measure(self) -> pb.RoundMetrics:
        started = time.perf_counter()
        self.method.eval()
        correct = dict.fromkeys(self.method.inference_rules, 0)
        for start in range(0, len(self._test_labels), PASS_BATCH):
            self._check_stop()
            batch = slice(start, start + PASS_BATCH)
            labels = self._test_labels[batch]
            with self._precision.autocast():
                predictions = self.method.predict(self._test_images[batch])
            for rule, predicted in predictions.items():
                correct[rule] += int((predicted == labels).sum())
        return pb.RoundMetrics(
            accuracies=[pb.Accuracy(rule=rule, correct=right) for rule, right in correct.items()],
            inference=self.method.inference,
            test_samples=len(self._test_labels),
            seconds=pb.Seconds(evaluate=time.perf_counter() - started),
        )

    def _train(self, round_number: int, on_epoch: OnEpoch) -> dict[str, float]:
        """Local epochs with a fresh optimiser; returns the mean of every loss term over the steps."""
        training = self._config.training
        self.method.train()
        optimiser = torch.optim.SGD(
            self.method.parameter_groups(training.learning_rate),
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )
        scaler = self._precision.scaler()
        order = torch.Generator().manual_seed(derive_seed(self._config.seed, "order", self._client_id, round_number))
        tally = _LossTally()
        for epoch in range(training.local_epochs):
            self.method.begin_epoch(epoch, training.local_epochs)
            positions = batches(
                len(self._train_labels),
                batch_size=training.batch_size,
                generator=order,
                htfllib_loader=training.htfllib_loader,
            )
            for index, pixels in zip(positions, self._train_images.batches(positions), strict=True):
                self._check_stop()
                images = scaled(pixels)
                labels = self._train_labels[index.to(self._train_labels.device)]
                with self._precision.autocast():
                    objective = self.method.objective(images, labels)
                optimiser.zero_grad(set_to_none=True)
                scaler.scale(objective.total).backward()
                scaler.unscale_(optimiser)
                self.method.clip_gradients()
                scaler.step(optimiser)
                scaler.update()
                tally.add({"total": objective.total, **objective.terms})
            on_epoch(epoch + 1, training.local_epochs)
        return tally.means()

    def _collect(self) -> Payload:
        self.method.eval()
        with self._precision.autocast():
            return self.method.collect(self._train_images, self._train_labels, batch_size=PASS_BATCH)


class _LossTally:
    """Sums of the loss terms, kept on the device: reading them at every step would synchronise it."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._steps = 0

    def add(self, terms: dict[str, torch.Tensor]) -> None:
        self._steps += 1
        for name, value in terms.items():
            detached = value.detach().float()
            self._sums[name] = self._sums[name] + detached if name in self._sums else detached

    def means(self) -> dict[str, float]:
        if not self._steps:
            raise TrainingError("the client has too few training samples for a single batch")
        means = {name: float(total) / self._steps for name, total in self._sums.items()}
        for name, value in means.items():
            if not math.isfinite(value):
                raise TrainingError(f"training diverged: loss term {name!r} is {value}; try a smaller --learning-rate")
        return means
