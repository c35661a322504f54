"""Cuts the body of a payload into chunks and assembles received chunks into a body of the declared size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from feddbp_common.errors import refuse

CHUNK_BYTES: Final = 256 * 1024
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


class BodyAssembler:
    """Assembles a body from chunks; memory grows with the bytes received, up to the declared size."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._received = 0
        self._pieces: list[bytes | bytearray] = []

    def add(self, piece: bytes) -> None:
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
