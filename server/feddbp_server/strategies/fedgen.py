"""FedGen on the server: the mean head, and a generator of features that the clients' heads classify correctly."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from feddbp_common.methods.fedgen import FEDGEN, HIDDEN_WEIGHT, LABEL_COUNTS, FedGenSettings
from feddbp_common.seeding import derive_seed
from feddbp_common.wire import Payload
from feddbp_common.wire.payload import AnyArray
from feddbp_server.strategies.adam import ADAM, Adam
from feddbp_server.strategies.base import Strategy, Upload
from feddbp_server.strategies.feature_generator import FeatureGenerator, Labels, diversity_loss
from feddbp_server.strategies.numerics import initial_head
from feddbp_server.strategies.robust import tensor_average
from feddbp_server.strategies.teachers import Teachers

log = logging.getLogger("feddbp.server")

_LARGEST_COUNT: Final = 2**31 - 1


class FedGenStrategy(Strategy[FedGenSettings]):
    """Heads are averaged by training samples; the generator is trained further in every round."""

    def initial(self) -> Payload:
        # no generator yet: clients train without one in the first round
        return Payload(tensors=initial_head(self.facts))

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        mean = tensor_average(self.facts)
        heads, label_counts = list[Mapping[str, AnyArray]](), []
        for upload in uploads:
            mean.add(upload.payload.tensors, weight=upload.samples)
            label_counts.append(upload.label_counts)
            if self.settings.full:
                heads.append(upload.payload.tensors)
        if not label_counts:
            return state
        head, pooled = mean.result(), np.array(label_counts, dtype=np.int64).sum(axis=0)
        teachers = Teachers.many(heads, label_counts) if self.settings.full else Teachers.one(head)
        generator = self._train(state.tensors, teachers, pooled, round_number)
        counts = np.minimum(pooled, _LARGEST_COUNT).astype(np.int32)
        return Payload(tensors={**head, **generator, LABEL_COUNTS: counts})

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        shown = {name: tensor for name, tensor in state.tensors.items() if not name.startswith(ADAM)}
        return Payload(tensors=shown)

    def _train(
        self, state: Mapping[str, AnyArray], teachers: Teachers, label_counts: Labels, round_number: int
    ) -> dict[str, AnyArray]:
        """The generator after the round's steps, with the state of its optimiser."""
        settings = self.settings
        random = np.random.default_rng(derive_seed(self.facts.seed, "generator", round_number))
        generator = self._generator(state)
        adam = Adam.from_tensors(state if settings.keep_adam else {}, settings.server_learning_rate)
        shares = label_counts / label_counts.sum()
        losses = []
        for _ in range(settings.server_steps):
            labels = random.choice(len(shares), size=settings.server_batch_size, p=shares)
            noise = random.random((settings.server_batch_size, settings.noise_dim))
            made = generator.make(noise, labels)
            loss, slope = teachers.loss_and_gradient(made.features, labels)
            losses.append(loss)
            if settings.full:
                slope = slope + diversity_loss(noise, made.features)[1]
            adam.step(generator.parts, generator.gradients(made, slope))
        log.info("round %d: generator trained from a loss of %.4g to %.4g", round_number + 1, losses[0], losses[-1])
        self.check_sendable(
            Payload(tensors=generator.tensors()),
            FEDGEN.download_rules(settings, self.facts.shape),
            otherwise="the generator diverged, try a smaller server_learning_rate",
            instead=Payload(tensors=state),
        )
        return {**generator.tensors(), **(adam.tensors() if settings.keep_adam else {})}

    def _generator(self, state: Mapping[str, AnyArray]) -> FeatureGenerator:
        if HIDDEN_WEIGHT in state:
            return FeatureGenerator(state)
        return FeatureGenerator.fresh(
            noise_dim=self.settings.noise_dim,
            classes=self.facts.shape.classes,
            hidden=self.settings.hidden_dim,
            width=self.facts.shape.feature_dim,
            seed=derive_seed(self.facts.seed, "generator"),
        )
