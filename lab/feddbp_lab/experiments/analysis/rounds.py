"""A cell's results by round: what each client classified correctly, and in which round the result is taken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from feddbp_common.evaluation import best_round, complete_rounds, counted_by_round
from feddbp_lab.experiments.analysis.intervals import FloatArray
from feddbp_lab.results.protocol import Basis
from feddbp_lab.results.run_results import EvaluationLine

Curve = dict[int, float]
"""Accuracy in per cent over all clients' test samples, by completed rounds."""
Line = Mapping[str, Any]
"""A line of `metrics.jsonl`: a client in a round."""


class Moment(StrEnum):
    """After which round of a run a result is taken."""

    REPORTED = "reported"
    """The round of the result, by the protocol."""
    EXCHANGED = "before fine-tuning"
    """The last round with exchange: the next one begins with what the federation gave."""
    LAST = "last"


@dataclass(frozen=True, kw_only=True)
class ClientCounts:
    """By client, samples and how many of them were classified correctly."""

    samples: Mapping[int, int]
    correct: Mapping[int, float]

    @classmethod
    def of(cls, lines: Iterable[Line], samples_key: str, accuracy: Callable[[Line], float]) -> ClientCounts:
        listed = list(lines)
        return cls(
            samples={line["client"]: line[samples_key] for line in listed},
            # an integer, but for the rounding of the accuracy in the file
            correct={line["client"]: round(accuracy(line) * line[samples_key], 6) for line in listed},
        )

    @classmethod
    def none(cls) -> ClientCounts:
        return cls(samples={}, correct={})

    @classmethod
    def rare_in(cls, lines: Iterable[Line]) -> ClientCounts:
        with_rare = (line for line in lines if line.get("rare_test_samples"))
        return cls.of(with_rare, "rare_test_samples", lambda line: line["rare_accuracy"])

    def accuracy_of(self, client: int) -> float | None:
        """In per cent; None without samples."""
        return 100 * self.correct[client] / self.samples[client] if self.samples.get(client) else None

    @property
    def accuracy(self) -> float | None:
        """In per cent, over the samples of all clients; None without samples."""
        samples = sum(self.samples.values())
        return 100 * sum(self.correct.values()) / samples if samples else None


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """All clients after a number of completed rounds."""

    round: int
    test: ClientCounts
    validation: ClientCounts

    @classmethod
    def of(cls, number: int, rule: str, lines: list[Line]) -> RoundResult:
        held_out = [line for line in lines if line.get("validation_samples")]
        return cls(
            round=number,
            test=ClientCounts.of(lines, "test_samples", lambda line: line["accuracies"][rule]),
            validation=ClientCounts.of(
                held_out, "validation_samples", lambda line: line["validation_accuracies"][rule]
            ),
        )

    @property
    def clients(self) -> int:
        return len(self.test.samples)

    def counts_for_choice(self, basis: Basis) -> ClientCounts:
        """On the samples by which the round of the result is chosen."""
        return self.validation if basis is Basis.VALIDATION else self.test


