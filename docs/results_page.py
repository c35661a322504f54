"""Writes the tables of docs/results.md, and its figure, from the cells kept in docs/results/quick: `make results`.

Each table stands between the comments `<!-- table: NAME -->` and `<!-- end -->`; the text around them is written by
hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

from feddbp_common.atomic_files import replace_text
from feddbp_lab.experiments.report.comparison import Difference, compare, compare_rare
from feddbp_lab.experiments.report.formatted import FormattedRow, FormattedTable, FormattedValue, plus_minus, signed
from feddbp_lab.experiments.report.grid import ResultGrid
from feddbp_lab.experiments.report.outcomes import Outcomes, PointResult
from feddbp_lab.experiments.report.rounds import Moment
from feddbp_lab.experiments.report.tables import difference_text
from feddbp_lab.experiments.report.text_formats import as_markdown
from feddbp_lab.experiments.run.output_dir import OutputDir
from feddbp_lab.results.pictures.figure import BLUE, GREY, ORANGE, Picture, write_pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE: Final = Path(__file__).parent / "results.md"
IMAGES: Final = Path(__file__).parent / "images"
KEPT: Final = Path(__file__).parent / "results" / "quick"
SETS: Final = {
    "CIFAR-100": "CIFAR-100",
    "Oxford Flowers-102": "Flowers-102",
    "Tiny-ImageNet-200": "Tiny-ImageNet",
    "CIFAR-10": "CIFAR-10",
}
"""The data sets by their titles, with their heads in tables."""
_CIFAR_100: Final = "CIFAR-100"
_TABLE: Final = re.compile(r"(<!-- table: (\S+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
_LOCAL: Final = "Local training"
_COMPARED: Final = ("FedProto", "FedTGP", "FedKD", "FedMRL", "FedDBP", "FedDBP:guided", "FedAvg")
_PROTOTYPES: Final = ("FedProto", "FedDBP")
_OTHERS: Final = ("FedProc", "FPL", "FedLFP", "FD", "LG-FedAvg", "FedGen")
_ALONE: Final = "{}, no exchange"
_ANCHORS: Final = ("own prototypes only", "random anchors", "prototypes of other classes")
_WITHOUT_FUSION: Final = "w/o pers."
_LAST_PROTOTYPES: Final = "{}, last prototypes"
_FINE_TUNED: Final = {
    "FedDBP": (_LOCAL, "FedDBP", "FedDBP, no exchange", "random anchors"),
    "FedProto": (_LOCAL, "FedProto"),
    "FedTGP": (_LOCAL, "FedTGP"),
}
"""What FedDBP and others with the last prototypes are compared with."""
_PARTS: Final = ("w/o share", "w/o deci.", "w/o hard", "w/o pers.")
_GUIDES: Final = ("0.9 M weights", "0.9 M in float16", "0.3 M", "0.1 M", "0.1 M in float16", "FedDBP, without a guide")

_MARKS: Final = "os^D"
_COLOURS: Final = (BLUE, ORANGE, GREY, "#1b1b1b")

_Value = FormattedValue | str


class Kept:
    """The results of the kept cells, by the labels of their rows."""

    def __init__(self, directory: Path = KEPT) -> None:
        output = OutputDir(directory)
        self._grids = {
            plan.name: [ResultGrid(part, Outcomes.read(plan, output)) for part in plan.parts] for plan in output.plans()
        }

    def of(self, row: str, dataset: str = _CIFAR_100) -> PointResult | None:
        """The results of a method, of its control or of a variant; None without any."""
        found = [
            result
            for name, grids in self._grids.items()
            if name not in ("tuning", "newcomer")
            for grid in grids
            for result in _results_in(grid, row, dataset)
            if result.by_seed
        ]
        return max(found, key=lambda result: len(result.by_seed), default=None)

    def grid(self, experiment: str) -> ResultGrid:
        return self._grids[experiment][0]


def _results_in(grid: ResultGrid, label: str, dataset: str) -> Iterable[PointResult]:
    for row in grid.rows:
        for place in grid.places:
            # experiments without an axis of data sets are on CIFAR-100
            if row.labels[-1] == label and (place.title or _CIFAR_100) == dataset:
                result = grid.result(row, place)
                if result is not None:
                    yield result


def gains(kept: Kept, moment: Moment, methods: Sequence[str] = _COMPARED) -> FormattedTable:
    """Differences to local training on four data sets."""

    def gain(method: str, dataset: str) -> _Value:
        return _difference(kept.of(method, dataset), kept.of(_LOCAL, dataset), moment)

    return _by_set(methods, gain)


def headline(kept: Kept) -> FormattedTable:
    """The gains, and what a client costs on CIFAR-100."""
    table = gains(kept, Moment.REPORTED)
    rows: list[Sequence[_Value]] = [[*row.labels, *row.values, *_costs(kept.of(row.labels[0]))] for row in table.rows]
    return _table(["Δ to local training", *SETS.values(), "MB", "M weights", "core-min"], rows)


def shares(kept: Kept, moment: Moment) -> FormattedTable:
    """Differences to the same networks and losses without exchange."""

    def share(method: str, dataset: str) -> _Value:
        return _difference(kept.of(method, dataset), kept.of(_ALONE.format(method), dataset), moment)

    return _by_set([method for method in _COMPARED if kept.of(_ALONE.format(method))], share)


def rule_shares(kept: Kept) -> FormattedTable:
    """Each rule of a method against the same rule without exchange, and that against local training."""
    rows: list[Sequence[_Value]] = []
    for method in _COMPARED:
        alone = _ALONE.format(method)
        for rule in _rules_of(kept.of(alone)):
            marked = _marked(rule, kept.of(method))
            share = [
                _difference(kept.of(method, name), kept.of(alone, name), rule=rule, their_rule=rule) for name in SETS
            ]
            rows.append([method, marked, "itself without exchange", *share])
            against = [_difference(kept.of(alone, name), kept.of(_LOCAL, name), rule=rule) for name in SETS]
            rows.append([alone, marked, _LOCAL, *against])
    return _table(["", "decides", "against", *SETS.values()], rows)


def accuracies(kept: Kept) -> FormattedTable:
    methods = [_LOCAL, *(row for method in _COMPARED for row in (method, _ALONE.format(method)) if kept.of(row))]

    return _by_set(methods, partial(_accuracy_of, kept))


def others(kept: Kept) -> FormattedTable:
    """The methods that were run with seed 0 alone, beside local training with that seed."""
    rows: list[Sequence[_Value]] = []
    for dataset in ("CIFAR-100", "CIFAR-10"):
        local = _with_seeds(kept.of(_LOCAL, dataset), [0])
        rows.append([dataset, _LOCAL, _accuracy(local), "", "", "", ""])
        for method in _OTHERS:
            result = _with_seeds(kept.of(method, dataset), [0])
            differences = [_difference(result, local, moment) for moment in Moment]
            rows.append([dataset, method, _accuracy(result), *differences, _megabytes(result)])
    heads = ["Method", "accuracy", "Δ to local training", "Δ before fine-tuning", "Δ in the last round", "MB"]
    return _table(["", *heads], rows)


def rules(kept: Kept) -> FormattedTable:
    """What each part of a method decides alone, against local training."""
    rows: list[Sequence[_Value]] = []
    for method in _COMPARED:
        result = kept.of(method)
        for rule in _rules_of(result):
            values = [_difference(kept.of(method, name), kept.of(_LOCAL, name), rule=rule) for name in SETS]
            rows.append([method, _marked(rule, result), *values])
    return _table(["Δ to local training", "decides", *SETS.values()], rows)


def common_network(kept: Kept) -> FormattedTable:
    """The guide beside each client's network against the network that all clients would have in common."""
    pairs = (
        ("FedDBP:guided", None, "FedAvg"),
        ("FedDBP:guided", "guide", "FedAvg"),
        ("FedKD", "mentee", "FedAvg"),
        ("FedDBP:guided", None, "FedAvg, no exchange"),
        ("FedDBP:guided, no exchange", None, "FedAvg, no exchange"),
    )
    rows: list[Sequence[_Value]] = []
    for ours, rule, theirs in pairs:
        values = [_difference(kept.of(ours, name), kept.of(theirs, name), rule=rule) for name in SETS]
        rows.append([f"{ours}{f', {rule} alone' if rule else ''}", theirs, *values])
    return _table(["", "against", *SETS.values()], rows)


