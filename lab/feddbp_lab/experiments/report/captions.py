"""Texts around a table: how its numbers were made, on which data, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from feddbp_common.config.catalog import DATASETS
from feddbp_common.evaluation import RARE_CLASS_SAMPLES, share_of_clients
from feddbp_common.humanize import quantity
from feddbp_common.methods import METHODS
from feddbp_lab.experiments.analysis.grid import ResultGrid
from feddbp_lab.experiments.analysis.intervals import CONFIDENCE
from feddbp_lab.experiments.analysis.outcomes import Outcomes
from feddbp_lab.experiments.plan import Plan
from feddbp_lab.experiments.report.rule_table import OWN_MARK
from feddbp_lab.experiments.report.tables import BEST_MARK, has_last_round, has_paper, is_mixed
from feddbp_lab.results.protocol import Basis

_HIGHEST: Final = "The highest of a column is underlined, if all of it are of the same seeds."

_LACKING_RULE: Final = "A rule that the reference lacks is compared with the reference's own."

_DESCRIBED: Final[tuple[tuple[str, Callable[[Any], str]], ...]] = (
    ("clients", lambda count: quantity(count, "client")),
    ("training.model_group", "models {}".format),
    ("data.alpha", "α = {:g}".format),
    ("rounds", lambda count: quantity(count, "round")),
    ("training.local_epochs", "local epochs {}".format),
    ("training.batch_size", "batches of {}".format),
    ("training.optimizer", "{}".format),
    ("training.learning_rate", "learning rate {:g}".format),
    ("training.schedule", "{} schedule".format),
    ("training.momentum", "momentum {:g}".format),
    ("training.weight_decay", "weight decay {:g}".format),
    ("training.augment", "augmentation {}".format),
    ("training.validation", "a share of {:g} of the training samples for validation".format),
)


def accuracy_caption(plan: Plan, grid: ResultGrid) -> str:
    if grid.part.report.value == "validation":
        return (
            f"Accuracy (%) over all clients' validation samples in the round of its maximum, {_seeds(plan)}. {_HIGHEST}"
        )
    sentences = [
        f"Accuracy (%) over all {_whose(grid)} test samples, {_round(grid)}, {_seeds(plan)}.",
        f"{BEST_MARK}: in the best round, since the run has no validation samples." if is_mixed(grid) else "",
        _HIGHEST,
        "last: after the last round." if has_last_round(grid) else "",
        "paper: value in the paper." if has_paper(grid) else "",
    ]
    return " ".join(filter(None, sentences))


def _whose(grid: ResultGrid) -> str:
    return "newcomers'" if Basis.LAST in grid.bases else "clients'"


def _round(grid: ResultGrid) -> str:
    if Basis.LAST in grid.bases:
        return "after the last round"
    if Basis.VALIDATION in grid.bases:
        return "in the round chosen on the validation samples of all clients"
    return "in the best round"


def _seeds(plan: Plan) -> str:
    if len(plan.seeds) == 1:
        return f"seed {plan.seeds[0]}"
    return f"mean ± standard deviation over seeds {', '.join(map(str, plan.seeds))}"


def difference_caption(plan: Plan, grid: ResultGrid) -> str:
    drawn = (
        "over seeds and clients"
        if len(plan.seeds) > 1
        else f"over clients alone, as there is only seed {plan.seeds[0]}"
    )
    chosen = "" if Basis.LAST in grid.bases else ", which chooses the rounds again,"
    bold = (
        "Bold: the interval excludes zero, with at least two seeds."
        if len(plan.seeds) > 1
        else "With one seed nothing is bold."
    )
    sentences = [
        "Differences in points on the same clients and seeds.",
        f"In brackets: {100 * CONFIDENCE:.0f} % interval, paired bootstrap{chosen} {drawn}.",
        bold,
        "federation's share: difference to the same networks and losses without exchange." if grid.has_controls else "",
        _LACKING_RULE if grid.part.report.rules else "",
    ]
    return " ".join(filter(None, sentences))


def exchanged_difference_caption() -> str:
    return (
        "The same after the last round with exchange. In the rounds of fine-tuning that follow, what a client has of "
        "the others' prototypes is replaced by its own, unless its finetune_state is last."
    )


def last_difference_caption() -> str:
    return "The same after the last round, which is not chosen. Trust a difference that does not depend on the round."


def rule_caption() -> str:
    return (
        f"Every inference rule alone, in the round chosen for it. {OWN_MARK}: the rule by which the method decides "
        f"and is compared in all other tables. {_LACKING_RULE}"
    )


def client_caption(grid: ResultGrid) -> str:
    return (
        f"Clients against themselves under {grid.references[0].title}, in points, each client and seed counted once. "
        f"Rare classes: those of which a client has fewer than {RARE_CLASS_SAMPLES} training samples; accuracy over "
        "all such test samples, mean over seeds, in the rounds of the results."
    )


def cost_caption(plan: Plan) -> str:
    seeds = "all seeds together" if len(plan.seeds) > 1 else f"seed {plan.seeds[0]}"
    return (
        f"CPU time of all processes in core-minutes, {seeds}; traffic of a client in a round, both directions, in MB; "
        "weights of all networks of a client, in millions, mean over clients."
    )


def description_of(plan: Plan, outcomes: Outcomes) -> str:
    """The options all cells share and the images there were, both read from the cells' results."""
    shared = [described(value) for option, described in _DESCRIBED if (value := outcomes.common(option))]
    shared += filter(None, [_fine_tuning(outcomes)])
    profile = [f"profile {plan.profile}"] if plan.profile else []
    images = [
        f"{DATASETS[name].title}: {' or '.join(f'{count:,}' for count in counts)} images"
        for name, counts in outcomes.images.items()
        if name in DATASETS
    ]
    text = "; ".join(filter(None, (", ".join([*profile, *shared]), ", ".join(images))))
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _fine_tuning(outcomes: Outcomes) -> str:
    """With the methods that have none, if that is the only difference between cells."""
    rounds = {cell_id: result.options.get("finetune_rounds", 0) for cell_id, result in outcomes.done.items()}
    counts = set(rounds.values()) - {0}
    if len(counts) != 1:
        return ""
    (count,) = counts
    without = dict.fromkeys(
        METHODS[outcomes.done[cell_id].options["method"]].title for cell_id, of_cell in rounds.items() if not of_cell
    )
    exceptions = f" (but for {', '.join(without)})" if without else ""
    return f"the last {'round' if count == 1 else f'{count} rounds'} without exchange{exceptions}"


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
        *(
            f"{cell_id} is over {share_of_clients(result.clients, result.expected_clients)} only."
            for cell_id, result in outcomes.done.items()
            if result.clients < result.expected_clients
        ),
    ]
    return " ".join(filter(None, sentences))
