"""The gain over local training of every client, as a picture: one method against `local` on the same splits."""

from __future__ import annotations

from functools import partial
from typing import Final

from feddbp_lab.experiments.analysis.outcomes import CellResult, Outcomes
from feddbp_lab.experiments.plan import Plan
from feddbp_lab.experiments.run_options import titles_of
from feddbp_lab.results.pictures.figure import Picture
from feddbp_lab.results.pictures.run_pictures import draw_gain
from feddbp_lab.results.splits import LOCAL, method_options_of, split_of

_SHOWN: Final = "feddbp"
"""The method that is compared, if the experiment has it; else its first."""


def gain_picture(plan: Plan, outcomes: Outcomes) -> Picture | None:
    """None unless a method and `local` have done the same splits, and test samples are part of the report."""
    if any(part.report.value != "test" for part in plan.parts):
        return None
    done = outcomes.done.values()
    local = {split_of(found.options): found for found in done if found.options["method"] == LOCAL}
    others = [found for found in done if found.options["method"] != LOCAL]
    compared = [found for found in others if split_of(found.options) in local]
    if not compared:
        return None
    methods = [found.options["method"] for found in compared]
    method = _SHOWN if _SHOWN in methods else methods[0]
    first = next(found for found in compared if found.options["method"] == method)
    same = [found for found in compared if method_options_of(found.options) == method_options_of(first.options)]
    rows = [row for found in same for row in _pairs(found, local[split_of(found.options)])]
    if not rows:
        return None
    title = list(titles_of(first.options).values())[-1]
    better = sum(after > before for before, after in rows)
    points = 100 * sum(after - before for before, after in rows) / len(rows)
    return Picture(
        name=f"{plan.name}-gain",
        title="Gain over local training, per client",
        caption=f"Accuracy of each client with {title} and with local training on the same split: {better} of "
        f"{len(rows)} better, {points:+.1f} points on average. A client of each seed and split is one pair.",
        draw=partial(draw_gain, pairs=dict(enumerate(rows)), ours=title),
        aspect=0.4,
    )


def _pairs(found: CellResult, local: CellResult) -> list[tuple[float, float]]:
    """Of the clients that both have, accuracies with local training and with the method."""
    ours, theirs = found.reported, local.reported
    before = {client: theirs.test.accuracy_of(client) for client in theirs.test.samples}
    after = {client: ours.test.accuracy_of(client) for client in ours.test.samples}
    both = [(before.get(client), accuracy) for client, accuracy in after.items()]
    return [(one / 100, other / 100) for one, other in both if one is not None and other is not None]
