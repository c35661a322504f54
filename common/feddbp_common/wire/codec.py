"""Encodes payloads of numpy arrays as a protobuf manifest and raw little-endian bytes, and decodes them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadError, refuse
from feddbp_common.wire.payload import (
    FISHER,
    PROTOTYPES,
    AnyArray,
    FisherScores,
    FloatArray,
    Payload,
    PrototypeSet,
    TopChannels,
)

Buffer: TypeAlias = bytes | bytearray | memoryview


class WireType(Enum):
    """Element types a tensor may have on the wire."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT32 = "int32"
    UINT16 = "uint16"
    UINT64 = "uint64"

    @property
    def item_bytes(self) -> int:
        return _STORAGE[self].itemsize


REAL_TYPES: Final = (WireType.FLOAT32, WireType.FLOAT16, WireType.BFLOAT16)
LARGEST: Final[dict[WireType, float]] = {
    WireType.FLOAT32: float(np.finfo(np.float32).max),
    WireType.FLOAT16: float(np.finfo(np.float16).max),
    WireType.BFLOAT16: float(np.array(0x7F7F_0000, dtype=np.uint32).view(np.float32)),
}
"""The largest finite value of each real type."""
_STORAGE: Final[dict[WireType, np.dtype[np.generic]]] = {
    WireType.FLOAT32: np.dtype("<f4"),
    WireType.FLOAT16: np.dtype("<f2"),
    WireType.BFLOAT16: np.dtype("<u2"),  # numpy has no bfloat16: its bits are kept as integers
    WireType.INT32: np.dtype("<i4"),
    WireType.UINT16: np.dtype("<u2"),
    WireType.UINT64: np.dtype("<u8"),
}
_TO_PROTO: Final[dict[WireType, pb.DType.ValueType]] = {
    WireType.FLOAT32: pb.DTYPE_FLOAT32,
    WireType.FLOAT16: pb.DTYPE_FLOAT16,
    WireType.BFLOAT16: pb.DTYPE_BFLOAT16,
    WireType.INT32: pb.DTYPE_INT32,
    WireType.UINT16: pb.DTYPE_UINT16,
    WireType.UINT64: pb.DTYPE_UINT64,
}
_FROM_PROTO: Final = {number: wire_type for wire_type, number in _TO_PROTO.items()}
_CACHED_NUMBERS: Final = 4096
_FLOAT16_OVERFLOW: Final = 65_520.0
"""Values from here on round to infinity; smaller ones round to a finite value."""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """An encoded payload: its manifest, and the bytes of each tensor in the manifest's order."""

    manifest: pb.Manifest
    segments: tuple[memoryview, ...]

    def body(self) -> bytes:
        return b"".join(self.segments)


def encode(payload: Payload, *, real_type: WireType = WireType.FLOAT32) -> Encoded:
    """Encodes a payload; float32 arrays are viewed, not copied."""
    manifest = pb.Manifest()
    if payload.prototypes is not None:
        manifest.prototypes.class_ids.extend(payload.prototypes.class_ids.tolist())
        if payload.prototypes.counts is not None:
            manifest.prototypes.counts.extend(payload.prototypes.counts.tolist())
    segments = []
    for name, array in payload.arrays():
        wire_type, stored = _to_wire(name, array, real_type)
        _declaration_for(name, payload, manifest).CopyFrom(
            pb.Tensor(name=name, dtype=_TO_PROTO[wire_type], shape=array.shape)
        )
        segments.append(stored.data.cast("B") if stored.size else memoryview(b""))
    manifest.total_bytes = sum(len(segment) for segment in segments)
    manifest.sha256 = digest_of(manifest, segments)
    return Encoded(manifest=manifest, segments=tuple(segments))


def decode(manifest: pb.Manifest, body: Buffer, *, prototypes_only: bool = False) -> Payload:
    """Decodes a complete body; real types become float32.

    Arrays view `body` if their type needs no conversion. With `prototypes_only`, `body` may end after the prototypes.
    """
    view = memoryview(body)
    arrays: dict[str, AnyArray] = {}
    offset = 0
    for tensor in declarations(manifest):
        if prototypes_only and tensor.name != PROTOTYPES:
            break
        size = tensor_bytes(tensor)
        if offset + size > len(view):
            refuse(tensor.name, f"declares {size} bytes but only {len(view) - offset} follow")
        arrays[tensor.name] = _from_wire(tensor, view[offset : offset + size])
        offset += size
    if not prototypes_only and offset != len(view):
        refuse("total_bytes", f"{len(view) - offset} bytes follow that no tensor declares")
    return _assemble(manifest, arrays)


def declarations(manifest: pb.Manifest) -> list[pb.Tensor]:
    """Returns all declared tensors in the order of their bytes in the body."""
    declared = []
    if manifest.HasField("prototypes"):
        declared.append(_named(manifest.prototypes.matrix, PROTOTYPES))
    if manifest.HasField("fisher"):
        form = manifest.fisher.WhichOneof("form")
        if form is None:
            refuse(FISHER, "neither scores nor top_channels is set")
        declared.append(_named(manifest.fisher.scores if form == "scores" else manifest.fisher.top_channels, FISHER))
    declared.extend(manifest.tensors)
    return declared


