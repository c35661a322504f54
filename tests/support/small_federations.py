"""Methods without sockets: trainers and strategies with tiny networks, and a whole federation in one process.

What they exchange passes through the wire codec and the method's rules, as over a socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feddbp.v1 import federation_pb2 as pb
from feddbp_client.methods.base import Task
from feddbp_client.training.client_directory import ClientDirectory
from feddbp_client.training.setup import LocalClient, LocalOptions, build_client, restore_checkpoint
from feddbp_common.config.data import DataConfig
from feddbp_common.config.exchange import PrivacyConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.methods import ExchangeShape, method_named
from feddbp_common.wire import (
    Payload,
    PayloadRules,
    PrototypeSet,
    WireType,
    check_manifest,
    check_values,
    decode,
    encode,
)
from feddbp_server.strategies import RunFacts, Upload

CLASSES, WIDTH, SAMPLES = 5, 8, 24


def small_backbone() -> nn.Module:
    """Has batch normalisation and dropout, so that a missing eval mode changes results."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH)
    )


def small_trainer(name: str, *, rounds: int = 10, seed: int = 0, **settings: Any) -> Any:
    """The trainer of a method around a tiny network."""
    method = method_named(name)
    torch.manual_seed(seed)
    return method.load_trainer()(
        backbone=small_backbone(),
        make_head=lambda: nn.Linear(WIDTH, CLASSES),
        settings=method.settings(**settings),
        task=Task(classes=CLASSES, feature_dim=WIDTH, rounds=rounds),
    )


def trainer_after(download: Payload, name: str, *, completed_rounds: int = 1, **options: Any) -> Any:
    """The trainer of a method in eval mode, after it has received a download."""
    trainer = small_trainer(name, **options).eval()
    trainer.receive(download, completed_rounds=completed_rounds)
    return trainer


def trainer_with_prototypes(name: str, **options: Any) -> tuple[Any, PrototypeSet]:
    """A trainer in eval mode, and the prototypes of classes 0, 1 and 3 that it has received."""
    sent = prototype_set([0, 1, 3])
    return trainer_after(Payload(prototypes=sent), name, **options), sent


def small_strategy(
    name: str,
    *,
    classes: int = CLASSES,
    width: int = WIDTH,
    clients: int = 3,
    seed: int = 0,
    wire_type: WireType = WireType.FLOAT32,
    fusion_at_client: bool = False,
    **settings: Any,
) -> Any:
    """The strategy of a method."""
    method = method_named(name)
    shape = ExchangeShape(classes=classes, feature_dim=width, clients=clients, fusion_at_client=fusion_at_client)
    facts = RunFacts(shape=shape, seed=seed, rounds=10, wire_type=wire_type)
    return method.load_strategy()(method.settings(**settings), facts)


def small_batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    """A batch with every class but the last."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SAMPLES, 3, 2, 2, generator=generator), torch.arange(SAMPLES) % (CLASSES - 1)


def prototype_set(
    class_ids: Sequence[int], vectors: Any = None, *, counts: Sequence[int] | None = None, seed: int = 0
) -> PrototypeSet:
    if vectors is None:
        vectors = np.random.default_rng(seed).standard_normal((len(class_ids), WIDTH))
    return PrototypeSet(
        class_ids=np.array(class_ids, dtype=np.int32),
        vectors=np.array(vectors, dtype=np.float32),
        counts=None if counts is None else np.array(counts, dtype=np.int32),
    )


def upload_of(client_id: int, payload: Payload | PrototypeSet, label_counts: Sequence[int] = ()) -> Upload:
    if isinstance(payload, PrototypeSet):
        payload = Payload(prototypes=payload)
    return Upload(client_id=client_id, payload=payload, label_counts=label_counts)


def over_the_wire(payload: Payload, rules: PayloadRules, *, label_counts: Sequence[int] | None = None) -> Payload:
    """The payload as the other side decodes it, after all its checks."""
    encoded = encode(payload)
    check_manifest(encoded.manifest, rules, max_bytes=64 << 20, label_counts=label_counts)
    arrived = decode(encoded.manifest, encoded.body())
    check_values(arrived, rules)
    return arrived


def upload_rules(name: str, *, clients: int = 3, classes: int = CLASSES, width: int = WIDTH, **settings: Any) -> Any:
    method = method_named(name)
    shape = ExchangeShape(classes=classes, feature_dim=width, clients=clients)
    return method.upload_rules(method.settings(**settings), shape)


def download_rules(name: str, *, clients: int = 3, classes: int = CLASSES, width: int = WIDTH, **settings: Any) -> Any:
    method = method_named(name)
    shape = ExchangeShape(classes=classes, feature_dim=width, clients=clients)
    return method.download_rules(method.settings(**settings), shape)


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """Results of a run in one process."""

    accuracies: list[dict[str, float]]
    """By evaluation, the accuracy of each rule over all clients' test samples; the first before any training."""
    digests: list[str]
    """Digests of the server's state after every round."""

    def of(self, rule: str) -> list[float]:
        return [evaluation[rule] for evaluation in self.accuracies]


