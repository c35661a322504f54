"""Texts around a table: how its numbers were made, on which data, and what is missing."""

from __future__ import annotations

from typing import Final

from feddbp_common.config.catalog import DATASETS
from feddbp_lab.experiments.plan import Plan
from feddbp_lab.experiments.report.outcomes import Outcomes
from feddbp_lab.experiments.report.tables import ResultTable

_DESCRIBED: Final = (
    ("clients", "{} clients"),
    ("training.model_group", "models {}"),
    ("data.alpha", "α = {:g}"),
    ("rounds", "{} rounds"),
    ("training.local_epochs", "local epochs {}"),
    ("training.batch_size", "batches of {}"),
    ("training.learning_rate", "learning rate {:g}"),
)


def caption_of(plan: Plan, table: ResultTable) -> str:
    seeds = f"seed {plan.seeds[0]}"
    if len(plan.seeds) > 1:
        seeds = f"mean ± standard deviation over seeds {', '.join(map(str, plan.seeds))}"
    sentences = [
        f"Accuracy (%) over all clients' test samples in the best round, {seeds}.",
        "Best in bold, second underlined.",
        f"Δ: difference to {table.compared_with}." if table.compared_with else "",
        "paper: value in the paper." if table.has_paper else "",
    ]
    return " ".join(filter(None, sentences))


def description_of(plan: Plan, outcomes: Outcomes) -> str:
    """The options all cells share and the images there were, both read from the cells' results."""
    shared = [text.format(value) for option, text in _DESCRIBED if (value := outcomes.common(option)) is not None]
    profile = [f"profile {plan.profile}"] if plan.profile else []
    images = [
        f"{DATASETS[name].title}: {' or '.join(f'{count:,}' for count in counts)} images"
        for name, counts in outcomes.images.items()
        if name in DATASETS
    ]
    text = "; ".join(filter(None, (", ".join([*profile, *shared]), ", ".join(images))))
    return f"{text[0].upper()}{text[1:]}." if text else ""


def warnings_of(plan: Plan, outcomes: Outcomes) -> str:
    """Missing and failed cells, and cells that cannot be compared; empty if there are none."""
    total = len(plan.cell_ids)
    sentences = [
        f"{len(outcomes.missing)} of {total} cells are not done yet." if outcomes.missing else "",
        f"{len(outcomes.failures)} of {total} cells failed." if outcomes.failures else "",
        *(
            f"Cells on {DATASETS[name].title} were run with different amounts of data and cannot be compared."
            for name, counts in outcomes.images.items()
            if len(counts) > 1
        ),
    ]
    return " ".join(filter(None, sentences))
