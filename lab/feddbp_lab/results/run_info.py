"""The facts of a run that do not change: method, data, size, promises of privacy, names of classes."""

from __future__ import annotations

from typing import Any, Final

from feddbp_common.config.privacy_text import privacy_sentences
from feddbp_common.config.run import RunConfig

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
        "privacy": privacy_sentences(config),
        "class_names": class_names(config),
        "version": version,
        "shares_prototypes": shares_prototypes,
        "loss_terms": config.method_spec.all_loss_terms,
        "k_top": getattr(config.settings, "k_top", 0),
    }


def class_names(config: RunConfig) -> list[str]:
    """The run's own names, the data set's, or numbers."""
    known = config.data.class_names or _NAMES.get(config.data.dataset, ())
    classes = config.exchange_shape.classes
    return [known[number] if number < len(known) else f"class {number}" for number in range(classes)]