def losses(kept: Kept) -> FormattedTable:
    """How many clients are worse off than alone, and by how much on average."""

    def losing(method: str, dataset: str) -> _Value:
        ours, local = kept.of(method, dataset), kept.of(_LOCAL, dataset)
        difference = compare(ours, local) if ours and local else None
        if difference is None:
            return ""
        mean = f" ({signed(fmean(difference.losses))})" if difference.losses else ""
        return f"{len(difference.losses)} of {len(difference.gains)}{mean}"

    return _by_set(_COMPARED, losing)


def rare(kept: Kept) -> FormattedTable:
    """Differences on the classes of which a client has few training samples."""

    def gain(method: str, dataset: str) -> _Value:
        ours, local = kept.of(method, dataset), kept.of(_LOCAL, dataset)
        return _marked_difference(compare_rare(ours, local)) if ours and local else ""

    return _by_set(_COMPARED, gain, sets=tuple(SETS)[:3])


def prototypes(kept: Kept) -> FormattedTable:
    """FedDBP with prototypes that say less, against FedDBP and against FedDBP without fusion, which they lack, too."""
    feddbp, without_fusion = kept.of("FedDBP"), kept.of(_WITHOUT_FUSION)
    rows: list[Sequence[_Value]] = []
    for variant in (_LOCAL, *_ANCHORS, _WITHOUT_FUSION):
        ours = kept.of(variant)
        values = [
            _difference(ours, feddbp),
            _difference(ours, feddbp, Moment.EXCHANGED),
            "" if variant == _WITHOUT_FUSION else _difference(ours, without_fusion, Moment.EXCHANGED),
            _difference(ours, feddbp, rule="head", their_rule="head"),
        ]
        rows.append([variant, _accuracy(ours), *values])
    before = ["Δ before fine-tuning", f"the same to {_WITHOUT_FUSION}"]
    return _table(["On CIFAR-100", "accuracy", "Δ to FedDBP", *before, "Δ, heads decide"], rows)