def wire_type_of(tensor: pb.Tensor) -> WireType:
    try:
        return _FROM_PROTO[tensor.dtype]
    except KeyError:
        # the name is not checked yet: it must not contain a line break when logged
        name = tensor.name[:64] if tensor.name and tensor.name.isprintable() else repr(tensor.name[:64])
        raise PayloadError(name, f"dtype {tensor.dtype} is not defined by the protocol") from None


def tensor_bytes(tensor: pb.Tensor) -> int:
    return prod(tensor.shape) * wire_type_of(tensor).item_bytes


def prototype_bytes(manifest: pb.Manifest) -> int:
    """Returns the length of the prototypes, with which the body begins."""
    return tensor_bytes(manifest.prototypes.matrix) if manifest.HasField("prototypes") else 0


def digest_of(manifest: pb.Manifest, segments: Iterable[Buffer]) -> bytes:
    """Returns the SHA-256 of a payload's content, which does not depend on protobuf's serialisation."""
    digest = hashlib.sha256()
    for tensor in declarations(manifest):
        shape = ",".join(map(str, tensor.shape))
        digest.update(f"{tensor.name}:{wire_type_of(tensor).value}:{shape}\n".encode())
    for numbers in (manifest.prototypes.class_ids, manifest.prototypes.counts):
        # clients upload the same classes in every round
        digest.update(_cached_line(tuple(numbers)) if len(numbers) <= _CACHED_NUMBERS else _line(numbers))
    for segment in segments:
        digest.update(segment)
    return digest.digest()


def _line(numbers: Iterable[int]) -> bytes:
    return f"{','.join(map(str, numbers))}\n".encode()


_cached_line: Final = functools.lru_cache(maxsize=64)(_line)


def _declaration_for(name: str, payload: Payload, manifest: pb.Manifest) -> pb.Tensor:
    if name == PROTOTYPES:
        return manifest.prototypes.matrix
    if name == FISHER:
        full = isinstance(payload.fisher, FisherScores)
        return manifest.fisher.scores if full else manifest.fisher.top_channels
    return manifest.tensors.add()


def _named(tensor: pb.Tensor, name: str) -> pb.Tensor:
    if tensor.name == name:
        return tensor
    named = pb.Tensor()
    named.CopyFrom(tensor)
    named.name = name
    return named


def _to_wire(name: str, array: AnyArray, real_type: WireType) -> tuple[WireType, AnyArray]:
    if array.dtype == np.float32:
        return real_type, np.ascontiguousarray(_WRITERS[real_type](name, array))
    for wire_type in (WireType.INT32, WireType.UINT16, WireType.UINT64):
        if array.dtype == _STORAGE[wire_type]:
            return wire_type, np.ascontiguousarray(array)
    raise PayloadError(name, f"cannot send an array of {array.dtype}")


def _to_float16(name: str, array: FloatArray) -> AnyArray:
    largest = float(np.abs(array).max(initial=0.0))
    if largest >= _FLOAT16_OVERFLOW:
        refuse(name, f"has a value of {largest:.3g}, too large for float16; use float32 or bfloat16")
    return array.astype("<f2")


def _to_bfloat16(_: str, array: FloatArray) -> AnyArray:
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4")
    # round half to even on the 16 bits that are dropped
    rounded: AnyArray = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    # adding to the bits of some NaNs, such as CUDA's, would overflow into the sign and give zero
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)


_WRITERS: Final[dict[WireType, Callable[[str, FloatArray], AnyArray]]] = {
    WireType.FLOAT32: lambda _, array: array.astype("<f4", copy=False),
    WireType.FLOAT16: _to_float16,
    WireType.BFLOAT16: _to_bfloat16,
}


def _from_wire(tensor: pb.Tensor, data: memoryview) -> AnyArray:
    wire_type = wire_type_of(tensor)
    array = np.frombuffer(data, dtype=_STORAGE[wire_type]).reshape(tuple(tensor.shape))
    if wire_type is WireType.BFLOAT16:
        return np.asarray(array.astype("<u4") << 16).view("<f4")
    if wire_type is WireType.FLOAT16:
        return array.astype(np.float32)
    return array


def _assemble(manifest: pb.Manifest, arrays: dict[str, AnyArray]) -> Payload:
    prototypes = None
    if PROTOTYPES in arrays:
        declared = manifest.prototypes
        prototypes = PrototypeSet(
            class_ids=_int32(declared.class_ids),
            counts=_int32(declared.counts) if declared.counts else None,
            vectors=arrays.pop(PROTOTYPES),
        )
    fisher: FisherScores | TopChannels | None = None
    if FISHER in arrays:
        matrix = arrays.pop(FISHER)
        fisher = FisherScores(matrix) if manifest.fisher.HasField("scores") else TopChannels(matrix)
    return Payload(prototypes=prototypes, fisher=fisher, tensors=arrays)


def _int32(numbers: Sequence[int]) -> npt.NDArray[np.int32]:
    return np.fromiter(numbers, dtype=np.int32, count=len(numbers))
