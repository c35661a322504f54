"""One round on a client: evaluate with the download, train, collect the upload."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Literal

import torch
from torch import nn

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.compute.devices import CPU
from feddbp_client.compute.out_of_memory import MemoryGuard, Pass
from feddbp_client.compute.plan import Compute
from feddbp_client.compute.random_state import RandomState, seed_generators
from feddbp_client.data import ClientData, batches
from feddbp_client.data.batches import Remainder, scaled
from feddbp_client.methods.base import LocalMethod
from feddbp_client.privacy.disclosure import disclosed
from feddbp_client.training.augmentation import Augmentation
from feddbp_client.training.errors import DivergedError, TrainingError, WeightsMismatchError
from feddbp_client.training.evaluation import DeviceSplit, Evaluator
from feddbp_client.training.optimization import MakeOptimizer, Optimization
from feddbp_client.training.weight_average import WeightAverage
from feddbp_common.config.run import RunConfig
from feddbp_common.differential_privacy.mechanism import Release, Table
from feddbp_common.errors import ConfigurationError, PayloadError
from feddbp_common.humanize import round_name
from feddbp_common.methods import frozen
from feddbp_common.methods.frozen import SUMS
from feddbp_common.seeding import derive_seed
from feddbp_common.wire import Payload, check_values
from feddbp_common.wire.rules import MAGNITUDE_BOUND

log = logging.getLogger("feddbp.client")

PASS_BATCH: Final = 512
"""Batch size of passes without training, evaluation and collection, for images of up to _PASS_VALUES."""
_PASS_VALUES: Final = 3 * 64 * 64
_LARGEST_LOSS: Final = 1e6
"""Training with a larger one has diverged, though it may still be finite: the weights are of no use any more."""

OnEpoch = Callable[[int, int], None]
"""Called after each local epoch with the epochs done and their total."""
ReleaseTable = Callable[[Callable[[], Table]], Table]
"""Given a function that computes the client's exact table: the table that leaves the client."""