@dataclass(frozen=True, eq=False, kw_only=True)
class Candidates:
    """The rounds one of which is that of the result, in arrays of [clients, rounds].

    As the statistic of a bootstrap they choose the round again for every draw of clients, on what these have: that the
    choice depends on chance is a part of the chance of the result.
    """

    clients: tuple[int, ...]
    correct: FloatArray
    samples: FloatArray
    choosing_correct: FloatArray
    """On the samples by which the round is chosen."""
    choosing_samples: FloatArray

    @classmethod
    def of(cls, rounds: Sequence[RoundResult], basis: Basis) -> Candidates:
        clients = tuple(sorted(rounds[0].test.samples))

        def by_client(counts: Sequence[Mapping[int, float]]) -> FloatArray:
            return np.array([[of_round.get(client, 0.0) for of_round in counts] for client in clients], np.float64)

        choosing = [found.counts_for_choice(basis) for found in rounds]
        return cls(
            clients=clients,
            correct=by_client([found.test.correct for found in rounds]),
            samples=by_client([found.test.samples for found in rounds]),
            choosing_correct=by_client([counts.correct for counts in choosing]),
            choosing_samples=by_client([counts.samples for counts in choosing]),
        )

    def among(self, clients: Collection[int]) -> Candidates:
        rows = [row for row, client in enumerate(self.clients) if client in clients]
        return replace(
            self,
            clients=tuple(self.clients[row] for row in rows),
            correct=self.correct[rows],
            samples=self.samples[rows],
            choosing_correct=self.choosing_correct[rows],
            choosing_samples=self.choosing_samples[rows],
        )

    @property
    def client_count(self) -> int:
        return len(self.clients)

    def rounds(self, draws: FloatArray) -> npt.NDArray[np.intp]:
        """The place of the chosen round, by draw."""
        if len(self.correct[0]) == 1:
            return np.zeros(len(draws), dtype=np.intp)
        accuracies = _ratio(draws @ self.choosing_correct, draws @ self.choosing_samples)
        return np.asarray(accuracies.argmax(axis=1))

    def values(self, draws: FloatArray) -> FloatArray:
        """The accuracy in per cent, by draw."""
        chosen = self.rounds(draws)
        correct, samples = ((draws * counts.T[chosen]).sum(axis=1) for counts in (self.correct, self.samples))
        return _ratio(100 * correct, samples)


def _ratio(parts: FloatArray, wholes: FloatArray) -> FloatArray:
    """0 of nothing."""
    return np.divide(parts, wholes, out=np.zeros_like(parts), where=wholes > 0)


def counted_lines(lines: Iterable[Line], rule: str) -> Iterator[tuple[int, list[Line]]]:
    """By completed rounds, the line of every client that counts after them under an inference rule."""
    with_rule = (EvaluationLine(line) for line in lines if rule in line["accuracies"])
    ordered = sorted(with_rule, key=lambda evaluation: evaluation.round)
    for number, counted in counted_by_round(ordered):
        yield number, [evaluation.line for evaluation in counted.values()]


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """The results of a cell under one inference rule."""

    curve: Curve
    reported: RoundResult
    """The round of the result."""
    exchanged: RoundResult | None
    """The last round with exchange; None without fine-tuning."""
    last: RoundResult
    basis: Basis
    candidates: Candidates
    """For the round of the result."""

    @classmethod
    def of(cls, rule: str, lines: Iterable[Line], basis: Basis, exchanged_round: int | None) -> RuleResult:
        rounds = [RoundResult.of(number, rule, counted) for number, counted in counted_lines(lines, rule)]
        eligible = rounds[-1:] if basis is Basis.LAST else complete_rounds(rounds)
        reported = best_round(eligible, lambda found: found.counts_for_choice(basis).accuracy or 0.0)
        assert reported is not None  # the rule is in a line
        return cls(
            curve={found.round: found.test.accuracy for found in rounds if found.test.accuracy is not None},
            reported=reported,
            exchanged=next((found for found in rounds if found.round == exchanged_round), None),
            last=rounds[-1],
            basis=basis,
            candidates=Candidates.of(eligible, basis),
        )

    def at(self, moment: Moment) -> RoundResult | None:
        return {Moment.REPORTED: self.reported, Moment.EXCHANGED: self.exchanged, Moment.LAST: self.last}[moment]

    def counts(self, moment: Moment) -> ClientCounts:
        """On test samples."""
        found = self.at(moment)
        return found.test if found else ClientCounts.none()

    def candidates_at(self, moment: Moment) -> Candidates:
        """A single round, but for the round of the result; of a moment that the run has."""
        found = self.at(moment)
        assert found is not None
        return self.candidates if moment is Moment.REPORTED else Candidates.of([found], self.basis)
