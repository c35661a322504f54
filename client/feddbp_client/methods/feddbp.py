"""FedDBP on the client: a shared branch whose features make prototypes, a decision branch compared with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feddbp_client.losses import contrastive, prototype_alignment
from feddbp_client.methods.base import LocalMethod, Objective, Task
from feddbp_client.methods.received import ClassTable
from feddbp_client.methods.scores import ScoreKind, Scores
from feddbp_client.models.parallel_linear import parallel_linear, place_side_by_side
from feddbp_client.training.class_statistics import Images, evaluation, prototypes_and_fisher
from feddbp_common.methods.feddbp import FedDBPSettings
from feddbp_common.methods.fusion import Marks, fuse, mark_top_channels
from feddbp_common.wire import FisherScores, Payload, PrototypeSet, TopChannels
from feddbp_common.wire.payload import ChannelArray, FloatArray
from feddbp_common.wire.rounding import round_apart


@dataclass(frozen=True, kw_only=True)
class ForwardPass:
    """What the own network makes of a batch."""

    hidden: Tensor
    """The backbone's feature, [B, width]."""
    z: Tensor
    """The features of all branches, [B, branches, width]."""
    logits: Tensor
    """[B, branches, classes]."""


class FedDBP(LocalMethod[FedDBPSettings]):
    """Two parallel branches after the backbone, with one head for both or one each."""

    inference_rules: ClassVar[tuple[str, ...]] = ("prototype_normalized", "prototype", "head")

    def __init__(
        self, *, backbone: nn.Module, make_head: Callable[[], nn.Module], settings: FedDBPSettings, task: Task
    ) -> None:
        super().__init__(backbone=backbone, make_head=make_head, settings=settings, task=task)
        ablated = {"shared": settings.without_share, "decision": settings.without_decision}
        names = [name for name, removed in ablated.items() if not removed]
        # The first entry of each dict serves the shared feature and the last the decision feature; where both are the
        # same module, it is stored once, since a checkpoint holds no tensor twice.
        self.branches = nn.ModuleDict({name: _branch(settings.branch, task.feature_dim) for name in names})
        self.heads = nn.ModuleDict(
            {name: make_head() for name in (names if settings.heads == "separate" else names[:1])}
        )
        self._first_layers = [cast(nn.Linear, next(branch.children())) for branch in self.branches.values()]
        place_side_by_side(self._first_layers)
        self._weights = self._weights_after(0)
        self._prototypes: ClassTable | None = None
        self.own = OwnPrototypes(task.classes, task.feature_dim) if _fuses(settings, task) else None

    @property
    def inference(self) -> str:
        return self.settings.inference

    def receive(self, payload: Payload, *, completed_rounds: int) -> None:
        self._weights = self._weights_after(completed_rounds)
        received = payload.prototypes
        if self.own is not None and received is not None:
            received = self.own.fused_with(received, eta=self.settings.eta)
            if self.task.has_unshared_classes:
                received = self.own.completing(received)
        self._prototypes = ClassTable.from_prototypes(received, classes=self.task.classes, device=self.device)

    def objective(self, images: Tensor, labels: Tensor) -> Objective:
        return Objective.weighted(self._terms(self._pass(images), labels), self._weights)

    def collect(self, images: Images, labels: Tensor, *, batch_size: int) -> Payload:
        with evaluation(self):
            found = prototypes_and_fisher(
                self.uploaded_features,
                self._shared_head,
                images,
                labels,
                width=self.task.feature_dim,
                batch_size=batch_size,
                device=self.device,
            )
        prototypes = PrototypeSet(class_ids=found.class_ids, counts=found.counts, vectors=found.prototypes)
        if self.task.fusion_at_client:
            if self.own is not None:
                self.own.keep(prototypes, mark_top_channels(found.fisher, self.settings.k_top))
            return Payload(prototypes=prototypes)
        return Payload(prototypes=prototypes, fisher=self._fisher(found.fisher))

    def scores(self, images: Tensor) -> Mapping[str, Scores]:
        z_d = self._decision_branch(self.backbone(images))
        return {
            "prototype_normalized": self._nearness(z_d, ScoreKind.DISTANCE),
            "prototype": self._nearness(z_d, ScoreKind.SQUARED_DISTANCE),
            "head": Scores.of_logits(self._decision_head(z_d)),
        }

    def _fisher(self, scores: FloatArray) -> FisherScores | TopChannels:
        """What is sent of the scores; in the precision of the wire, their top channels stay the same."""
        if self.task.top_channels_only:
            return TopChannels(top_channels(scores, self.settings.k_top))
        is_top = mark_top_channels(scores, self.settings.k_top)
        return FisherScores(round_apart(scores, is_top, self.task.wire_type))

    def _weights_after(self, completed_rounds: int) -> dict[str, float]:
        """The weights of the terms; those of prototypes are lower while the run warms up."""
        settings = self.settings
        share = min(1.0, completed_rounds / settings.warmup_rounds) if settings.warmup_rounds else 1.0
        return {
            "ce_shared": 1.0,
            "ce_decision": settings.lambda_1,
            "l_s": share * settings.lambda_2,
            "l_d": share * settings.lambda_3,
        }

    def _pass(self, images: Tensor) -> ForwardPass:
        hidden = self.backbone(images)
        z = self._features(hidden)
        return ForwardPass(hidden=hidden, z=z, logits=self._logits(z))

    def _terms(self, passed: ForwardPass, labels: Tensor) -> dict[str, Tensor]:
        """The loss terms that apply: none of an ablated branch, none of prototypes before some are received."""
        ce_shared, ce_decision = _first_and_last(self._cross_entropies(passed.logits, labels))
        terms = {"ce_shared": ce_shared}
        if not self.settings.without_decision:
            terms["ce_decision"] = ce_decision
        if self._prototypes is not None:
            detached = self.settings.prototype_gradient == "branches"
            z = self._features(passed.hidden.detach()) if detached else passed.z
            terms |= self._prototype_terms(z, labels, self._prototypes)
        return terms

    def _prototype_terms(self, z: Tensor, labels: Tensor, prototypes: ClassTable) -> dict[str, Tensor]:
        z_s, z_d = _first_and_last(z.unbind(1))
        terms = {}
        if not self.settings.without_share:
            terms["l_s"] = self._l_s(z_s, labels, prototypes)
        if not self.settings.without_decision:
            terms["l_d"] = self._l_d(z_d, labels, prototypes)
        return terms

    def _features(self, hidden: Tensor) -> Tensor:
        """The features of all branches, [B, branches, width]."""
        z = parallel_linear(hidden, self._first_layers)
        if self.settings.branch != "linear":
            z = F.relu(z)
        if self.settings.branch == "mlp":
            last_layers = [list(branch.children())[-1] for branch in self.branches.values()]
            z = torch.stack([layer(rows) for layer, rows in zip(last_layers, z.unbind(1), strict=True)], dim=1)
        return z

    def _cross_entropies(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """The cross-entropy of each branch, of logits of [B, branches, classes]."""
        rows = labels.repeat_interleave(logits.shape[1])
        losses = self.cross_entropy(logits.flatten(0, 1), rows, reduction="none")
        return tuple(losses.view(logits.shape[:2]).mean(dim=0))

    def _logits(self, z: Tensor) -> Tensor:
        """[B, branches, classes]; a head that branches share gets the features of all at once."""
        if len(self.heads) > 1:
            return torch.stack([head(rows) for head, rows in zip(self.heads.values(), z.unbind(1), strict=True)], dim=1)
        head, rows = self._shared_head, z.flatten(0, 1)
        # the exact type: a subclass may compute something different
        logits: Tensor = parallel_linear(rows, [head]) if type(head) is nn.Linear else head(rows)
        return logits.view(*z.shape[:2], -1)

    def _nearness(self, z_d: Tensor, kind: ScoreKind) -> Scores:
        return Scores.of_nearness(z_d, self._prototypes, classes=self.task.classes, kind=kind)

    def uploaded_features(self, images: Tensor) -> Tensor:
        feature: Tensor = self._shared_branch(self.backbone(images))
        return feature

    @property
    def _shared_branch(self) -> nn.Module:
        return next(iter(self.branches.values()))

    @property
    def _decision_branch(self) -> nn.Module:
        return list(self.branches.values())[-1]

    @property
    def _shared_head(self) -> nn.Module:
        return next(iter(self.heads.values()))

    @property
    def _decision_head(self) -> nn.Module:
        return list(self.heads.values())[-1]

    def _l_s(self, z_s: Tensor, labels: Tensor, prototypes: ClassTable) -> Tensor:
        return prototype_alignment(z_s, prototypes.vectors, labels, prototypes.known, self.settings.l_s_reduction)

    def _l_d(self, z_d: Tensor, labels: Tensor, prototypes: ClassTable) -> Tensor:
        return contrastive(
            z_d,
            prototypes.training_directions,
            labels,
            prototypes.known,
            tau=self.settings.tau,
            form=self.settings.l_d_form,
            hard_negatives=self.settings.hard_negatives,
        )


class OwnPrototypes(nn.Module):
    """A client's prototypes of its last round and the channels it keeps; as buffers, so that checkpoints have them."""

    vectors: Tensor
    kept: Tensor
    known: Tensor

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.zeros(classes, width))
        self.register_buffer("kept", torch.zeros(classes, width, dtype=torch.bool))
        self.register_buffer("known", torch.zeros(classes, dtype=torch.bool))

    def keep(self, prototypes: PrototypeSet, marks: Marks) -> None:
        """Replaces what is kept."""
        class_ids = torch.from_numpy(prototypes.class_ids).long().to(self.known.device)
        for buffer in self.buffers():
            buffer.zero_()
        self.vectors[class_ids] = torch.tensor(prototypes.vectors, device=self.vectors.device)
        self.kept[class_ids] = torch.tensor(marks, device=self.kept.device)
        self.known[class_ids] = True

    def fused_with(self, shared: PrototypeSet, *, eta: float) -> PrototypeSet:
        """The global prototypes as the server would send them to this client; unchanged before its first round."""
        class_ids = self.known.cpu().numpy().nonzero()[0].astype(np.int32)
        own = PrototypeSet(class_ids=class_ids, vectors=self.vectors.cpu().numpy()[class_ids])
        return fuse(shared, own, self.kept.cpu().numpy()[class_ids], eta=eta)

    def completing(self, shared: PrototypeSet) -> PrototypeSet:
        """With this client's own prototypes of classes that the others do not share."""
        own = set(self.known.cpu().numpy().nonzero()[0].tolist()) - set(shared.class_ids.tolist())
        class_ids = np.array(sorted({*own, *shared.class_ids.tolist()}), dtype=np.int32)
        vectors = self.vectors.cpu().numpy()[class_ids]
        vectors[np.searchsorted(class_ids, shared.class_ids)] = shared.vectors
        return PrototypeSet(class_ids=class_ids, vectors=vectors)


def _fuses(settings: FedDBPSettings, task: Task) -> bool:
    return task.fusion_at_client and settings.anchors == "global" and not settings.without_personalisation


def top_channels(scores: FloatArray, k_top: int) -> ChannelArray:
    """The k_top channels with the largest scores of each row, largest first; the lower index of equal scores first."""
    # a stable sort keeps equal scores in the order of their index
    return np.argsort(-scores, axis=1, kind="stable")[:, :k_top].astype(np.uint16)


def _first_and_last(parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The shared branch's part and the decision branch's, which are the same if there is one branch."""
    return parts[0], parts[-1]


def _branch(shape: str, width: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(width, width)]
    if shape != "linear":
        layers.append(nn.ReLU())
    if shape == "mlp":
        layers.append(nn.Linear(width, width))
    return nn.Sequential(*layers)
