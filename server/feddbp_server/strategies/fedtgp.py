"""FedTGP on the server: prototypes come from a network that is trained on all uploads in every round."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from feddbp_common.methods.fedtgp import FEDTGP, FedTGPSettings
from feddbp_common.seeding import derive_seed
from feddbp_common.wire import Payload, PrototypeSet
from feddbp_common.wire.payload import FloatArray
from feddbp_server.strategies.averaging import PrototypeMean, uploaded_prototypes
from feddbp_server.strategies.base import Strategy, Upload
from feddbp_server.strategies.numerics import squared_distances
from feddbp_server.strategies.prototype_network import ClassIds, PrototypeNetwork

log = logging.getLogger("feddbp.server")


class FedTGPStrategy(Strategy[FedTGPSettings]):
    """The state is the network and its prototypes; clients receive the prototypes of all classes."""

    aggregates_prototypes_only = True

    def aggregate(self, state: Payload, uploads: Iterable[Upload], *, round_number: int) -> Payload:
        shape = self.facts.shape
        pool = _Pool.of(uploads, classes=shape.classes, width=shape.feature_dim)
        if pool is None:
            return state
        network = self._network(state)
        margin = margin_between(pool.means, tau=self.settings.tau)
        loss = self._train(network, pool, margin, round_number)
        log.info("round %d: prototypes trained to a loss of %.4g at a margin of %.4g", round_number + 1, loss, margin)
        class_ids = np.arange(shape.classes, dtype=np.int32)
        trained = Payload(
            prototypes=PrototypeSet(class_ids=class_ids, vectors=network.prototypes()), tensors=network.tensors()
        )
        self.check_sendable(
            self.reply(trained, None),
            FEDTGP.download_rules(self.settings, shape),
            otherwise="the training of prototypes diverged, try a smaller server_learning_rate",
            instead=state,
        )
        return trained

    def reply(self, state: Payload, own_upload: Payload | None) -> Payload:
        return Payload(prototypes=state.prototypes)

    def _network(self, state: Payload) -> PrototypeNetwork:
        if state.tensors:
            return PrototypeNetwork.from_tensors(state.tensors)
        shape = self.facts.shape
        seed = derive_seed(self.facts.seed, "tgp", "weights")
        return PrototypeNetwork.fresh(classes=shape.classes, width=shape.feature_dim, seed=seed)

    def _train(self, network: PrototypeNetwork, pool: _Pool, margin: float, round_number: int) -> float:
        """Trains the network; returns the mean loss over the last epoch."""
        settings, of_clients = self.settings, self.facts.training
        batch_size = settings.server_batch_size or of_clients.batch_size
        learning_rate = settings.server_learning_rate or of_clients.learning_rate
        order = np.random.default_rng(derive_seed(self.facts.seed, "tgp", "order", round_number))
        mean_loss = 0.0
        for _ in range(settings.server_epochs):
            shuffled = order.permutation(len(pool.labels))
            mean_loss = 0.0
            for start in range(0, len(shuffled), batch_size):
                batch = shuffled[start : start + batch_size]
                loss = network.step(pool.vectors[batch], pool.labels[batch], margin=margin, learning_rate=learning_rate)
                mean_loss += loss * len(batch) / len(shuffled)
        return mean_loss


def margin_between(means: FloatArray, *, tau: float) -> float:
    """The margin delta: the distance of the most isolated class to its nearest one, at most tau.

    Classes without uploads have no mean and are left out: they would add the smallest such distance.
    """
    if len(means) < 2:
        return tau
    squares = squared_distances(means, means)
    np.fill_diagonal(squares, np.inf)
    return min(float(np.sqrt(squares.min(axis=1).max())), tau)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pool:
    """All clients' prototypes of a round, in the order of client ids, and their means by class."""

    vectors: FloatArray
    labels: ClassIds
    means: FloatArray

    @classmethod
    def of(cls, uploads: Iterable[Upload], *, classes: int, width: int) -> _Pool | None:
        """None if no client uploaded a prototype."""
        sets = [prototypes for prototypes in uploaded_prototypes(uploads) if len(prototypes)]
        if not sets:
            return None
        mean = PrototypeMean(classes, width)
        for prototypes in sets:
            mean.add(prototypes)
        return cls(
            vectors=np.concatenate([prototypes.vectors for prototypes in sets]),
            labels=np.concatenate([prototypes.class_ids for prototypes in sets]).astype(np.intp),
            means=mean.result(None).vectors,
        )
