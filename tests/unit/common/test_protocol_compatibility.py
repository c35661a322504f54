"""The protocol only grows within v1: nothing of the last release is removed, renumbered, renamed or retyped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from feddbp.v1 import federation_pb2 as pb

RELEASED = Path(__file__).parents[2] / "fixtures" / "v0.1.0" / "federation.binpb"
"""`protoc --descriptor_set_out` of the last release."""


def released() -> FileDescriptorProto:
    return FileDescriptorSet.FromString(RELEASED.read_bytes()).file[0]


def current() -> FileDescriptorProto:
    file = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    return file


def facts(file: FileDescriptorProto) -> dict[str, object]:
    """Everything a peer of another version depends on, by name."""
    return {"package": file.package, **dict(_facts(file))}


def _facts(file: FileDescriptorProto) -> Iterator[tuple[str, object]]:
    for message in file.message_type:
        yield from _message_facts(message.name, message)
    for enum in file.enum_type:
        yield from _enum_facts(enum.name, enum)
    for service in file.service:
        for method in service.method:
            call = (method.input_type, method.client_streaming, method.output_type, method.server_streaming)
            yield f"{service.name}/{method.name}", call


def _message_facts(name: str, message: DescriptorProto) -> Iterator[tuple[str, object]]:
    for field in message.field:
        yield f"{name}#{field.number}", _field_facts(message, field)
    for nested in message.nested_type:
        yield from _message_facts(f"{name}.{nested.name}", nested)
    for enum in message.enum_type:
        yield from _enum_facts(f"{name}.{enum.name}", enum)


def _field_facts(message: DescriptorProto, field: FieldDescriptorProto) -> tuple[object, ...]:
    in_oneof = field.HasField("oneof_index") and not field.proto3_optional
    oneof = message.oneof_decl[field.oneof_index].name if in_oneof else ""
    return field.name, field.type, field.label, field.type_name, field.proto3_optional, oneof


def _enum_facts(name: str, enum: EnumDescriptorProto) -> Iterator[tuple[str, object]]:
    for value in enum.value:
        yield f"{name}={value.number}", value.name


def broken(old: FileDescriptorProto, new: FileDescriptorProto) -> dict[str, tuple[object, object]]:
    now = facts(new)
    return {name: (fact, now.get(name)) for name, fact in facts(old).items() if now.get(name) != fact}


def test_everything_of_the_last_release_is_as_it_was() -> None:
    assert broken(released(), current()) == {}


def test_the_release_has_the_calls_clients_make() -> None:
    assert {"Federation/Join", "Federation/Upload", "JoinRequest#1", "RefusalReason=1"} <= facts(released()).keys()


def _remove_field(file: FileDescriptorProto) -> None:
    del file.message_type[0].field[0]


def _renumber_field(file: FileDescriptorProto) -> None:
    file.message_type[0].field[0].number = 99


def _rename_field(file: FileDescriptorProto) -> None:
    file.message_type[0].field[0].name = "other"


def _retype_field(file: FileDescriptorProto) -> None:
    file.message_type[0].field[0].type = FieldDescriptorProto.TYPE_BYTES


def _remove_enum_value(file: FileDescriptorProto) -> None:
    del file.enum_type[0].value[1]


def _make_a_call_unary(file: FileDescriptorProto) -> None:
    next(method for method in file.service[0].method if method.client_streaming).client_streaming = False


@pytest.mark.parametrize(
    "change",
    [_remove_field, _renumber_field, _rename_field, _retype_field, _remove_enum_value, _make_a_call_unary],
)
def test_a_breaking_change_is_found(change: object) -> None:
    changed = current()
    assert callable(change)
    change(changed)
    assert broken(released(), changed)
