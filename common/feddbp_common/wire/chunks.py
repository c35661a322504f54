"""Cuts the body of a payload into chunks and assembles received chunks into a body of the declared size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import refuse

CHUNK_BYTES: Final = 256 * 1024
_CHUNK_FIELDS: Final = (pb.UploadPart.CHUNK_FIELD_NUMBER, pb.Chunk.DATA_FIELD_NUMBER)
_WITH_LENGTH: Final = 2
"""The kind of a protobuf field that begins with its length."""
_SMALL_PIECE: Final = 4096
"""Chunks up to this size are merged, because an object for each would take many times the memory of its bytes."""


def chunked(segments: Iterable[memoryview], size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yields the concatenated segments in chunks of `size` bytes; only the last may be shorter."""
    pending = bytearray()
    for segment in segments:
        start = 0
        if pending:
            start = size - len(pending)
            pending += segment[:start]
            if len(pending) < size:
                continue
            yield bytes(pending)
            pending.clear()
        whole = start + (len(segment) - start) // size * size
        for offset in range(start, whole, size):
            yield bytes(segment[offset : offset + size])
        pending += segment[whole:]
    if pending:
        yield bytes(pending)


def chunk_in(part: bytes) -> memoryview | None:
    """The bytes of the chunk in a serialised `UploadPart`, which protobuf would copy twice; None if there is no chunk.

    None also for a chunk that is written in another way than protobuf's libraries do, and is left to them.
    """
    rest = memoryview(part)
    for number in _CHUNK_FIELDS:
        if not rest or rest[0] != number << 3 | _WITH_LENGTH:
            return None
        length, start = _length_in(rest)
        rest = rest[start:]
        if length != len(rest):
            return None
    return rest


def _length_in(field: memoryview) -> tuple[int, int]:
    """The length after a field's first byte, seven bits a byte, and where its content begins."""
    length = 0
    for index, byte in enumerate(field[1:6]):
        length |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return length, index + 2
    return -1, 0


class BodyAssembler:
    """Assembles a body from chunks; memory grows with the bytes received, up to the declared size."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._received = 0
        self._pieces: list[bytes | bytearray | memoryview] = []

    def add(self, piece: bytes | memoryview) -> None:
        if not piece:
            refuse("chunk", "is empty")
        self._received += len(piece)
        if self._received > self._total:
            refuse("chunk", f"has {self._received} bytes where {self._total} were declared")
        last = self._pieces[-1] if self._pieces else b""
        if len(piece) > _SMALL_PIECE or not last:
            self._pieces.append(piece)
        elif isinstance(last, bytearray):
            last += piece
        else:
            self._pieces[-1] = bytearray(last) + piece

    @property
    def complete(self) -> bool:
        return self._received == self._total

    def body(self) -> bytes:
        if not self.complete:
            refuse("chunk", f"the stream ended after {self._received} of {self._total} declared bytes")
        first = self._pieces[0] if len(self._pieces) == 1 else None
        body = first if isinstance(first, bytes) else b"".join(self._pieces)
        self._pieces = [body]  # so that body and chunks are not in memory together while the body is checked
        return body