def pass_batch(image_shape: tuple[int, int, int]) -> int:
    """Batch size of a pass over images of this shape: larger ones in smaller batches, so that memory stays bounded."""
    return max(1, min(PASS_BATCH, PASS_BATCH * _PASS_VALUES // math.prod(image_shape)))


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """What a client's training carries from round to round, as a checkpoint stores it."""

    model: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Empty unless the run keeps the optimiser over rounds."""
    average: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Empty unless the run averages weights."""

    def copied(self) -> TrainerState:
        """A copy on the host, which training does not change."""
        parts = (self.model, self.optimizer, self.average)
        model, optimizer, average = (
            {name: tensor.detach().to(CPU, copy=True) for name, tensor in part.items()} for part in parts
        )
        return TrainerState(model=model, optimizer=optimizer, average=average)


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """The metrics of a round and, if the client trained, its upload."""

    metrics: pb.RoundMetrics
    upload: Payload | None
    skipped: str = ""
    """Why the training came to nothing: the client has the state that it had before the round."""


class LocalTrainer:
    """Runs a client's rounds on its model and data. Blocking: call it from a worker thread."""

    def __init__(
        self,
        *,
        method: LocalMethod,  # type: ignore[type-arg]
        data: ClientData,
        config: RunConfig,
        client_id: int,
        compute: Compute | None = None,
        augment: Augmentation | None = None,
        make_optimizer: MakeOptimizer | None = None,
    ) -> None:
        self._compute = compute or Compute()
        self._compute.prepare(method)
        method.set_label_counts(data.label_counts.tolist())
        self.method = method.to(CPU if self._compute.shared else self.device)
        self._config = config
        self._client_id = client_id
        self._pixels = data.pixels
        self._pass_batch = pass_batch(data.image_shape)
        self._train_split = DeviceSplit(data.train, self._compute, data.pixels)
        self._evaluator = Evaluator(
            self.method,
            data,
            self._compute,
            batch_size=self._pass_batch,
            # which classes are rare depends on the training samples
            reports_rare_classes=config.privacy.declares_counts,
            check_stop=self._check_stop,
        )
        self._label_counts = data.label_counts
        self._remainder = _remainder_rule(config.training.batch_remainder, self.method)
        self._optimization = Optimization(
            self.method,
            config.training,
            self._compute.precision,
            rounds=config.rounds_of(client_id),
            make_optimizer=make_optimizer,
        )
        self._optimization.check()
        self._average = WeightAverage(self.method, config.training.ema) if config.training.ema else None
        self._augment = augment
        self._memory = MemoryGuard(method, self._compute, client_id=client_id, image_shape=data.image_shape)
        self._evaluation = Pass(name="evaluation", batch=min(self._pass_batch, len(self._evaluator)))
        self._collection = Pass(name="collection", batch=min(self._pass_batch, len(data.train)))
        self._training = Pass(
            name="training",
            batch=min(config.training.batch_size, len(data.train)),
            may_chunk=config.training.accumulate,
            trains=True,
        )
        self.release_table: ReleaseTable | None = None
        """Under differential privacy: adds noise to the client's table once and returns the same ever after."""
        self._stop = threading.Event()

    @property
    def device(self) -> torch.device:
        return self._compute.device

    @property
    def _is_private(self) -> bool:
        """Whether nothing of the training samples may leave the client but a release with noise."""
        return self._config.privacy.dp != "off"

    def stop(self) -> None:
        """Stops a round in progress at its next batch, and every later round at its start."""
        self._stop.set()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise TrainingError("stopped")

    def state(self) -> TrainerState:
        """Everything that outlives a round."""
        return TrainerState(
            model=self.method.state_dict(),
            optimizer=self._optimization.state(),
            average={} if self._average is None else self._average.state(),
        )

    def load_state(self, state: TrainerState) -> None:
        """Raises WeightsMismatchError if the weights are those of another network."""
        _check_weights(self.method, state.model)
        self.method.load_state_dict(dict(state.model))
        self._optimization.load_state(state.optimizer)
        if self._average is not None and state.average:
            self._average.load_state(state.average)

    def evaluate(self, received: Payload, round_number: int) -> RoundResult:
        """Evaluates only: in the final evaluation, or in a round without this client's training."""
        with self._on_device():
            return RoundResult(metrics=self._receive_and_measure(received, round_number), upload=None)

    def train(self, received: Payload, round_number: int, on_epoch: OnEpoch) -> RoundResult:
        """Trains; if that diverges, once more in short steps, or else restores what the client had before the round."""
        with self._on_device():
            before = self.state().copied()
            metrics = self._receive_and_measure(received, round_number)
            try:
                return self._train_and_collect(metrics, round_number, on_epoch)
            except DivergedError as error:
                log.warning(
                    "client %d: %s: training diverged: %s; trying once more in shorter steps",
                    self._client_id,
                    round_name(round_number, self._config.rounds),
                    error.cause,
                )
                self.load_state(before)
            self._receive(received, round_number)
            try:
                with self._optimization.in_short_steps():
                    # under differential privacy nobody else may see that this is a second attempt
                    return self._train_and_collect(metrics, round_number, _no_report if self._is_private else on_epoch)
            except DivergedError as error:
                self.load_state(before)
                if self._is_private:
                    return self._release_alone(metrics, received, round_number, error)
                del metrics.losses[:]
                return RoundResult(metrics=metrics, upload=None, skipped=str(error))

    def _release_alone(
        self, metrics: pb.RoundMetrics, received: Payload, round_number: int, error: DivergedError
    ) -> RoundResult:
        """The round of a client whose own head has diverged: its release depends on no training."""
        log.warning(
            "client %d: %s: training diverged again: %s; the head stays as it was",
            self._client_id,
            round_name(round_number, self._config.rounds),
            error.cause,
        )
        self._receive(received, round_number)
        return RoundResult(metrics=metrics, upload=self._collected())

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Computes on the client's device; afterwards its memory is free for other clients that share it."""
        with self._compute.active():
            try:
                self._move_to(self.device)
                yield
            finally:
                self.method.zero_grad(set_to_none=True)
                if self._compute.shared:
                    self._move_to(CPU)

    def _move_to(self, device: torch.device) -> None:
        self.method.to(device)
        self._optimization.move_to(device)
        if self._average is not None:
            self._average.move_to(device)

    def _receive(self, received: Payload, round_number: int) -> None:
        self._check_stop()
        self._seed(round_number)
        with nullcontext() if self._average is None else self._average.following():
            self.method.receive(received, completed_rounds=round_number)

    def _receive_and_measure(self, received: Payload, round_number: int) -> pb.RoundMetrics:
        self._receive(received, round_number)
        with nullcontext() if self._average is None else self._average.applied():
            return self._memory.run(self._evaluation, self._evaluator.measure, RandomState(self.device))

    def _train_and_collect(self, metrics: pb.RoundMetrics, round_number: int, on_epoch: OnEpoch) -> RoundResult:
        started = time.perf_counter()
        start = _TrainingStart(self) if self._training.may_chunk else RandomState(self.device)
        losses = self._memory.run(self._training, lambda: self._train(round_number, on_epoch), start)
        _check_bounds(self.method)
        trained = time.perf_counter()
        upload = self._collected()
        if self._is_private:  # both would tell of the training samples
            return RoundResult(metrics=metrics, upload=upload)
        metrics.losses.extend(pb.LossTerm(name=name, value=value) for name, value in losses.items())
        metrics.seconds.train = trained - started
        metrics.seconds.collect = time.perf_counter() - trained
        return RoundResult(metrics=metrics, upload=upload)

    def _collected(self) -> Payload:
        upload = self._memory.run(self._collection, self._collect, RandomState(self.device))
        self._check_upload(upload)
        return upload

    def _check_upload(self, upload: Payload) -> None:
        """The server would refuse values that are not finite or out of bounds."""
        config = self._config
        rules = config.method_spec.upload_rules(config.settings, config.exchange_shape)
        try:
            check_values(upload, rules, real_type=config.wire_type)
        except PayloadError as error:
            raise DivergedError(str(error)) from None

    def _seed(self, round_number: int) -> None:
        """Seeds torch from the run, the client and the round: nothing random depends on earlier rounds."""
        seed_generators(self._seed_for("round", round_number), self.device)

    def _seed_for(self, purpose: str, round_number: int) -> int:
        return derive_seed(self._config.seed, purpose, self._client_id, round_number)

    def _generator(self, purpose: str, round_number: int) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed_for(purpose, round_number))

    def _train(self, round_number: int, on_epoch: OnEpoch) -> dict[str, float]:
        """Local epochs; returns the mean of every loss term over the steps."""
        epochs, split, tally = self._config.training.local_epochs, self._train_split, _LossTally()
        order, changes = self._generator("order", round_number), self._generator("augment", round_number)
        positions = self._batches(order)
        self.method.train()
        self._optimization.begin_round(round_number, steps=epochs * len(positions))
        for epoch in range(epochs):
            if epoch:  # one order at a time: the server decides how many epochs there are
                positions = self._batches(order)
            self.method.begin_epoch(epoch, epochs)
            for index, pixels in zip(positions, split.images.batches(positions), strict=True):
                self._check_stop()
                if self._augment is not None:
                    pixels = self._augment(pixels, changes)
                # non_blocking: else the host would wait here until the device has done all steps before
                labels = split.labels[index.to(split.labels.device, non_blocking=True)]
                objective = self.method.objective(scaled(pixels, self._pixels), labels)
                self._optimization.step(objective.total)
                if self._average is not None:
                    self._average.update()
                tally.add({"total": objective.total, **objective.terms})
            on_epoch(epoch + 1, epochs)
        self._optimization.end_round()
        return tally.means()

    def _batches(self, order: torch.Generator) -> list[torch.Tensor]:
        training = self._config.training
        return batches(
            len(self._train_split.labels),
            batch_size=training.batch_size,
            generator=order,
            remainder=self._remainder,
            htfllib_loader=training.htfllib_loader,
        )

    def _collect(self) -> Payload:
        self.method.eval()
        split = self._train_split
        if self._is_private:
            return self._private_release()
        payload = self.method.collect(split.images, split.labels, batch_size=self._pass_batch)
        return disclosed(payload, self._label_counts, self._config.privacy)

    def _private_release(self) -> Payload:
        if self.release_table is None:
            raise ConfigurationError("differential privacy needs a client's directory, where its release is kept")
        split = self._train_split
        table = self.release_table(
            lambda: self.method.exact_table(split.images, split.labels, batch_size=self._pass_batch)
        )
        release = Release.of(table, exact=self._config.privacy.secure_sums)
        return Payload(tensors={SUMS: release.sums, frozen.COUNTS: release.counts})


def _check_weights(method: nn.Module, stored: Mapping[str, torch.Tensor]) -> None:
    own = method.state_dict()
    for name in sorted(own.keys() | stored.keys()):
        if name not in own or name not in stored or own[name].shape != stored[name].shape:
            raise WeightsMismatchError(f"{name} is missing, new or of another shape")


def _check_bounds(method: nn.Module) -> None:
    """The last step of a round may ruin weights without a loss that shows it; all later rounds would begin there."""
    trained = {name: part for name, part in method.named_parameters() if part.requires_grad and part.numel()}
    largest = [torch.linalg.vector_norm(part.detach(), math.inf).float() for part in trained.values()]
    for name, value in zip(trained, torch.stack(largest).tolist(), strict=True):  # stacked: one copy from the device
        if not value <= MAGNITUDE_BOUND:
            raise DivergedError(f"a weight of {name} is {value:.3g}")


def _no_report(_epoch: int, _epochs: int) -> None:
    return


class _TrainingStart:
    """A client before it trains, for a training that has to start again."""

    def __init__(self, trainer: LocalTrainer) -> None:
        self._trainer = trainer
        self._state = trainer.state().copied()
        self._random = RandomState(trainer.device)

    def restore(self) -> None:
        self._trainer.load_state(self._state)
        self._random.restore()


def _remainder_rule(setting: Literal["auto", "keep", "merge", "drop"], method: nn.Module) -> Remainder:
    """A tiny last batch ruins the statistics of batch norm: networks that have it merge it into the one before."""
    if setting != "auto":
        return setting
    has_batch_norm = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in method.modules())
    return "merge" if has_batch_norm else "keep"


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
            if not abs(value) <= _LARGEST_LOSS:
                raise DivergedError(f"loss term {name!r} is {value:.3g}")
        return means
