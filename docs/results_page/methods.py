"""Tables that compare methods with local training and with each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Final

from feddbp_lab.experiments.analysis.comparison import compare_rare
from feddbp_lab.experiments.analysis.outcomes import PointResult
from feddbp_lab.experiments.analysis.rounds import Moment
from feddbp_lab.experiments.report.formatted import FormattedTable, signed
from results_page.cells import (
    MOMENTS,
    Value,
    accuracy,
    accuracy_of,
    by_set,
    costs,
    heads_of,
    marked,
    megabytes,
    name_of,
    table,
    title_by_rule,
    with_seed,
)
from results_page.kept import ALONE, LOCAL, SETS, Kept

OF_PAPER: Final = ("FedProto", "FedTGP", "FedKD", "FedMRL", "FedDBP")
COMPARED: Final = (*OF_PAPER, "FedDBP:guided", "FedAvg")
_OTHERS: Final = ("FedProc", "FPL", "FedLFP", "FD", "LG-FedAvg", "FedGen")
_EXCHANGED: Final = (
    ("nothing", "`local`", LOCAL, None),
    ("prototypes", "`feddbp`", "FedDBP", None),
    (
        "a small network beside their own, 0.1 M weights in float16",
        "`feddbp:guided`",
        "0.1 M in float16",
        ALONE.format("0.1 M in float16"),
    ),
    ("the same with 0.9 M weights", "`feddbp:guided`", "FedDBP:guided", ALONE.format("FedDBP:guided")),
    ("one common network instead of their own", "`fedavg`", "FedAvg", ALONE.format("FedAvg")),
)
"""What clients exchange, the method, its row, and that of its control where most of the gain is the federation's."""


def expectations(kept: Kept) -> FormattedTable:
    """What a user may expect on CIFAR-100 of each kind of method."""
    rows: list[Sequence[Value]] = []
    for exchanged, method, row, control in _EXCHANGED:
        result, gain = kept.of(row), kept.compare(row, LOCAL)
        share = kept.compare(row, control) if control else None
        values = result.accuracy() if result else None
        of_gain = f"{share.mean:.1f} of {gain.mean:.1f} points" if share and gain else ""
        rows.append([exchanged, method, megabytes(result), f"{values.mean:.1f} %" if values else "", of_gain])
    return table(
        ["clients exchange", "method", "MB per round", "accuracy", "of the gain, the federation's"], rows, labels=2
    )


def gains(kept: Kept, moment: Moment, rows: Sequence[str] = COMPARED) -> FormattedTable:
    """Differences to local training on four data sets."""
    return by_set(rows, lambda method, name: marked(kept.compare(method, LOCAL, name, moment)))


def headline(kept: Kept) -> FormattedTable:
    """The gains, and what a client costs on CIFAR-100."""
    rows: list[Sequence[Value]] = [
        [*row.labels, *row.values, *costs(kept.of(row.labels[0]))] for row in gains(kept, Moment.REPORTED).rows
    ]
    return table(["Δ to local training", *SETS.values(), "MB", "M weights", "core-min"], rows)


def shares(kept: Kept, moment: Moment) -> FormattedTable:
    """Differences to the same networks and losses without exchange."""
    controlled = [method for method in COMPARED if kept.of(ALONE.format(method))]
    return by_set(controlled, lambda method, name: marked(kept.compare(method, ALONE.format(method), name, moment)))


def other_rules(kept: Kept, ours: str, theirs: str) -> FormattedTable:
    """Methods by the rules that do not decide; `ours` and `theirs` make rows of a method's name."""
    rows: list[Sequence[Value]] = []
    for method in COMPARED:
        one, other = ours.format(method), theirs.format(method)
        for rule in _other_rules_of(kept.of(one)):
            # local training has a head alone
            their_rule = None if other == LOCAL else rule
            found = [kept.compare(one, other, name, rule=rule, their_rule=their_rule) for name in SETS]
            if any(found):
                rows.append([one, name_of(rule), *map(marked, found)])
    return table(["Method", "by its", *SETS.values()], rows, labels=2)


def accuracies(kept: Kept) -> FormattedTable:
    methods = [LOCAL, *(row for method in COMPARED for row in (method, ALONE.format(method)) if kept.of(row))]

    return by_set(methods, partial(accuracy_of, kept))


