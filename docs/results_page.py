"""Writes the tables of docs/results.md, and its figure, from the cells kept in docs/results/quick: `make results`.

Each table stands between the comments `<!-- table: NAME -->` and `<!-- end -->`; the text around them is written by
hand.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

from feddbp_common.atomic_files import replace_text
from feddbp_common.config.catalog import DATASETS
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
_OF_PAPER: Final = ("FedProto", "FedTGP", "FedKD", "FedMRL", "FedDBP")
_COMPARED: Final = (*_OF_PAPER, "FedDBP:guided", "FedAvg")
_AFTER_LAST: Final = (*_OF_PAPER, "FedDBP, last prototypes", "FedDBP:guided", "FedAvg")
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
_SMALLEST: Final = "0.1 M in float16"
_GUIDES: Final = ("0.9 M weights", "0.9 M in float16", "0.3 M", "0.1 M", _SMALLEST, "FedDBP, without a guide")

_MOMENTS: Final = (Moment.REPORTED, Moment.EXCHANGED, Moment.LAST)
_MARKS: Final = "os^D"
_COLOURS: Final = (BLUE, ORANGE, GREY, "#1b1b1b")

_Value = FormattedValue | str


class Kept:
    """The results of the kept cells, by the labels of their rows."""

    def __init__(self, directory: Path = KEPT) -> None:
        output = OutputDir(directory)
        plans = output.plans()
        self._grids = {
            plan.name: [ResultGrid(part, outcomes) for part in plan.parts]
            for plan, outcomes in zip(plans, Outcomes.read_all(plans, output), strict=True)
        }
        self._results = self._by_row()
        self._differences: dict[tuple[str, ...], Difference | None] = {}

    def of(self, row: str, dataset: str = _CIFAR_100) -> PointResult | None:
        """The results of a method, of its control or of a variant; None without any."""
        return self._results.get((row, dataset))

    def compare(
        self,
        ours: str,
        theirs: str,
        dataset: str = _CIFAR_100,
        moment: Moment = Moment.REPORTED,
        *,
        rule: str | None = None,
        their_rule: str | None = None,
    ) -> Difference | None:
        """Two rows on a data set; None where one of them has no results."""
        key = (ours, theirs, dataset, moment, rule or "", their_rule or "")
        if key not in self._differences:
            one, other = self.of(ours, dataset), self.of(theirs, dataset)
            found = compare(one, other, rule, moment, their_rule=their_rule) if one and other else None
            self._differences[key] = found
        return self._differences[key]

    def grid(self, experiment: str) -> ResultGrid:
        return self._grids[experiment][0]

    def _by_row(self) -> dict[tuple[str, str], PointResult]:
        """Where experiments share a row, their cells have to be the same: that with the most seeds has all of them."""
        found: dict[tuple[str, str], PointResult] = {}
        for name, grids in self._grids.items():
            if name in ("tuning", "newcomer"):
                continue  # of other seeds, and of other clients
            for label, result in itertools.chain.from_iterable(map(_rows_of, grids)):
                (dataset,) = {DATASETS[cell.options["data.dataset"]].title for cell in result.results}
                other = found.setdefault((label, dataset), result)
                for seed in other.by_seed.keys() & result.by_seed.keys():
                    if other.by_seed[seed].options != result.by_seed[seed].options:
                        raise ValueError(f"{label} on {dataset} is another run in {name}")
                if len(result.by_seed) > len(other.by_seed):
                    found[label, dataset] = result
        return found


def _rows_of(grid: ResultGrid) -> Iterable[tuple[str, PointResult]]:
    """The results with their rows' labels."""
    for row, place in itertools.product(grid.rows, grid.places):
        result = grid.result(row, place)
        if result is not None and result.by_seed:
            yield row.labels[-1], result


def gains(kept: Kept, moment: Moment, methods: Sequence[str] = _COMPARED) -> FormattedTable:
    """Differences to local training on four data sets."""
    return _by_set(methods, lambda method, name: _marked(kept.compare(method, _LOCAL, name, moment)))


def headline(kept: Kept) -> FormattedTable:
    """The gains, and what a client costs on CIFAR-100."""
    rows: list[Sequence[_Value]] = [
        [*row.labels, *row.values, *_costs(kept.of(row.labels[0]))] for row in gains(kept, Moment.REPORTED).rows
    ]
    return _table(["Δ to local training", *SETS.values(), "MB", "M weights", "core-min"], rows)


def shares(kept: Kept, moment: Moment) -> FormattedTable:
    """Differences to the same networks and losses without exchange."""
    controlled = [method for method in _COMPARED if kept.of(_ALONE.format(method))]
    return _by_set(controlled, lambda method, name: _marked(kept.compare(method, _ALONE.format(method), name, moment)))


def other_rules(kept: Kept, ours: str, theirs: str) -> FormattedTable:
    """Methods by the rules that do not decide; `ours` and `theirs` make rows of a method's name."""
    rows: list[Sequence[_Value]] = []
    for method in _COMPARED:
        one, other = ours.format(method), theirs.format(method)
        for rule in _other_rules_of(kept.of(one)):
            # local training has a head alone
            their_rule = None if other == _LOCAL else rule
            found = [kept.compare(one, other, name, rule=rule, their_rule=their_rule) for name in SETS]
            if any(found):
                rows.append([one, _name_of(rule), *map(_marked, found)])
    return _table(["Method", "by its", *SETS.values()], rows, labels=2)


