"""Runs side by side: what differs between them, what cannot be compared, and the differences of their clients."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from feddbp_common.config.nested import dotted
from feddbp_common.evaluation import RoundAccuracy, share_of_clients
from feddbp_common.humanize import quantity
from feddbp_lab.results.run_results import RunResults

_DATA: Final = ("data.dataset", "data.classes", "data.class_names")
"""Settings that decide what is learnt: runs that differ in one have no common accuracy."""
_SPLIT: Final = ("seed", "data.alpha", "data.image_size", "training.validation", "newcomers", "newcomer_samples")
"""Settings that decide which samples a client has."""


_LONG_NAME: Final = 16
"""Characters from which on the name of a run is too long for a column."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run and the name it has among the others."""

    name: str
    results: RunResults

    def check(self) -> None:
        """Reads what is compared, so that an error in a damaged run is met while it is known which run it is."""
        for name in ("outcome", "clients", "rounds", "completed_rounds", "bytes_up", "bytes_down", "seconds"):
            self.summary[name]
        _ = self.options, self.last, self.best, self.curve, self.clients, self.samples

    @property
    def summary(self) -> dict[str, Any]:
        return self.results.summary

    @property
    def options(self) -> dict[str, Any]:
        return dotted(self.summary["config"])

    @property
    def last(self) -> RoundAccuracy | None:
        return self._point("last")

    @property
    def best(self) -> RoundAccuracy | None:
        return self._point("best")

    @property
    def curve(self) -> dict[int, float]:
        """The accuracy of the run by completed rounds, since the first training."""
        return {point["round"]: point["weighted"] for point in self.summary["curve"] if point["round"] > 0}

    @property
    def clients(self) -> dict[int, float]:
        """The newest accuracy of every client that counts in the run's."""
        return {
            client["client"]: client["accuracy"]
            for client in self.summary["per_client"]
            if client["accuracy"] is not None and self.results.accuracies(client["client"])
        }

    @property
    def samples(self) -> dict[int, tuple[int, int]]:
        return {client["client"]: (client["train_samples"], client["test_samples"]) for client in self._clients()}

    def _clients(self) -> list[dict[str, Any]]:
        return list(self.summary["per_client"])

    def _point(self, which: str) -> RoundAccuracy | None:
        point = self.summary["accuracy"][which]
        return RoundAccuracy.from_dict(point) if point and point["round"] else None


@dataclass(frozen=True, kw_only=True)
class ClientDifference:
    """A run against the first one, client by client."""

    better: int
    worse: int
    equal: int
    mean: float
    """Mean over clients of the difference, in points."""


