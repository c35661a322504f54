"""What poisoned uploads cost the honest clients, under each rule of aggregation.

`python -m benchmarks.poisoning --data-dir DIR` trains ten clients of FedDBP on CIFAR-10 in one process, with the
trainers, strategy and screening of uploads of a federation. One to three clients train as the others do, and change
what they upload. Every cell of the table is appended to `--out` as a line, and a second start goes on from there;
`--table` prints what is there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from feddbp_client.training.setup import LocalClient, LocalOptions, build_client
from feddbp_common.config.data import DataConfig
from feddbp_common.config.exchange import AggregationConfig
from feddbp_common.config.run import RunConfig
from feddbp_common.config.training import TrainingConfig
from feddbp_common.methods.contract import ALL_RULES
from feddbp_common.seeding import derive_seed
from feddbp_common.wire import Payload, PrototypeSet
from feddbp_common.wire.payload import row_norms
from feddbp_server.aggregation.screening import screen
from feddbp_server.strategies import RunFacts, Upload

CLIENTS: Final = 10
POISONED: Final = (1, 2, 3)
NONE: Final = "none"
Rows = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Situation:
    """What an attacker has when it makes its upload."""

    own: PrototypeSet
    honest: Sequence[PrototypeSet]
    random: np.random.Generator


def _random(situation: Situation) -> Rows:
    drawn = situation.random.standard_normal(situation.own.vectors.shape)
    lengths = row_norms(situation.own.vectors) / row_norms(drawn)
    return (drawn * lengths[:, None]).astype(np.float32)


def _collusion(situation: Situation) -> Rows:
    """All attackers send the same: for each class, three times the mean honest prototype of the next class."""
    classes = sorted({int(class_id) for sent in situation.honest for class_id in sent.class_ids})
    means = [np.concatenate([sent.vectors[sent.class_ids == c] for sent in situation.honest]).mean(0) for c in classes]
    rows = situation.own.vectors.copy()
    for index, class_id in enumerate(situation.own.class_ids):
        if class_id in classes:
            rows[index] = 3.0 * means[(classes.index(class_id) + 1) % len(classes)]
    return rows


ATTACKS: Final[Mapping[str, Callable[[Situation], Rows]]] = {
    "huge (x 1000)": lambda situation: 1000.0 * situation.own.vectors,
    "scaled (x 20)": lambda situation: 20.0 * situation.own.vectors,
    "sign-flipped (x -5)": lambda situation: -5.0 * situation.own.vectors,
    "random": _random,
    "label-swapped": lambda situation: np.roll(situation.own.vectors, 1, axis=0),
    "collusion": _collusion,
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run: a rule, and what how many clients do to it."""

    rule: str
    attack: str
    poisoned: int

    @property
    def key(self) -> str:
        return f"{self.rule}|{self.attack}|{self.poisoned}"


def cells() -> Iterator[Cell]:
    for poisoned, attack, rule in product((0, *reversed(POISONED)), (NONE, *ATTACKS), ALL_RULES):
        if attack == NONE or poisoned:  # without an attack, for the same clients that are honest in one
            yield Cell(rule=rule, attack=attack, poisoned=poisoned)


def configuration(rule: str, options: argparse.Namespace) -> RunConfig:
    trim = {"trim": 0.3} if rule == "trimmed_mean" else {}
    return RunConfig(
        method="feddbp",
        clients=CLIENTS,
        rounds=options.rounds,
        seed=options.seed,
        data=DataConfig(dataset="cifar10", alpha=0.5),
        training=TrainingConfig(local_epochs=1, learning_rate=options.learning_rate, feature_dim=128),
        aggregation=AggregationConfig.model_validate({"rule": rule, **trim}),
    )


class Clients:
    """Clients in one process, as they are after the first round, which is the same for all cells."""

    def __init__(self, options: argparse.Namespace) -> None:
        config = configuration("mean", options)
        local = LocalOptions(data=None, data_dir=options.data_dir, model=None)
        self.all = [build_client(config, "poisoning", number, local) for number in range(CLIENTS)]
        self.first_uploads = [upload for client in self.all if (upload := trained(client, Payload(), 0)) is not None]
        self._states = [client.trainer.state().copied() for client in self.all]

    def restore(self) -> None:
        for client, state in zip(self.all, self._states, strict=True):
            client.trainer.load_state(state)


def trained(client: LocalClient, received: Payload, number: int) -> Upload | None:
    """A client's upload after a round; none if it skips the round, because its training diverged."""
    payload = client.trainer.train(received, number, lambda *_: None).upload
    if payload is None:
        return None
    return Upload(client_id=client.client_id, payload=payload, label_counts=client.data.label_counts.tolist())


