"""Hypothesis strategies for any message of the protocol, with fields absent, ordinary or odd."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from mutations import ENUM_NUMBERS, REAL_NUMBERS, TEXTS, WHOLE_NUMBERS, MessageT, fields_of_type


def any_message(kind: type[MessageT], **chosen: SearchStrategy[Any]) -> SearchStrategy[MessageT]:
    """Messages of a type; `chosen` gives the strategies of single fields."""
    optional = {field.name: chosen.get(field.name, _of_field(field)) for field in fields_of_type(kind)}
    return st.fixed_dictionaries({}, optional=optional).map(lambda fields: kind(**fields))


def _of_field(field: FieldDescriptor) -> SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        parts = field.message_type.fields_by_name
        return st.dictionaries(_of_field(parts["key"]), _of_field(parts["value"]), max_size=8)
    one = any_message(GetMessageClass(field.message_type)) if field.message_type is not None else _scalar(field)
    return st.lists(one, max_size=8) if field.is_repeated else one


def _scalar(field: FieldDescriptor) -> SearchStrategy[Any]:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from(ENUM_NUMBERS) | st.integers(0, 6)
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return st.sampled_from(REAL_NUMBERS) | st.floats()
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return st.binary(max_size=64)
        return st.sampled_from(TEXTS[:-2]) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    most = 2**64 - 1 if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 2**32 - 1
    return st.sampled_from([number for number in WHOLE_NUMBERS if number <= most]) | st.integers(0, 20)
