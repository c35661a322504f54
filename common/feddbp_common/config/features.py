"""What a run needs of the software that takes part in it, by name.

A setting that was added after version 0.1.0 is a feature under its dotted name, such as `training.augment`; a method's
setting is one under `method_settings`. A client that lacks a feature would train as if the setting did not exist, so
the server names the features of its run, and admits only clients that have them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from feddbp_common.config.identity import added_names, added_settings
from feddbp_common.config.run import RunConfig
from feddbp_common.methods import method_named

_METHOD: Final = "method_settings"


def required_features(run: RunConfig) -> list[str]:
    """Returns the features without which a client cannot take part, sorted."""
    return sorted([*added_settings(run), *(f"{_METHOD}.{name}" for name in added_settings(run.settings))])


def supported_features(method: str) -> list[str]:
    """Returns the features this version has for runs of a method, sorted."""
    settings = method_named(method).settings
    return sorted([*added_names(RunConfig), *(f"{_METHOD}.{name}" for name in added_names(settings))])


def missing_features(required: Iterable[str], supported: Iterable[str]) -> list[str]:
    return sorted({*required} - {*supported})


def describe_missing(features: Iterable[str], *, client: str, server: str) -> str:
    """Says which features a client lacks, and which versions meet."""
    return (
        f"the run needs {', '.join(features)}, which this client (feddbp {client}) does not have; "
        f"the server is feddbp {server}: install that version on the client"
    )