def accuracies(kept: Kept) -> FormattedTable:
    methods = [_LOCAL, *(row for method in _COMPARED for row in (method, _ALONE.format(method)) if kept.of(row))]

    return _by_set(methods, partial(_accuracy_of, kept))


def others(kept: Kept) -> FormattedTable:
    """The methods that were run with seed 0 alone, beside local training with that seed."""
    rows: list[Sequence[_Value]] = []
    for dataset in ("CIFAR-100", "CIFAR-10"):
        local = kept.of(_LOCAL, dataset)
        rows.append([dataset, _LOCAL, _accuracy(_with_seed(local, 0)), *[""] * (len(_MOMENTS) + 1)])
        for method in _OTHERS:
            result = kept.of(method, dataset)
            differences = [_marked(kept.compare(method, _LOCAL, dataset, moment)) for moment in _MOMENTS]
            rows.append([dataset, method, _accuracy(_with_seed(result, 0)), *differences, _megabytes(result)])
    return _table(["", "Method", "accuracy", *_heads_of(_LOCAL), "MB"], rows, labels=2)


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
    rows: list[Sequence[_Value]] = []
    for ours, rule, theirs, their_rule in pairs:
        found = [kept.compare(ours, theirs, name, rule=rule, their_rule=their_rule) for name in SETS]
        rows.append([_by_rule(ours, rule), _by_rule(theirs, their_rule), *map(_marked, found)])
    return _table(["", "against", *SETS.values()], rows, labels=2)


def losses(kept: Kept) -> FormattedTable:
    """How many clients are worse off than alone, and by how much on average."""

    def losing(method: str, dataset: str) -> _Value:
        difference = kept.compare(method, _LOCAL, dataset)
        if difference is None:
            return ""
        mean = f" ({signed(fmean(difference.losses))})" if difference.losses else ""
        return f"{len(difference.losses)} of {len(difference.gains)}{mean}"

    return _by_set(_COMPARED, losing)


def rare(kept: Kept) -> FormattedTable:
    """Differences on the classes of which a client has few training samples."""

    def gain(method: str, dataset: str) -> _Value:
        ours, local = kept.of(method, dataset), kept.of(_LOCAL, dataset)
        return _marked(compare_rare(ours, local)) if ours and local else ""

    return _by_set(_COMPARED, gain, sets=[name for name in SETS if name != "CIFAR-10"])


def prototypes(kept: Kept) -> FormattedTable:
    """FedDBP with prototypes that say less, against FedDBP and against FedDBP without fusion, which they lack, too."""
    rows: list[Sequence[_Value]] = []
    for variant in (_LOCAL, *_ANCHORS, _WITHOUT_FUSION):
        differences = [
            kept.compare(variant, "FedDBP"),
            kept.compare(variant, "FedDBP", moment=Moment.EXCHANGED),
            kept.compare(variant, _WITHOUT_FUSION, moment=Moment.EXCHANGED) if variant != _WITHOUT_FUSION else None,
            kept.compare(variant, "FedDBP", rule="head", their_rule="head"),
        ]
        rows.append([variant, _accuracy(kept.of(variant)), *map(_marked, differences)])
    before = ["Δ before fine-tuning", f"the same to {_WITHOUT_FUSION}"]
    return _table(["On CIFAR-100", "accuracy", "Δ to FedDBP", *before, "Δ, heads decide"], rows)


def last_prototypes(kept: Kept) -> FormattedTable:
    """Methods that keep the last global prototypes in fine-tuning, after the last round."""
    rows: list[Sequence[_Value]] = []
    for method, references in _FINE_TUNED.items():
        ours = _LAST_PROTOTYPES.format(method)
        for reference in references:
            found = [kept.compare(ours, reference, name, Moment.LAST) for name in SETS]
            rows.append([ours, reference, *map(_marked, found)])
    return _table(["", "against", *SETS.values()], rows, labels=2)


def variants(kept: Kept, names: Sequence[str], head: str, reference: str) -> FormattedTable:
    """Variants of a method on CIFAR-100, against another row on the same seeds."""
    rows: list[Sequence[_Value]] = []
    for name in names:
        result = kept.of(name)
        if result is not None:
            differences = [_marked(kept.compare(name, reference, moment=moment)) for moment in _MOMENTS]
            seeds = ", ".join(map(str, sorted(result.by_seed)))
            rows.append([name, seeds, _accuracy(result), *differences, _megabytes(result)])
    return _table([head, "seeds", "accuracy", *_heads_of(reference), "MB"], rows, labels=2)


def guide_shares(kept: Kept) -> FormattedTable:
    """Guides of two sizes against the same networks without exchange."""
    rows: list[Sequence[_Value]] = []
    for guide, alone in (("0.9 M weights", "FedDBP:guided, no exchange"), (_SMALLEST, _ALONE.format(_SMALLEST))):
        rows.append([guide, *(_marked(kept.compare(guide, alone, moment=moment)) for moment in _MOMENTS)])
    return _table(["Guide", *_heads_of("no exchange")], rows)