@dataclass(frozen=True)
class Comparison:
    """Two runs or more; the first is what the others are compared with."""

    runs: Sequence[ComparedRun]

    @property
    def labels(self) -> dict[str, str]:
        """By name of a run, what tables call it."""
        names = [run.name for run in self.runs]
        return dict(zip(names, short_names(names), strict=True))

    def differing(self) -> dict[str, list[Any]]:
        """Settings that are not the same in all runs, with their values; None where a run leaves it at its default.

        Settings of methods are compared only if all runs have the same method.
        """
        options = [run.options for run in self.runs]
        names = dict.fromkeys(name for found in options for name in found)
        if len({found.get("method") for found in options}) > 1:
            names = {name: None for name in names if not name.startswith("method_settings.")}
        values = {name: [found.get(name) for found in options] for name in names}
        return {name: found for name, found in values.items() if any(value != found[0] for value in found)}

    def obstacles(self) -> list[str]:
        """Why the runs cannot be compared at all."""
        differing = self.differing()
        found = [f"{name} differs: {_listed(differing[name])}" for name in _DATA if name in differing]
        counts = [run.summary["clients"] for run in self.runs]
        if len(set(counts)) > 1:
            found.append(f"clients differ: {_listed(counts)}")
        return found

    def other_splits(self) -> Iterator[str]:
        """Settings in which the runs differ, and by which their clients have other samples."""
        differing = self.differing()
        for name in _SPLIT:
            if name in differing:
                yield f"{name} differs ({_listed(differing[name])}): clients have other samples"

    def cautions(self) -> Iterator[str]:
        """What has to be known when the accuracies are compared."""
        differing = self.differing()
        yield from self.other_splits()
        explained = any(name in differing for name in (*_SPLIT, *_DATA, "clients"))
        if not explained and not self.has_same_samples:
            yield "the clients have other numbers of samples: other data, although the settings are the same"
        for run in self.runs:
            if run.summary["outcome"] != "finished":
                rounds = f"{run.summary['completed_rounds']} of {quantity(run.summary['rounds'], 'round')}"
                yield f"{run.name} is not finished: {run.summary['outcome']} after {rounds}"
            last = run.last
            if last is None:
                yield f"{run.name} has no accuracy after training"
            elif last.clients < run.summary["clients"]:
                yield f"{run.name} is over {share_of_clients(last.clients, run.summary['clients'])} only"
        if len({run.summary["rounds"] for run in self.runs}) > 1:
            yield f"rounds differ: {_listed([run.summary['rounds'] for run in self.runs])}"

    @property
    def has_same_samples(self) -> bool:
        """Whether every client has the same numbers of samples in all runs."""
        return all(run.samples == self.runs[0].samples for run in self.runs)

    @property
    def common_clients(self) -> list[int]:
        """Clients that can be compared with themselves: with an accuracy in all runs, and the same samples."""
        if not self.has_same_samples or any(name in self.differing() for name in _SPLIT):
            return []
        return sorted(set.intersection(*(set(run.clients) for run in self.runs)))

    def difference(self, run: ComparedRun) -> ClientDifference | None:
        """Of a run to the first one; None without common clients."""
        ours, theirs = run.clients, self.runs[0].clients
        points = [100 * (ours[client] - theirs[client]) for client in self.common_clients]
        if not points:
            return None
        better, worse = sum(point > 0 for point in points), sum(point < 0 for point in points)
        return ClientDifference(better=better, worse=worse, equal=len(points) - better - worse, mean=fmean(points))

    def shown_rounds(self, most: int) -> list[int]:
        """Rounds that all runs have, at most so many, spread evenly, with the first and the last."""
        common = sorted(set.intersection(*(set(run.curve) for run in self.runs)))
        if len(common) <= most:
            return common
        return [common[round(at * (len(common) - 1) / (most - 1))] for at in range(most)]


def short_names(names: Sequence[str]) -> list[str]:
    """Of names with long ones among them, the words in which they differ; the names themselves where that fails."""
    if max(map(len, names)) <= _LONG_NAME:
        return list(names)
    words = [re.split(r"[-/]", name) for name in names]
    same_length = len({len(found) for found in words}) == 1
    short = _differing_words(words) if same_length else _without_shared_ends(words)
    return short if len(set(short)) == len(names) and sum(map(len, short)) < sum(map(len, names)) else list(names)


def _differing_words(words: Sequence[Sequence[str]]) -> list[str]:
    differing = [at for at, column in enumerate(zip(*words, strict=True)) if len(set(column)) > 1]
    return [" ".join(found[at] for at in differing) for found in words]


def _without_shared_ends(words: Sequence[Sequence[str]]) -> list[str]:
    begin = _shared_words(words)
    end = _shared_words([found[begin:][::-1] for found in words])
    if not begin and not end:
        return []
    return ["-".join(found[begin : len(found) - end]) for found in words]


def _shared_words(words: Sequence[Sequence[str]]) -> int:
    """How many words all begin with, at most all but one of the shortest."""
    shortest = min(map(len, words))
    return next((at for at in range(shortest) if len({found[at] for found in words}) > 1), shortest - 1)


def _listed(values: Sequence[Any]) -> str:
    return ", ".join("default" if value is None else str(value) for value in dict.fromkeys(map(_hashable, values)))


def _hashable(value: Any) -> Any:
    return "/".join(map(str, value)) if isinstance(value, list) else value