def last_prototypes(kept: Kept) -> FormattedTable:
    """Methods that keep the last global prototypes in fine-tuning, against what they are compared with."""
    rows: list[Sequence[_Value]] = []
    for method, references in _FINE_TUNED.items():
        ours = _LAST_PROTOTYPES.format(method)
        for reference in references:
            for moment in (Moment.REPORTED, Moment.LAST):
                values = [_difference(kept.of(ours, name), kept.of(reference, name), moment) for name in SETS]
                rows.append([ours, reference, "last" if moment is Moment.LAST else "chosen", *values])
    return _table(["", "against", "round", *SETS.values()], rows)


def variants(kept: Kept, names: Sequence[str], head: str, reference: str) -> FormattedTable:
    """Variants of a method on CIFAR-100, against another row on the same seeds."""
    rows: list[Sequence[_Value]] = []
    for name in names:
        result = kept.of(name)
        if result is not None:
            differences = [_difference(result, kept.of(reference), moment) for moment in Moment]
            seeds = ", ".join(map(str, sorted(result.by_seed)))
            rows.append([name, seeds, _accuracy(result), *differences, _megabytes(result)])
    heads = ["seeds", "accuracy", f"Δ to {reference}", "Δ before fine-tuning", "Δ in the last round", "MB"]
    return _table([head, *heads], rows)


