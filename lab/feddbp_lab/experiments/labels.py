"""Axes and their values as a table's head or a figure's legend names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from feddbp_common.config.catalog import DATASETS
from feddbp_common.methods import METHODS, PRESET_MARK

_TITLES: Final = {
    "method": "Method",
    "data.dataset": "Data set",
    "data.alpha": "α",
    "training.local_epochs": "E",
    "training.learning_rate": "learning rate",
    "training.model_group": "models",
    "training.batch_size": "B",
    "method_settings": "Settings",
    "method_settings.l_d_form": "form of L_d",
    "method_settings.l_s_reduction": "L_s over channels",
    "method_settings.k_top": "K_top",
    "method_settings.eta": "η",
    "method_settings.tau": "τ",
}
SPEAKS_FOR_ITSELF: Final = ("method", "data.dataset", "training.model_group", "method_settings")
"""Axes whose values need no name before them."""


def axis_title(name: str) -> str:
    return _TITLES.get(name, name.rpartition(".")[2].replace("_", " "))


def value_label(axis: str, value: Any) -> str:
    if axis == "method":
        name, mark, preset = str(value).partition(PRESET_MARK)
        return f"{METHODS[name].title}{mark}{preset}" if name in METHODS else str(value)
    if axis == "data.dataset" and value in DATASETS:
        return DATASETS[value].title
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={value_label('', setting)}" for name, setting in value.items()) or "defaults"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def heading(axis: str, title: str, label: str) -> str:
    """A value as a column's head, where its axis is not named beside it."""
    return label if axis in SPEAKS_FOR_ITSELF or "." not in axis else f"{title} = {label}"