class Federation:
    """The clients of one cell, the last of which may be attackers."""

    def __init__(self, cell: Cell, clients: Clients, options: argparse.Namespace) -> None:
        clients.restore()
        self._cell = cell
        self._config = configuration(cell.rule, options)
        self._clients, self._first = clients.all, clients.first_uploads
        self._strategy = self._config.method_spec.load_strategy()(self._config.settings, RunFacts.of(self._config))
        self._own: dict[int, Payload] = {}
        self.left_out = 0
        self.skipped = 0

    def accuracy(self) -> float:
        """Of the honest clients after the last round, over all of their test samples."""
        state = self._strategy.initial()
        for number in range(self._config.rounds):
            uploads = self._poisoned(self._uploads(state, number), number)
            if uploads:
                state = self._aggregated(state, uploads, number)
        metrics = [
            client.trainer.evaluate(self._reply(state, client), self._config.rounds).metrics for client in self._honest
        ]
        main = [next(rule.correct for rule in each.accuracies if rule.rule == each.inference) for each in metrics]
        return sum(main) / sum(each.test_samples for each in metrics)

    @property
    def _honest(self) -> list[LocalClient]:
        return self._clients[: CLIENTS - self._cell.poisoned]

    def _reply(self, state: Payload, client: LocalClient) -> Payload:
        reply: Payload = self._strategy.reply(state, self._own.get(client.client_id))
        return reply

    def _uploads(self, state: Payload, number: int) -> list[Upload]:
        if number == 0:
            return self._first
        each = [trained(client, self._reply(state, client), number) for client in self._clients]
        self.skipped += each.count(None)
        return [upload for upload in each if upload is not None]

    def _poisoned(self, uploads: list[Upload], number: int) -> list[Upload]:
        first = CLIENTS - self._cell.poisoned
        honest = [prototypes(upload) for upload in uploads if upload.client_id < first]
        changed = []
        for upload in uploads:
            if upload.client_id >= first and self._cell.attack != NONE:
                random = np.random.default_rng(derive_seed(self._config.seed, "attack", upload.client_id, number))
                rows = ATTACKS[self._cell.attack](Situation(prototypes(upload), honest, random))
                sent = replace(prototypes(upload), vectors=rows.astype(np.float32))
                upload = replace(upload, payload=replace(upload.payload, prototypes=sent))
            changed.append(upload)
        return changed

    def _aggregated(self, state: Payload, uploads: list[Upload], number: int) -> Payload:
        screening = screen(
            {upload.client_id: upload.payload.norms() for upload in uploads},
            {upload.client_id: upload.samples for upload in uploads},
            self._config.aggregation,
        )
        kept = [upload for upload in uploads if upload.client_id not in screening.left_out]
        self.left_out += len(uploads) - len(kept)
        self._own |= {upload.client_id: upload.payload for upload in kept}
        admitted = [screening.admit(upload) for upload in kept]
        averaged: Payload = self._strategy.aggregate(state, admitted, round_number=number)
        return averaged


def prototypes(upload: Upload) -> PrototypeSet:
    assert upload.payload.prototypes is not None
    return upload.payload.prototypes


def run(options: argparse.Namespace) -> None:
    done = results(options.out)
    clients = Clients(options)
    for cell in cells():
        if cell.key in done:
            continue
        federation = Federation(cell, clients, options)
        accuracy = federation.accuracy()
        line = {"left_out": federation.left_out, "skipped": federation.skipped}
        with options.out.open("a") as file:
            file.write(json.dumps({"cell": cell.key, "accuracy": accuracy, **line}) + "\n")
        print(f"{cell.key}: {100 * accuracy:.1f} %", flush=True)


def results(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return {line["cell"]: line for line in lines}


def table(path: Path) -> str:
    """The results as a table in Markdown: accuracy in percent, and in brackets how many uploads were left out."""
    found = results(path)
    lines = [
        f"| attack | poisoned | {' | '.join(f'`{rule}`' for rule in ALL_RULES)} |",
        "|---|---:|" + "---:|" * len(ALL_RULES),
    ]
    for attack, poisoned in [(NONE, 0), *product((NONE, *ATTACKS), POISONED)]:
        keys = [Cell(rule=rule, attack=attack, poisoned=poisoned).key for rule in ALL_RULES]
        shown = " | ".join(_shown(found[key]) if key in found else "" for key in keys)
        lines.append(f"| {attack} | {100 * poisoned // CLIENTS} % | {shown} |")
    return "\n".join(lines)


def _shown(result: Mapping[str, Any]) -> str:
    left_out = f" ({result['left_out']})" if result["left_out"] else ""
    return f"{100 * result['accuracy']:.1f}{left_out}"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.poisoning", description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="where CIFAR-10 is")
    parser.add_argument("--out", type=Path, default=Path("poisoning.jsonl"), help="results, one line a cell")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="print the table of the results so far")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    if not options.table:
        run(options)
    print(table(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
