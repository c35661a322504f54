"""What an accuracy of a run is: which evaluations count, over how many clients, and in which round.

This is the one definition, used by the server's log, status, metrics and summary, and by reports and experiments:

- A client evaluates at the beginning of a round, before it trains, and once more after the last round. What it
  measures before its first own training does not count.
- The accuracy of a run after some rounds is over the newest evaluation that counts of every client: all correct over
  all test samples. A client that left, or missed a round, counts with its newest evaluation; one without test samples
  does not count.
- The best round is chosen among those over most clients, so that it is never worse than the last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, pstdev
from typing import Any, Final, Generic, Protocol, TypeVar

from feddbp_common.humanize import percent, quantity

RARE_CLASS_SAMPLES: Final = 10
"""A class of which a client has fewer training samples is rare on that client."""


class Evaluation(Protocol):
    """What a client reported on a round."""

    @property
    def client_id(self) -> int: ...

    @property
    def round(self) -> int:
        """Completed rounds, counted from 0."""

    @property
    def test_samples(self) -> int: ...

    @property
    def has_trained(self) -> bool:
        """Whether the client trained in this round, after the evaluation."""


EvaluationT = TypeVar("EvaluationT", bound=Evaluation)


class CountedEvaluations(Generic[EvaluationT]):
    """By client, the newest evaluation that counts. They are added in the order of rounds."""

    def __init__(self) -> None:
        self.by_client: dict[int, EvaluationT] = {}
        self._first_trained: dict[int, int] = {}

    def add(self, evaluation: EvaluationT) -> None:
        client, known = evaluation.client_id, self.by_client.get(evaluation.client_id)
        if self._counts(evaluation) and (known is None or known.round <= evaluation.round):
            self.by_client[client] = evaluation
        if evaluation.has_trained:
            first = self._first_trained.get(client, evaluation.round)
            self._first_trained[client] = min(first, evaluation.round)

    def first_round(self, client_id: int) -> int | None:
        """The round in which a client first trained."""
        return self._first_trained.get(client_id)

    def _counts(self, evaluation: EvaluationT) -> bool:
        first = self._first_trained.get(evaluation.client_id, evaluation.round)
        return evaluation.round > first and evaluation.test_samples > 0


def counted_by_round(evaluations: Iterable[EvaluationT]) -> Iterator[tuple[int, Mapping[int, EvaluationT]]]:
    """For every round with evaluations, in order: by client, the one that counts after that many completed rounds.

    `evaluations` are in the order of rounds. As long as none counts, those of the round itself are returned: before
    the first round nobody has trained. The mapping is valid until the next round is asked for.
    """
    counted = CountedEvaluations[EvaluationT]()
    for number, of_round in groupby(evaluations, key=lambda evaluation: evaluation.round):
        untrained: dict[int, EvaluationT] = {}
        for evaluation in of_round:
            counted.add(evaluation)
            if not counted.by_client and evaluation.test_samples:
                untrained[evaluation.client_id] = evaluation
        yield number, counted.by_client or untrained


class RoundPoint(Protocol):
    """The results of a round."""

    @property
    def round(self) -> int: ...

    @property
    def clients(self) -> int:
        """Over how many clients they are."""


PointT = TypeVar("PointT", bound=RoundPoint)


def complete_rounds(points: Collection[PointT]) -> list[PointT]:
    """The rounds that may be the best: after training, and over most clients.

    The number of clients never falls from one round to the next: the last round is always among them.
    """
    trained = [point for point in points if point.round > 0] or points
    most = max((point.clients for point in trained), default=0)
    return [point for point in trained if point.clients == most]


def best_round(points: Collection[PointT], accuracy: Callable[[PointT], float]) -> PointT | None:
    """The complete round of highest accuracy, the first of several."""
    return max(complete_rounds(points), key=accuracy, default=None)


@dataclass(frozen=True, kw_only=True)
class RoundAccuracy:
    """Accuracy over clients after a number of completed rounds."""

    round: int
    weighted: float
    """All correct over all test samples."""
    unweighted: float
    """Mean of the clients' own accuracies."""
    deviation: float
    """Standard deviation of the clients' own accuracies."""
    clients: int
    """Over how many clients it is."""
    evaluated: int
    """How many of them evaluated after exactly this number of rounds; the others did in earlier ones."""
    validation: float | None = None
    """All correct over all validation samples; None in a run that holds out none."""

    @classmethod
    def over(cls, number: int, counts: Collection[SampleCounts], *, evaluated: int) -> RoundAccuracy:
        samples, held_out = sum(of.samples for of in counts), sum(of.validation_samples for of in counts)
        accuracies = [of.correct / of.samples for of in counts]
        return cls(
            round=number,
            weighted=sum(of.correct for of in counts) / samples if samples else 0.0,
            unweighted=fmean(accuracies) if accuracies else 0.0,
            deviation=pstdev(accuracies) if accuracies else 0.0,
            clients=len(counts),
            evaluated=evaluated,
            validation=sum(of.validation_correct for of in counts) / held_out if held_out else None,
        )

    @classmethod
    def from_dict(cls, point: Mapping[str, Any]) -> RoundAccuracy:
        """A point of a summary; before 0.2.0 it was over those who evaluated in the round."""
        clients = point.get("clients", 0)
        return cls(
            round=point["round"],
            weighted=point["weighted"],
            unweighted=point["unweighted"],
            deviation=point["std_over_clients"],
            clients=clients,
            evaluated=point.get("evaluated", clients),
            validation=point.get("validation"),
        )

    def as_dict(self) -> dict[str, Any]:
        held_out = {} if self.validation is None else {"validation": self.validation}
        return {
            "round": self.round,
            "weighted": self.weighted,
            "unweighted": self.unweighted,
            "std_over_clients": self.deviation,
            "clients": self.clients,
            "evaluated": self.evaluated,
            **held_out,
        }


@dataclass(frozen=True, kw_only=True)
class SampleCounts:
    """A client's samples, and those of them that it predicts correctly."""

    correct: int
    samples: int
    validation_correct: int = 0
    validation_samples: int = 0


@dataclass(frozen=True, kw_only=True)
class CurrentAccuracy:
    """The accuracy of a run that goes on."""

    accuracy: float
    clients: int
    """Over how many clients it is."""
    evaluated: int
    """How many of them evaluated after the newest round, or the one that was asked for."""


def share_of_clients(count: int, clients: int) -> str:
    return f"{count} of {quantity(clients, 'client')}"


def accuracy_over_clients(accuracy: float | None, count: int, clients: int, *, evaluated: int | None = None) -> str:
    """An accuracy as people read it: `97.1 % over 8 of 8 clients`; without one, a dash.

    `evaluated` of the `count` clients did so after the last round, by default all of them.
    """
    if accuracy is None:
        return percent(None)
    earlier = 0 if evaluated is None else count - evaluated
    note = f", {earlier} of them in earlier rounds" if earlier else ""
    return f"{percent(accuracy)} over {share_of_clients(count, clients)}{note}"
