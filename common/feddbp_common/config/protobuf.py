"""Converts a configuration model to its protobuf message and back, driven by the declarations of both.

A field of the model corresponds to the field of the message with the same name, or with the name that
`json_schema_extra` gives as `proto`. Enum members correspond by name: `top_channels` is FISHER_FORM_TOP_CHANNELS.
None is a field that is not set. A protobuf field without presence cannot tell that from zero: zero is read as None
only if `json_schema_extra` says `zero_is_none`.

Settings that were added after version 0.1.0 have no field of their own: they travel in the Struct `added_settings`, by
dotted name, and only where they are not at their default.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeVar, cast, get_args

from google.protobuf import json_format
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from google.protobuf.unknown_fields import UnknownFieldSet
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from feddbp_common.config.identity import added_names, added_settings, is_added
from feddbp_common.config.nested import Location, put
from feddbp_common.config.types import field_extra
from feddbp_common.errors import ConfigurationError
from feddbp_common.version import VERSION

MessageT = TypeVar("MessageT", bound=Message)

ADDED_SETTINGS: Final = "added_settings"
_UNSPECIFIED: Final = "UNSPECIFIED"
_UNKNOWN: Final = f"is not known to feddbp {VERSION}; use the version of the sender"
_WRITERS: Final[dict[str, Callable[[Any, Any], object]]] = {
    Struct.DESCRIPTOR.full_name: Struct.update,
    Duration.DESCRIPTOR.full_name: Duration.FromTimedelta,
}
_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    Struct.DESCRIPTOR.full_name: json_format.MessageToDict,
    Duration.DESCRIPTOR.full_name: Duration.ToTimedelta,
}


def to_message(config: BaseModel, message_type: type[MessageT]) -> MessageT:
    message = message_type()
    _fill(message, config)
    added = added_settings(config)
    if added:
        cast(Any, message).added_settings.update(added)
    return message


def values_in(message: Message, model: type[BaseModel]) -> dict[str, Any]:
    """Returns the fields of the model as nested dicts, for pydantic to validate.

    Raises:
        ConfigurationError: the message has a field or an enum value that this version does not know, or a value that
            Python cannot represent; the text names the field.
    """
    values = _values(message, model, ())
    if ADDED_SETTINGS in message.DESCRIPTOR.fields_by_name:
        _put_added(values, model, getattr(message, ADDED_SETTINGS))
    return values


def _put_added(values: dict[str, Any], model: type[BaseModel], added: Struct) -> None:
    known = added_names(model)
    for name, value in _read(added, (ADDED_SETTINGS,)).items():
        if name not in known:
            raise ConfigurationError(f"setting {name!r} {_UNKNOWN}")
        put(values, tuple(name.split(".")), value)


def proto_name(name: str, field: FieldInfo) -> str:
    """Returns the name in the message of a model's field."""
    return str(field_extra(field).get("proto", name))


def _counterpart(message: Message, name: str, field: FieldInfo) -> FieldDescriptor:
    return cast(FieldDescriptor, message.DESCRIPTOR.fields_by_name[proto_name(name, field)])


def _fill(message: Message, config: BaseModel) -> None:
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if value is not None and not is_added(field):
            _set(message, _counterpart(message, name, field), value)


def _set(message: Message, target: FieldDescriptor, value: Any) -> None:
    if target.is_repeated:
        getattr(message, target.name).extend(value)
    elif target.message_type is not None:
        part: Message = getattr(message, target.name)
        part.SetInParent()  # a message without any field set is sent too
        if isinstance(value, BaseModel):
            _fill(part, value)
        else:
            _WRITERS[target.message_type.full_name](part, value)
    elif target.enum_type is not None:
        setattr(message, target.name, target.enum_type.values_by_name[_enum_name(target.enum_type, value)].number)
    else:
        setattr(message, target.name, value)


def _values(message: Message, model: type[BaseModel], location: Location) -> dict[str, Any]:
    unknown = UnknownFieldSet(message)
    if len(unknown):
        raise ConfigurationError(f"{'.'.join((*location, ''))}field {unknown[0].field_number} {_UNKNOWN}")
    values = {}
    for name, field in model.model_fields.items():
        if is_added(field):
            continue
        values[name] = _value(message, _counterpart(message, name, field), field, (*location, name))
    return values


def _value(message: Message, source: FieldDescriptor, field: FieldInfo, location: Location) -> Any:
    value = getattr(message, source.name)
    if _is_none(message, source, field):
        return None
    if source.is_repeated:
        return tuple(value)
    if source.enum_type is not None:
        return _enum_value(source.enum_type, value, location)
    if source.message_type is None:
        return value
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
        return _values(value, field.annotation, location)
    return _read(value, location)


def _read(message: Message, location: Location) -> Any:
    try:
        return _READERS[message.DESCRIPTOR.full_name](message)
    except (ValueError, OverflowError, RecursionError, json_format.Error) as error:
        raise ConfigurationError(f"{'.'.join(location)}: has a value that cannot be read ({error})") from None


def _is_none(message: Message, source: FieldDescriptor, field: FieldInfo) -> bool:
    if source.has_presence:
        return type(None) in get_args(field.annotation) and not message.HasField(source.name)
    return field_extra(field).get("zero_is_none", False) and not getattr(message, source.name)


def _enum_value(enum: EnumDescriptor, number: int, location: Location) -> str:
    known = enum.values_by_number.get(number)
    if known is None:
        raise ConfigurationError(f"{'.'.join(location)}: value {number} {_UNKNOWN}")
    if known.name == _prefix(enum) + _UNSPECIFIED:
        raise ConfigurationError(f"{'.'.join(location)}: is not set")
    return known.name.removeprefix(_prefix(enum)).lower()


def _enum_name(enum: EnumDescriptor, member: Enum) -> str:
    return _prefix(enum) + str(member.value).upper()


def _prefix(enum: EnumDescriptor) -> str:
    """Returns what all names begin with; by the protocol's convention the first value is PREFIX_UNSPECIFIED."""
    return enum.values[0].name.removesuffix(_UNSPECIFIED)
