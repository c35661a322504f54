"""What a reader has to know about a table: how its numbers were made, on what, and what is missing."""

from __future__ import annotations

from typing import Final

from feddbp_common.config.catalog import DATASETS
from feddbp_lab.experiments.plan import Plan
from feddbp_lab.experiments.report.outcomes import Outcomes
from feddbp_lab.experiments.report.tables import ResultTable

_FACTS: Final = (
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
    told = [
        f"Accuracy (%) over all clients' test samples in the best round, {seeds}.",
        "Best in bold, second underlined.",
        f"Δ: difference to {table.compared_with}." if table.compared_with else "",
        "paper: as printed there." if table.has_paper else "",
    ]
    return " ".join(filter(None, told))


def description_of(plan: Plan, outcomes: Outcomes) -> str:
    """The options all cells share, read from the cells themselves, and the data there really was."""
    shared = [text.format(value) for option, text in _FACTS if (value := outcomes.common(option)) is not None]
    profile = [f"profile {plan.profile}"] if plan.profile else []
    images = [
        f"{DATASETS[name].title}: {' or '.join(f'{count:,}' for count in counts)} images"
        for name, counts in outcomes.images.items()
        if name in DATASETS
    ]
    told = "; ".join(filter(None, (", ".join([*profile, *shared]), ", ".join(images))))
    return f"{told[0].upper()}{told[1:]}." if told else ""


def warnings_of(plan: Plan, outcomes: Outcomes) -> str:
    """What is missing or does not fit; nothing, once every cell is done and was run on the same data."""
    total = len(plan.cell_ids)
    told = [
        f"{len(outcomes.missing)} of {total} cells are not done yet." if outcomes.missing else "",
        f"{len(outcomes.failures)} of {total} cells failed." if outcomes.failures else "",
        *(
            f"Cells on {DATASETS[name].title} were run with different amounts of data and do not compare."
            for name, counts in outcomes.images.items()
            if len(counts) > 1
        ),
    ]
    return " ".join(filter(None, told))
