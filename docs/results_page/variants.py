"""Tables of what one method is in other forms: its parts, its guide, its prototypes, its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from feddbp_lab.experiments.analysis.rounds import Moment
from feddbp_lab.experiments.report.formatted import FormattedTable
from results_page.cells import MOMENTS, Value, accuracy, heads_of, marked, megabytes, table
from results_page.kept import ALONE, LOCAL, SETS, Kept

_ANCHORS: Final = ("own prototypes only", "random anchors", "prototypes of other classes")
_WITHOUT_FUSION: Final = "w/o pers."
_LAST_PROTOTYPES: Final = "{}, last prototypes"
_FINE_TUNED: Final = {
    "FedDBP": (LOCAL, "FedDBP", "FedDBP, no exchange", "random anchors"),
    "FedProto": (LOCAL, "FedProto"),
    "FedTGP": (LOCAL, "FedTGP"),
}
"""What FedDBP and others with the last prototypes are compared with."""
_SMALLEST_GUIDE: Final = "0.1 M in float16"


def prototypes(kept: Kept) -> FormattedTable:
    """FedDBP with prototypes that say less, against FedDBP and against FedDBP without fusion, which they lack, too."""
    rows: list[Sequence[Value]] = []
    for variant in (LOCAL, *_ANCHORS, _WITHOUT_FUSION):
        differences = [
            kept.compare(variant, "FedDBP"),
            kept.compare(variant, "FedDBP", moment=Moment.EXCHANGED),
            kept.compare(variant, _WITHOUT_FUSION, moment=Moment.EXCHANGED) if variant != _WITHOUT_FUSION else None,
            kept.compare(variant, "FedDBP", rule="head", their_rule="head"),
        ]
        rows.append([variant, accuracy(kept.of(variant)), *map(marked, differences)])
    before = ["Δ before fine-tuning", f"the same to {_WITHOUT_FUSION}"]
    return table(["On CIFAR-100", "accuracy", "Δ to FedDBP", *before, "Δ, heads decide"], rows)


def last_prototypes(kept: Kept) -> FormattedTable:
    """Methods that keep the last global prototypes in fine-tuning, after the last round."""
    rows: list[Sequence[Value]] = []
    for method, references in _FINE_TUNED.items():
        ours = _LAST_PROTOTYPES.format(method)
        for reference in references:
            found = [kept.compare(ours, reference, name, Moment.LAST) for name in SETS]
            rows.append([ours, reference, *map(marked, found)])
    return table(["", "against", *SETS.values()], rows, labels=2)


def variants(kept: Kept, names: Sequence[str], head: str, reference: str) -> FormattedTable:
    """Variants of a method on CIFAR-100, against another row on the same seeds."""
    rows: list[Sequence[Value]] = []
    for name in names:
        result = kept.of(name)
        if result is not None:
            differences = [marked(kept.compare(name, reference, moment=moment)) for moment in MOMENTS]
            seeds = ", ".join(map(str, sorted(result.by_seed)))
            rows.append([name, seeds, accuracy(result), *differences, megabytes(result)])
    return table([head, "seeds", "accuracy", *heads_of(reference), "MB"], rows, labels=2)


def guide_shares(kept: Kept) -> FormattedTable:
    """Guides of two sizes against the same networks without exchange."""
    rows: list[Sequence[Value]] = []
    for guide, alone in (
        ("0.9 M weights", "FedDBP:guided, no exchange"),
        (_SMALLEST_GUIDE, ALONE.format(_SMALLEST_GUIDE)),
    ):
        rows.append([guide, *(marked(kept.compare(guide, alone, moment=moment)) for moment in MOMENTS)])
    return table(["Guide", *heads_of("no exchange")], rows)


def tuning(kept: Kept) -> FormattedTable:
    """Accuracy on validation samples by learning rate, for what was tuned."""
    grid = kept.grid("tuning")
    columns = [column for column in grid.columns if any(grid.values(row, column) for row in grid.rows)]
    rows: list[Sequence[Value]] = []
    for row in grid.rows:
        values = [grid.values(row, column) for column in columns]
        rows.append([row.title, *(f"{found.mean:.2f}" if found else "" for found in values)])
    return table(["Validation accuracy", *(column.title for column in columns)], rows)


def newcomers(kept: Kept) -> FormattedTable:
    """Clients with few images that join a finished federation, after their last round."""
    grid = kept.grid("newcomer")
    (local,) = grid.references
    rows: list[Sequence[Value]] = []
    for row in grid.rows:
        found = [grid.result(row, place) for place in grid.places]
        if row.is_control or not any(result.by_seed for result in found if result):
            continue
        values: list[Value] = []
        for result, place in zip(found, grid.places, strict=True):
            differences = grid.difference(row, local, place), grid.federation_share(row, place)
            values += [accuracy(result), *map(marked, differences)]
        rows.append([row.labels[-1], *values])
    sizes = [place.title.rpartition(" ")[2] for place in grid.places]
    heads = [head for size in sizes for head in (f"{size} images", "Δ to Local training", "Δ to no exchange")]
    return table(["Method", *heads], rows)