def run_in_process(
    method: str,
    *,
    settings: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
    seed: int = 1,
    rounds: int = 3,
    restart_in: Path | None = None,
) -> RunOutcome:
    """Three unlike clients on handwritten digits, through the same trainers and strategies as over the network.

    With a directory, every client is built anew from its checkpoint before every round.
    """
    config = RunConfig(
        method=method,
        method_settings=dict(settings or {}),
        clients=3,
        rounds=rounds,
        seed=seed,
        data=DataConfig(dataset="digits", alpha=0.5),
        training=TrainingConfig.model_validate(
            {"local_epochs": 1, "batch_size": 32, "learning_rate": 0.05, "feature_dim": 32, **(training or {})}
        ),
        privacy=PrivacyConfig.model_validate(privacy or {}),
    )
    options = LocalOptions(data=None, data_dir=Path(), model=None)
    clients = [build_client(config, "test", client_id, options) for client_id in range(config.clients)]
    spec, shape = config.method_spec, config.exchange_shape
    rules_up, rules_down = (rules(config.settings, shape) for rules in (spec.upload_rules, spec.download_rules))
    strategy = spec.load_strategy()(config.settings, RunFacts.of(config))
    known = strategy.initial()
    own_uploads: dict[int, Payload] = {}
    accuracies, digests = [], []
    for number in range(rounds + 1):
        results, uploads = [], []
        if restart_in is not None and number:
            clients = [restarted(client, restart_in, number, options) for client in clients]
        for client in clients:
            reply = over_the_wire(strategy.reply(known, own_uploads.get(client.client_id)), rules_down)
            if number == rounds:
                results.append(client.trainer.evaluate(reply, number).metrics)
                continue
            result = client.trainer.train(reply, number, lambda *_: None)
            results.append(result.metrics)
            assert result.upload is not None
            label_counts = list(client.data_summary().label_counts)
            sent = over_the_wire(result.upload, rules_up, label_counts=label_counts)
            own_uploads[client.client_id] = sent
            uploads.append(upload_of(client.client_id, sent, label_counts))
        accuracies.append(_pooled(results))
        if uploads:
            encoded = encode(strategy.aggregate(known, iter(uploads), round_number=number))
            known = decode(encoded.manifest, encoded.body())  # as after a restart
            digests.append(encoded.manifest.sha256.hex())
    return RunOutcome(accuracies=accuracies, digests=digests)


def restarted(client: LocalClient, directory: Path, number: int, options: LocalOptions) -> LocalClient:
    """The client as a new process has it, from the checkpoint that it wrote after its last round."""
    opened = ClientDirectory(directory, client.run_id, client.client_id)
    try:
        client.checkpoint(number - 1, pb.RoundMetrics()).save(opened.checkpoint)
        again = build_client(client.config, client.run_id, client.client_id, options)
        restore_checkpoint(again, opened)
    finally:
        opened.close()
    return again


def _pooled(results: Sequence[Any]) -> dict[str, float]:
    samples = sum(metrics.test_samples for metrics in results)
    rules = [accuracy.rule for accuracy in results[0].accuracies]
    right = dict.fromkeys(rules, 0)
    for metrics in results:
        for accuracy in metrics.accuracies:
            right[accuracy.rule] += accuracy.correct
    return {rule: correct / samples for rule, correct in right.items()}
