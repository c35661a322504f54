"""The facts of a run that do not change: method, data, size, exchange, promises of privacy, names of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from feddbp_common.config.privacy_text import privacy_sentences
from feddbp_common.config.run import RunConfig
from feddbp_common.humanize import quantity

_NAMES: Final = {
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "digits": tuple("0123456789"),
}
"""Names of classes that a data set's own files give, and a run's configuration does not."""


def run_info(config: RunConfig, *, run_id: str, version: str = "", shares_prototypes: bool) -> dict[str, Any]:
    return {
        "id": run_id,
        "method": config.method,
        "title": config.method_spec.title,
        "dataset": config.data.dataset,
        "alpha": config.data.alpha,
        "seed": config.seed,
        "clients": config.clients,
        "rounds": config.rounds,
        "participation": config.participation,
        "local_epochs": config.training.local_epochs,
        "exchange": exchange_text(dict(config)),
        "privacy": privacy_sentences(config),
        "class_names": class_names(config),
        "version": version,
        "shares_prototypes": shares_prototypes,
        "loss_terms": config.method_spec.all_loss_terms,
        "k_top": getattr(config.settings, "k_top", 0),
    }


def exchange_text(config: Mapping[str, Any]) -> str:
    """How a run departs from an exchange after every round, by its configuration; empty if it does not."""
    if config.get("exchange") == "off":
        return "no exchange"
    if not (rounds := config.get("finetune_rounds")):
        return ""
    last = f"in the last {quantity(rounds, 'round')}" if rounds > 1 else "in the last round"
    keeps_state = config.get("finetune_state") == "last"
    return f"no exchange {last}" + (", with the state after the last exchange" if keeps_state else "")


def class_names(config: RunConfig) -> list[str]:
    """The run's own names, the data set's, or numbers."""
    known = config.data.class_names or _NAMES.get(config.data.dataset, ())
    classes = config.exchange_shape.classes
    return [known[number] if number < len(known) else f"class {number}" for number in range(classes)]
