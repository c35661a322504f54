"""A shared model of which only updates are exchanged, relative to an anchor that survives crashes and missed rounds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from feddbp_client.methods.base import Task
from feddbp_client.methods.small_model import SmallModel
from feddbp_common.errors import FedDBPError
from feddbp_common.methods.fedkd import ROUND, TOTAL
from feddbp_common.wire.payload import AnyArray, FloatArray
from feddbp_common.wire.svd import decompress


class AnchoredModel(SmallModel):
    """Keeps the weights at the start of the last round it trained in, to which the next update is relative.

    This anchor is part of a checkpoint. It moves only when an update is collected, so that receiving the same download
    twice, or only evaluating in a round, changes nothing.
    """

    def __init__(self, task: Task, *, feature_dim: int) -> None:
        super().__init__(task, feature_dim=feature_dim)
        self._first = self.tensors()
        self._began, self._began_after = self._first, 0
        for name, weight in self.weights().items():
            self.register_buffer(_anchor(name), weight.detach().clone())
        self.anchor_round: Tensor
        self.register_buffer("anchor_round", torch.zeros((), dtype=torch.int64))

    def follow(self, received: Mapping[str, AnyArray]) -> None:
        """Sets the weights to the server's current ones; an empty download means the initial weights."""
        if not received:
            self._began, self._began_after = self._first, 0
        else:
            changes = {name: tensor for name, tensor in received.items() if name != ROUND}
            self._began_after = int(received[ROUND][0])
            self._began = self._moved(changes, self._began_after)
        self.load(self._began)

    def drop_anchor(self) -> dict[str, FloatArray]:
        """Moves the anchor to the start of this round and returns the update since then."""
        for name, tensor in self._began.items():
            self.get_buffer(_anchor(name)).copy_(torch.tensor(tensor))
        self.anchor_round.fill_(self._began_after)
        return {name: trained - self._began[name] for name, trained in self.tensors().items()}

    def _moved(self, changes: Mapping[str, AnyArray], number: int) -> dict[str, FloatArray]:
        totals = {name.removeprefix(TOTAL): tensor for name, tensor in changes.items() if name.startswith(TOTAL)}
        if totals:
            return self._plus(self._first, totals)
        anchored = int(self.anchor_round)
        anchor = {name: self.get_buffer(_anchor(name)).cpu().numpy() for name in self._first}
        if anchored == number:  # the update is part of the anchor already
            return anchor
        if anchored == number - 1:
            return self._plus(anchor, decompress(changes))
        raise FedDBPError(
            f"the server sent the update of round {number}, but this client no longer has the weights before it; "
            "start it again once the next round is open"
        )

    def _plus(self, start: Mapping[str, FloatArray], changes: Mapping[str, AnyArray]) -> dict[str, FloatArray]:
        self.check(changes)
        return {name: tensor + changes[name] for name, tensor in start.items()}


def _anchor(name: str) -> str:
    """A buffer's name, which cannot contain a dot."""
    return "anchor_" + name.replace(".", "_")
