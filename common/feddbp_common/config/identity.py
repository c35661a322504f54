"""The identity of a configuration: what it means, whichever version wrote it down.

Settings of version 0.1.0 are always part of it. A setting that was added later says so in its declaration, by
`added_in`, and is left out at its default, which has to mean "as before": a new setting therefore changes no
fingerprint, and so orphans no state directory, no checkpoint and no cell of an experiment. Settings of a group that was
added are added with it.

The name of a preset, which declares `unfolds`, is no part of it: the settings that it fills in are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from feddbp_common.config.nested import Location, without
from feddbp_common.config.types import field_extra

_VERSION: Final = "added_in"


def added_in(version: str, **extra: Any) -> dict[str, Any]:
    """Declares, as `json_schema_extra`, the version in which a setting was added."""
    return {_VERSION: version, **extra}


def is_added(field: FieldInfo) -> bool:
    """Whether the setting was added after version 0.1.0."""
    return _VERSION in field_extra(field)


def canonical(config: BaseModel) -> dict[str, Any]:
    """Returns the configuration as JSON values, without added settings at their default."""
    return _canonical(config, added=False)


def visible(config: BaseModel) -> dict[str, Any]:
    """Returns the configuration as JSON values, without settings that have no effect in it."""
    values = config.model_dump(mode="json")
    for name in values:
        part = getattr(config, name)
        if isinstance(part, BaseModel):
            values[name] = visible(part)
    for location in getattr(config, "without_effect", ()):
        values = without(values, location)
    return values


def added_settings(config: BaseModel) -> dict[str, Any]:
    """Returns added settings that are not at their default, as JSON values by dotted name."""
    return {".".join(location): value for location, value in _changed(config, canonical(config), (), added=False)}


def added_names(model: type[BaseModel]) -> frozenset[str]:
    """Returns the dotted names of all settings that were added to a model."""
    return frozenset(".".join(location) for location in _declared(model, (), added=False))


def _canonical(config: BaseModel, *, added: bool) -> dict[str, Any]:
    values = config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        part, counts = getattr(config, name), added or is_added(field)
        if isinstance(part, BaseModel):
            values[name] = _canonical(part, added=counts)
            if counts and not values[name]:
                del values[name]
        elif (counts and part == field.get_default(call_default_factory=True)) or field_extra(field).get("unfolds"):
            del values[name]
    return values


def _changed(
    config: BaseModel, values: dict[str, Any], location: Location, *, added: bool
) -> Iterator[tuple[Location, Any]]:
    for name, field in type(config).model_fields.items():
        part, counts = getattr(config, name), added or is_added(field)
        if isinstance(part, BaseModel):
            yield from _changed(part, values.get(name, {}), (*location, name), added=counts)
        elif counts and name in values:
            yield (*location, name), values[name]


def _declared(model: type[BaseModel], location: Location, *, added: bool) -> Iterator[Location]:
    for name, field in model.model_fields.items():
        counts = added or is_added(field)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _declared(field.annotation, (*location, name), added=counts)
        elif counts:
            yield (*location, name)