def others(kept: Kept) -> FormattedTable:
    """The methods that were run with seed 0 alone, beside local training with that seed."""
    rows: list[Sequence[Value]] = []
    for dataset in ("CIFAR-100", "CIFAR-10"):
        local = kept.of(LOCAL, dataset)
        rows.append([dataset, LOCAL, accuracy(with_seed(local, 0)), *[""] * (len(MOMENTS) + 1)])
        for method in _OTHERS:
            result = kept.of(method, dataset)
            differences = [marked(kept.compare(method, LOCAL, dataset, moment)) for moment in MOMENTS]
            rows.append([dataset, method, accuracy(with_seed(result, 0)), *differences, megabytes(result)])
    return table(["", "Method", "accuracy", *heads_of(LOCAL), "MB"], rows, labels=2)


def common_network(kept: Kept) -> FormattedTable:
    """The guide beside each client's network against other networks that clients have in common."""
    pairs: tuple[tuple[str, str | None, str, str | None], ...] = (
        ("FedDBP:guided", None, "FedAvg", None),
        ("FedDBP:guided", "guide", "FedAvg", None),
        ("FedKD", "mentee", "FedAvg", None),
        ("FedDBP:guided", None, "FedKD", None),
        ("FedDBP:guided", None, "FedKD", "mentee"),
        ("FedDBP:guided", None, "FedMRL", None),
        ("FedDBP:guided", None, "FedAvg, no exchange", None),
        ("FedDBP:guided, no exchange", None, "FedAvg, no exchange", None),
    )
    rows: list[Sequence[Value]] = []
    for ours, rule, theirs, their_rule in pairs:
        found = [kept.compare(ours, theirs, name, rule=rule, their_rule=their_rule) for name in SETS]
        rows.append([title_by_rule(ours, rule), title_by_rule(theirs, their_rule), *map(marked, found)])
    return table(["", "against", *SETS.values()], rows, labels=2)


def losses(kept: Kept) -> FormattedTable:
    """How many clients are worse off than alone, and by how much on average."""

    def losing(method: str, dataset: str) -> Value:
        difference = kept.compare(method, LOCAL, dataset)
        if difference is None:
            return ""
        mean = f" ({signed(fmean(difference.losses))})" if difference.losses else ""
        return f"{len(difference.losses)} of {len(difference.gains)}{mean}"

    return by_set(COMPARED, losing)


def rare(kept: Kept) -> FormattedTable:
    """Differences on the classes of which a client has few training samples."""

    def gain(method: str, dataset: str) -> Value:
        ours, local = kept.of(method, dataset), kept.of(LOCAL, dataset)
        return marked(compare_rare(ours, local)) if ours and local else ""

    return by_set(COMPARED, gain, sets=[name for name in SETS if name != "CIFAR-10"])


def order(kept: Kept) -> FormattedTable:
    """FedDBP against the paper's other prototype methods, as each decides and by the heads of both."""
    rows: list[Sequence[Value]] = []
    for other in ("FedProto", "FedTGP"):
        for rule in (None, "head"):
            found = [kept.compare("FedDBP", other, name, rule=rule, their_rule=rule) for name in SETS]
            rows.append([other, "by both heads" if rule else "as each decides", *map(marked, found)])
    return table(["FedDBP against", "", *SETS.values()], rows, labels=2)


def paper(kept: Kept) -> FormattedTable:
    """The paper's values beside ours."""
    grid = kept.grid("table1")
    columns = {column.title: column for column in grid.columns}
    rows: list[Sequence[Value]] = []
    for method in (*OF_PAPER, *_OTHERS):
        row = next(row for row in grid.rows if row.labels[-1] == method)
        values: list[Value] = []
        for name in SETS:
            printed = grid.paper(row, columns[name])
            values += [accuracy_of(kept, method, name), "" if printed is None else f"{printed.mean:.2f}"]
        rows.append([method, *values])
    return table(["Method", *(f"{name}{of}" for name in SETS.values() for of in ("", ", paper"))], rows)


def _other_rules_of(result: PointResult | None) -> list[str]:
    """By which the method does not decide."""
    own = {cell.inference for cell in result.results} if result else set()
    return [rule for rule in result.rules() if rule not in own] if result else []
