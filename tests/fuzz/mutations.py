"""Mutations of a message: of its bytes, of its fields' values, and encodings that no encoder writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

MessageT = TypeVar("MessageT", bound=Message)

WHOLE_NUMBERS = (0, 1, 2, 127, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
REAL_NUMBERS = (float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 5e-324, 1e-310, 1e308, 2.0**64)
ENUM_NUMBERS = (0, 5, 6, 99, -1, 2**31 - 1, -(2**31))
TEXTS = (
    "",
    " ",
    "\x00",
    "line\nline",
    "\r\n\x1b[31m",
    "\u202ebackwards",
    "naïve ✓ 名前 🙂",
    "e\u0301" * 50,
    "../../../etc/passwd",
    "'; DROP TABLE run; --",
    "%s%n{0}",
    "x" * 257,
    "名" * 5_000,
    "y" * 100_000,
)
NOT_TEXT = (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"ok\x80")
"""Invalid UTF-8: a stray byte, an overlong null, half a surrogate pair."""


# --- bytes ---


def mutated_bytes(data: bytes, random: Random) -> bytes:
    """The bytes after one to four random mutations."""
    mutated = bytearray(data)
    for _ in range(random.randint(1, 4)):
        random.choice(_BYTE_MUTATIONS)(mutated, random)
    return bytes(mutated)


def _flip_bit(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _replace_byte(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def _insert_noise(data: bytearray, random: Random) -> None:
    at = random.randint(0, len(data))
    data[at:at] = random.randbytes(random.randint(1, 16))


def _delete_slice(data: bytearray, random: Random) -> None:
    at = random.randint(0, len(data))
    del data[at : at + random.randint(1, 16)]


def _truncate(data: bytearray, random: Random) -> None:
    del data[random.randint(0, len(data)) :]


def _repeat_slice(data: bytearray, random: Random) -> None:
    at = random.randint(0, len(data))
    piece = data[at : at + random.randint(1, 64)]
    data[at:at] = piece * random.randint(1, 4)


def _replace_all(data: bytearray, random: Random) -> None:
    data[:] = random.randbytes(random.randint(0, 200))


_BYTE_MUTATIONS: tuple[Callable[[bytearray, Random], None], ...] = (
    _flip_bit,
    _replace_byte,
    _insert_noise,
    _delete_slice,
    _truncate,
    _repeat_slice,
    _replace_all,
)


# --- fields ---


def mutate_field(message: Message, random: Random) -> str:
    """Gives a random field of the message, at any depth, an odd value; returns the field's name."""
    holder, field = random.choice(list(_fields_of(message)))
    if _is_map(field):
        _mutate_map(getattr(holder, field.name), field, random)
    elif field.is_repeated:
        _mutate_list(holder, field, random)
    elif field.message_type is not None:
        _mutate_message(holder, field, random)
    else:
        setattr(holder, field.name, _odd_value(field, random))
    return str(field.full_name)


def fields_of_type(kind: type[Message]) -> list[FieldDescriptor]:
    # The type stubs have a second class for the descriptors of protobuf's C implementation, with the same attributes.
    return cast(list[FieldDescriptor], list(kind.DESCRIPTOR.fields))


def _fields_of(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    for field in fields_of_type(type(message)):
        yield message, field
        if field.message_type is None:
            continue
        if _is_map(field):
            for entry in list(getattr(message, field.name).values())[:4]:
                if isinstance(entry, Message):
                    yield from _fields_of(entry)
        elif field.is_repeated:
            for entry in getattr(message, field.name)[:4]:
                yield from _fields_of(entry)
        elif message.HasField(field.name):
            yield from _fields_of(getattr(message, field.name))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _mutate_map(entries: Any, field: FieldDescriptor, random: Random) -> None:
    """A key is lost, or another one is there; messages can only be made by access to their key."""
    assert field.message_type is not None
    kinds = {each.name: each for each in field.message_type.fields}
    if entries and random.random() < 0.5:
        del entries[random.choice(sorted(entries))]
    elif kinds["key"].type == FieldDescriptor.TYPE_STRING:
        entries[random.choice(TEXTS)[:200]]
    else:
        key = random.choice((*entries, *WHOLE_NUMBERS[:8]))
        entries[key] = random.randbytes(random.choice((0, 32, 66, 82, 300)))


def _mutate_list(holder: Message, field: FieldDescriptor, random: Random) -> None:
    entries = getattr(holder, field.name)
    before = list(entries)
    change = random.choice(("lost", "twice", "reversed", "shorter", "longer", "odd", "many"))
    del entries[:]
    if change == "twice":
        before += before
    elif change == "reversed":
        before.reverse()
    elif change == "shorter":
        before = before[:-1]
    elif change in ("longer", "many"):
        before += [_new_entry(field, random)] * (1 if change == "longer" else 2_000)
    elif change == "odd":
        before = [_new_entry(field, random), *before[1:]]
    if change != "lost":
        entries.extend(before)


def _mutate_message(holder: Message, field: FieldDescriptor, random: Random) -> None:
    if random.random() < 0.5:
        holder.ClearField(field.name)
    else:  # present, but empty; in a oneof, it replaces the other field
        holder.ClearField(field.name)
        getattr(holder, field.name).SetInParent()


def _new_entry(field: FieldDescriptor, random: Random) -> Any:
    if field.message_type is not None:
        return GetMessageClass(field.message_type)()
    return _odd_value(field, random)


def _odd_value(field: FieldDescriptor, random: Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return random.choice(ENUM_NUMBERS)
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return random.choice(REAL_NUMBERS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return random.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return random.randbytes(random.choice((0, 1, 31, 32, 33, 1000)))
        return random.choice(TEXTS)
    bits = 64 if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 32
    number = random.choice(WHOLE_NUMBERS) % 2**bits
    signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    return number - 2**bits if signed and number >= 2 ** (bits - 1) else number


# --- invalid encodings ---


def _varint(number: int) -> bytes:
    encoded: bytes = _VarintBytes(number)
    return encoded


def with_invalid_field(data: bytes, numbers: range, random: Random) -> bytes:
    """Appends a field with an invalid encoding; of fields that occur twice, the last counts."""
    number = random.choice(numbers)
    kind = random.choice(("negative", "overlong", "wrong type", "not text", "group", "too long", "unknown"))
    if kind == "negative":  # minus one in a field of unsigned numbers
        return data + _varint(number << 3) + b"\xff" * 9 + b"\x01"
    if kind == "overlong":
        return data + _varint(number << 3) + b"\x80" * random.randint(9, 12) + b"\x01"
    if kind == "wrong type":
        wire_type, body = random.choice(((1, random.randbytes(8)), (5, random.randbytes(4)), (2, b"\x03abc")))
        return data + _varint(number << 3 | wire_type) + body
    if kind == "not text":
        text = random.choice(NOT_TEXT)
        return data + _varint(number << 3 | 2) + _varint(len(text)) + text
    if kind == "group":
        return data + _varint(number << 3 | 3) * random.choice((1, 200))
    if kind == "too long":  # a length beyond the end of the message
        return data + _varint(number << 3 | 2) + _varint(random.choice((10**6, 2**31, 2**40)))
    return data + _varint(random.randint(100, 2**29 - 1) << 3) + b"\x01"