def tuning(kept: Kept) -> FormattedTable:
    """Accuracy on validation samples by learning rate, for what was tuned."""
    grid = kept.grid("tuning")
    columns = [column for column in grid.columns if any(grid.values(row, column) for row in grid.rows)]
    rows: list[Sequence[_Value]] = []
    for row in grid.rows:
        values = [grid.values(row, column) for column in columns]
        rows.append([row.title, *(f"{found.mean:.2f}" if found else "" for found in values)])
    return _table(["Validation accuracy", *(column.title for column in columns)], rows)


def order(kept: Kept) -> FormattedTable:
    """FedDBP against the paper's other prototype methods, as each decides and by the heads of both."""
    rows: list[Sequence[_Value]] = []
    for other in ("FedProto", "FedTGP"):
        for rule in (None, "head"):
            found = [kept.compare("FedDBP", other, name, rule=rule, their_rule=rule) for name in SETS]
            rows.append([other, "by both heads" if rule else "as each decides", *map(_marked, found)])
    return _table(["FedDBP against", "", *SETS.values()], rows, labels=2)


def paper(kept: Kept) -> FormattedTable:
    """The paper's values beside ours."""
    grid = kept.grid("table1")
    columns = {column.title: column for column in grid.columns}
    rows: list[Sequence[_Value]] = []
    for method in (*_OF_PAPER, *_OTHERS):
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
    "gains-last": partial(gains, moment=Moment.LAST, methods=_AFTER_LAST),
    "shares": partial(shares, moment=Moment.REPORTED),
    "shares-last": partial(shares, moment=Moment.LAST),
    "accuracies": accuracies,
    "others": others,
    "rules": partial(other_rules, ours="{}", theirs=_LOCAL),
    "rule-shares": partial(other_rules, ours="{}", theirs=_ALONE),
    "rules-alone": partial(other_rules, ours=_ALONE, theirs=_LOCAL),
    "common-network": common_network,
    "losses": losses,
    "rare": rare,
    "prototypes": prototypes,
    "last-prototypes": last_prototypes,
    "parts": partial(variants, names=_PARTS, head="On CIFAR-100", reference="FedDBP"),
    "traffic": partial(variants, names=_GUIDES, head="Guide", reference=_LOCAL),
    "guide-shares": guide_shares,
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


def _table(heads: Sequence[str], rows: Iterable[Sequence[_Value]], *, labels: int = 1) -> FormattedTable:
    """The first columns are labels."""
    made = [[FormattedValue(text=value) if isinstance(value, str) else value for value in row] for row in rows]
    return FormattedTable(
        row_heads=tuple(heads[:labels]),
        groups=(),
        column_heads=tuple(heads[labels:]),
        full_heads=tuple(heads[labels:]),
        rows=tuple(
            FormattedRow(labels=tuple(value.text for value in row[:labels]), values=tuple(row[labels:])) for row in made
        ),
    )


def _heads_of(reference: str) -> list[str]:
    """Of the differences at every moment."""
    return [f"Δ to {reference}", "Δ before fine-tuning", "Δ in the last round"]


def _marked(difference: Difference | None) -> FormattedValue:
    """With the number of common seeds, where these are not three."""
    if difference is None:
        return FormattedValue(text="")
    return FormattedValue(
        text=f"{difference_text(difference)}{_seeds_of(difference.seeds)}", bold=difference.is_beyond_chance
    )


def _name_of(rule: str) -> str:
    return rule.replace("_", " ")


def _by_rule(row: str, rule: str | None) -> str:
    return f"{row} by its {_name_of(rule)}" if rule else row


def _seeds_of(count: int) -> str:
    return {1: "¹", 2: "²"}.get(count, "")


def _with_seed(result: PointResult | None, seed: int) -> PointResult | None:
    if result is None or seed not in result.by_seed:
        return None
    return PointResult(seeds=1, failed=0, by_seed={seed: result.by_seed[seed]})


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
    megabytes = result.mean(lambda cell: cell.megabytes)
    parameters = result.mean(lambda cell: cell.parameters)
    minutes = result.mean(lambda cell: cell.core_minutes)
    return [
        "" if megabytes is None else "< 0.01" if megabytes < 0.005 else f"{megabytes:.2f}",
        "" if parameters is None else f"{parameters:.2f}",
        "" if minutes is None else f"{minutes:.1f}",
    ]


def _other_rules_of(result: PointResult | None) -> list[str]:
    """By which the method does not decide."""
    own = {cell.inference for cell in result.results} if result else set()
    return [rule for rule in result.rules() if rule not in own] if result else []


def draw_gains(axes: Axes, kept: Kept) -> None:
    """Differences to local training with their intervals, a row for each method and a mark for each data set.

    The mark is hollow over fewer than three seeds.
    """
    for place, (name, title) in enumerate(SETS.items()):
        for row, method in enumerate(_COMPARED):
            found = kept.compare(method, _LOCAL, name)
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