def tuning(kept: Kept) -> FormattedTable:
    """Accuracy on validation samples by learning rate, for what was tuned."""
    grid = kept.grid("tuning")
    rows: list[Sequence[_Value]] = []
    for row in grid.rows:
        values = [grid.values(row, column) for column in grid.columns]
        if any(values):
            rows.append([row.title, *(f"{found.mean:.2f}" if found else "" for found in values)])
    return _table(["Validation accuracy", *(column.title for column in grid.columns)], rows)


def order(kept: Kept) -> FormattedTable:
    """FedDBP against the paper's other prototype methods, as each decides and by the heads of both."""
    rows: list[Sequence[_Value]] = []
    for other in ("FedProto", "FedTGP"):
        for rule in (None, "head"):
            values = [
                _difference(kept.of("FedDBP", name), kept.of(other, name), rule=rule, their_rule=rule) for name in SETS
            ]
            rows.append([other, "heads" if rule else "as they decide", *values])
    return _table(["FedDBP against", "", *SETS.values()], rows)


def paper(kept: Kept) -> FormattedTable:
    """The paper's values beside ours."""
    grid = kept.grid("table1")
    columns = {column.title: column for column in grid.columns}
    rows: list[Sequence[_Value]] = []
    for method in (*_COMPARED[:5], *_OTHERS):
        row = next(row for row in grid.rows if row.labels[-1] == method)
        values: list[_Value] = []
        for name in SETS:
            printed = grid.paper(row, columns[name])
            values += [_accuracy_of(kept, method, name), "" if printed is None else f"{printed.mean:.2f}"]
        rows.append([method, *values])
    return _table(["Method", *(f"{name}{of}" for name in SETS.values() for of in ("", ", paper"))], rows)


TABLES: Final[dict[str, Callable[[Kept], FormattedTable]]] = {
    "headline": headline,
    "gains-before-fine-tuning": partial(gains, moment=Moment.EXCHANGED, methods=_PROTOTYPES),
    "gains-last": partial(gains, moment=Moment.LAST),
    "shares": partial(shares, moment=Moment.REPORTED),
    "shares-last": partial(shares, moment=Moment.LAST),
    "accuracies": accuracies,
    "others": others,
    "rules": rules,
    "rule-shares": rule_shares,
    "common-network": common_network,
    "losses": losses,
    "rare": rare,
    "prototypes": prototypes,
    "last-prototypes": last_prototypes,
    "parts": partial(variants, names=_PARTS, head="On CIFAR-100", reference="FedDBP"),
    "traffic": partial(variants, names=_GUIDES, head="Guide", reference=_LOCAL),
    "tuning": tuning,
    "paper": paper,
    "order": order,
}


