"""Options of runs by their dotted names: which there are, and what a run with some of them is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from feddbp_common.config.catalog import CUSTOM_DATASET, DATASETS
from feddbp_common.config.diagnostics import FieldError, did_you_mean
from feddbp_common.config.nested import dotted, undotted
from feddbp_common.config.run import RunConfig, resolve_settings
from feddbp_common.config.sources import options_of
from feddbp_common.errors import ConfigurationError
from feddbp_common.methods import METHODS, PRESET_MARK, Method, method_named, split_preset

METHOD: Final = "method"
SETTINGS: Final = "method_settings"
DATASET: Final = "data.dataset"
OPTIONS: Final = frozenset(".".join(option.location) for option in options_of(RunConfig))
_DEFAULT_METHOD: Final = RunConfig.model_fields["method"].default


def leaves_of(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The options of a nested table by their dotted names."""
    leaves = dotted(table)
    check_names(leaves, where)
    for name, value in leaves.items():
        if isinstance(value, list):
            raise ConfigurationError(f"{where}.{name}: {value!r} is not a single value; lists belong under axes")
    return leaves


def check_names(names: Iterable[str], where: str) -> None:
    for name in names:
        if name == "seed":
            raise ConfigurationError(f"{where}: seeds are given by `seeds` in the file, or by --seeds")
        if not is_option(name):
            raise ConfigurationError(f"{where}: there is no option {name!r}{did_you_mean(name, OPTIONS)}")


def is_option(name: str) -> bool:
    # the names of settings depend on the method, whose own validation checks them
    return (name in OPTIONS and name != "seed") or name.startswith(f"{SETTINGS}.")


def run_of(options: Mapping[str, Any]) -> RunConfig:
    try:
        run = RunConfig.model_validate(undotted(options))
    except ValidationError as error:
        first = FieldError.first_in(error)
        raise ConfigurationError(f"{first} (got {first.value!r})") from None
    if run.data.dataset == CUSTOM_DATASET:
        raise ConfigurationError("data.dataset: only public data sets can be split; custom data are a client's own")
    return run


def titles_of(options: Mapping[str, Any]) -> dict[str, str]:
    """The names under which a profile may have options for such a run, from general to special, with their titles."""
    titles: dict[str, str] = {}
    dataset, (method, settings) = str(options.get(DATASET)), _method_of(options)
    if dataset in DATASETS:
        titles[dataset] = DATASETS[dataset].title
    if method not in METHODS:
        return titles  # refused when the run is made
    spec = METHODS[method]
    titles[method] = spec.title
    for preset in presets_in(spec, settings):
        titles[f"{method}{PRESET_MARK}{preset}"] = f"{spec.title}{PRESET_MARK}{preset}"
    return titles


def presets_in(method: Method, settings: Mapping[str, Any]) -> list[str]:
    """The presets whose settings are all among these, that with the most settings last."""
    held = [name for name, preset in method.presets.items() if preset.settings.items() <= settings.items()]
    return sorted(held, key=lambda name: len(method.presets[name].settings))


def has_history(options: Mapping[str, Any]) -> bool:
    """Whether the server of such a run keeps a state that no single upload gives."""
    method, settings = _method_of(options)
    spec = method_named(method)
    return spec.has_history(resolve_settings(spec, settings))


def _method_of(options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method's name, and the settings that are given, by a preset or one by one."""
    method, settings = split_preset(str(options.get(METHOD, _DEFAULT_METHOD)))
    prefix = f"{SETTINGS}."
    given = {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
    return method, {**settings, **given}