def rendered(page: str, kept: Kept) -> str:
    """The page with its tables made again."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{as_markdown(TABLES[found[2]](kept))}{found[3]}", page)


def _by_set(
    methods: Iterable[str], value_of: Callable[[str, str], _Value], sets: Sequence[str] = tuple(SETS)
) -> FormattedTable:
    return _table(
        ["Method", *map(SETS.__getitem__, sets)],
        [[method, *(value_of(method, name) for name in sets)] for method in methods],
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[_Value]]) -> FormattedTable:
    """The first column has the labels."""
    made = [[FormattedValue(text=value) if isinstance(value, str) else value for value in row] for row in rows]
    label, *columns = heads
    return FormattedTable(
        row_heads=(label,),
        groups=(),
        column_heads=tuple(columns),
        full_heads=tuple(columns),
        rows=tuple(FormattedRow(labels=(first.text,), values=tuple(rest)) for first, *rest in made),
    )


def _difference(
    ours: PointResult | None,
    theirs: PointResult | None,
    moment: Moment = Moment.REPORTED,
    rule: str | None = None,
    their_rule: str | None = None,
) -> FormattedValue:
    if ours is None or theirs is None:
        return FormattedValue(text="")
    return _marked_difference(compare(ours, theirs, rule, moment, their_rule=their_rule))


def _marked_difference(difference: Difference | None) -> FormattedValue:
    """With the number of common seeds, where these are not three."""
    if difference is None:
        return FormattedValue(text="")
    return FormattedValue(
        text=f"{difference_text(difference)}{_seeds_of(difference.seeds)}", bold=difference.is_beyond_chance
    )


def _marked(rule: str, result: PointResult | None) -> str:
    """The name of a rule, marked if the method decides by it."""
    is_own = result is not None and any(cell.inference == rule for cell in result.results)
    return f"{'• ' if is_own else ''}{rule.replace('_', ' ')}"


def _seeds_of(count: int) -> str:
    return {1: "¹", 2: "²"}.get(count, "")


def _with_seeds(result: PointResult | None, seeds: Iterable[int]) -> PointResult | None:
    if result is None:
        return None
    by_seed = {seed: result.by_seed[seed] for seed in seeds if seed in result.by_seed}
    return PointResult(seeds=len(by_seed), failed=0, by_seed=by_seed)


def _accuracy(result: PointResult | None) -> str:
    values = result.accuracy() if result else None
    return plus_minus(values.mean, values.deviation) if values else ""


def _accuracy_of(kept: Kept, method: str, dataset: str) -> str:
    """With the number of seeds, where these are not three."""
    result = kept.of(method, dataset)
    return "" if result is None else f"{_accuracy(result)}{_seeds_of(len(result.by_seed))}"


def _megabytes(result: PointResult | None) -> str:
    return _costs(result)[0]


def _costs(result: PointResult | None) -> list[str]:
    """Traffic of a client in a round, its weights in millions, and core-minutes of a run."""
    if result is None:
        return ["", "", ""]
    means = [
        (result.mean(lambda cell: cell.megabytes), 2),
        (result.mean(lambda cell: cell.parameters), 2),
        (result.mean(lambda cell: cell.core_minutes), 1),
    ]
    return ["" if value is None else f"{value:.{digits}f}" for value, digits in means]


def _rules_of(result: PointResult | None) -> list[str]:
    """Of a method that records more than one."""
    found = result.rules() if result else []
    return found if len(found) > 1 else []


def draw_gains(axes: Axes, kept: Kept) -> None:
    """Differences to local training with their intervals, a row for each method and a mark for each data set.

    The mark is hollow over fewer than three seeds.
    """
    for place, (name, title) in enumerate(SETS.items()):
        for row, method in enumerate(_COMPARED):
            ours, local = kept.of(method, name), kept.of(_LOCAL, name)
            found = compare(ours, local) if ours and local else None
            if found is None or found.interval is None:
                continue
            axes.errorbar(
                [found.mean],
                [row + 0.18 * (place - 1.5)],
                xerr=[[found.mean - found.interval.low], [found.interval.high - found.mean]],
                fmt=_MARKS[place],
                color=_COLOURS[place],
                markerfacecolor=_COLOURS[place] if found.seeds > 2 else "white",
                markersize=4,
                linewidth=1.0,
                label=title if row == 0 else None,
            )
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(_COMPARED)), _COMPARED)
    axes.invert_yaxis()
    axes.set_xlabel("points of accuracy over local training")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower left")


def write(kept: Kept) -> None:
    replace_text(PAGE, rendered(PAGE.read_text(encoding="utf-8"), kept))
    picture = Picture(
        name="gains",
        title="Gain over local training",
        caption="Gain over local training by method and data set, with 95 % intervals.",
        draw=partial(draw_gains, kept=kept),
        aspect=0.55,
    )
    png, _ = write_pictures([picture], IMAGES, columns=2)[picture.name]
    png.unlink()


if __name__ == "__main__":
    write(Kept())
