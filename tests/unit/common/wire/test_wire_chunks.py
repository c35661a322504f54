from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadError
from feddbp_common.wire import CHUNK_BYTES, BodyAssembler, chunk_in, chunked


def segments_of(lengths: list[int]) -> list[memoryview]:
    noise = random.Random(7)
    return [memoryview(noise.randbytes(length)) for length in lengths]


@settings(max_examples=150, deadline=None)
@given(lengths=st.lists(st.integers(0, 25), max_size=8), size=st.integers(1, 12))
@example(lengths=[], size=4)
@example(lengths=[0, 0], size=4)
@example(lengths=[3, 1, 4], size=4)
@example(lengths=[1, 0, 3, 8], size=4)
@example(lengths=[5, 2, 12, 1], size=4)
def test_chunks_have_the_given_size_except_the_last_and_concatenate_to_the_input(lengths: list[int], size: int) -> None:
    segments = segments_of(lengths)
    chunks = list(chunked(segments, size))
    assert b"".join(chunks) == b"".join(segments)
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert all(0 < len(chunk) <= size for chunk in chunks)


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(0, 25), max_size=8), size=st.integers(1, 12))
def test_assembled_chunks_give_the_original_bytes(lengths: list[int], size: int) -> None:
    segments = segments_of(lengths)
    assembler = BodyAssembler(sum(lengths))
    for chunk in chunked(segments, size):
        assert not assembler.complete
        assembler.add(chunk)
    assert assembler.complete
    assert assembler.body() == b"".join(segments)


def test_chunks_are_far_below_the_message_limit_of_grpc() -> None:
    body = memoryview(bytes(3 * CHUNK_BYTES + 1))
    assert [len(chunk) for chunk in chunked([body])] == [CHUNK_BYTES] * 3 + [1]
    assert CHUNK_BYTES <= 1 << 20


def test_chunks_do_not_change_with_their_source() -> None:
    source = bytearray(b"abcdefgh")
    chunks = list(chunked([memoryview(source)], 3))
    source[:] = b"xxxxxxxx"
    assert chunks == [b"abc", b"def", b"gh"]


def test_chunks_are_produced_lazily() -> None:
    read: list[int] = []

    def segments() -> Iterator[memoryview]:
        for number in range(3):
            read.append(number)
            yield memoryview(b"abcd")

    pieces = chunked(segments(), 4)
    assert read == []
    assert next(pieces) == b"abcd"
    assert read == [0]


def test_an_empty_chunk_is_refused() -> None:
    with pytest.raises(PayloadError, match="is empty") as refusal:
        BodyAssembler(4).add(b"")
    assert refusal.value.field == "chunk"


@pytest.mark.parametrize("pieces", [[b"abcde"], [b"abcd", b"e"], [b"ab", b"c", b"de"]])
def test_bytes_beyond_the_declared_size_are_refused_on_arrival(pieces: list[bytes]) -> None:
    assembler = BodyAssembler(4)
    for piece in pieces[:-1]:
        assembler.add(piece)
    with pytest.raises(PayloadError, match="5 bytes where 4 were declared") as refusal:
        assembler.add(pieces[-1])
    assert refusal.value.field == "chunk"


def test_a_body_that_ends_early_is_refused_with_both_sizes() -> None:
    assembler = BodyAssembler(4)
    assembler.add(b"abc")
    assert not assembler.complete
    with pytest.raises(PayloadError, match="after 3 of 4 declared bytes") as refusal:
        assembler.body()
    assert refusal.value.field == "chunk"


def test_an_empty_body_needs_no_chunk() -> None:
    assembler = BodyAssembler(0)
    assert assembler.complete
    assert assembler.body() == b""
    with pytest.raises(PayloadError):
        assembler.add(b"x")


def test_a_body_of_one_chunk_is_not_copied() -> None:
    piece = bytes(1000)
    assembler = BodyAssembler(len(piece))
    assembler.add(piece)
    assert assembler.body() is piece


def test_an_assembled_body_does_not_keep_its_chunks() -> None:
    assembler = BodyAssembler(64 << 20)
    tracemalloc.start()
    for _ in range(64):
        assembler.add(bytes(1 << 20))
    body = assembler.body()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(body) <= held < 1.1 * len(body)
    assert assembler.body() is body


def test_a_large_declared_size_allocates_nothing() -> None:
    assembler = BodyAssembler(1 << 62)
    assembler.add(b"x")
    assert not assembler.complete


# --- the chunk in a message ---


@pytest.mark.parametrize("size", [1, 100, 122, 123, 127, 128, 16_000, 16_383, 16_384, 2_097_152])
def test_the_chunk_in_a_message_is_found_without_decoding_it(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    part = pb.UploadPart(chunk=pb.Chunk(data=data[:size]))
    assert bytes(chunk_in(part.SerializeToString()) or b"") == data[:size]


@pytest.mark.parametrize(
    "part",
    [
        b"",
        pb.UploadPart(header=pb.UploadHeader(session="s", round=2)).SerializeToString(),
        pb.UploadPart(chunk=pb.Chunk()).SerializeToString(),
        # two chunks, of which protobuf takes the last; a field that is unknown, in the message and in the chunk
        pb.UploadPart(chunk=pb.Chunk(data=b"one")).SerializeToString() * 2,
        pb.UploadPart(chunk=pb.Chunk(data=b"one")).SerializeToString() + b"\x7a\x01x",
        b"\x12\x08\x0a\x03one\x7a\x01x",
        # lengths that are too short, too long, unfinished, or of more bytes than any
        b"\x12\x05\x0a\x02one",
        b"\x12\x05\x0a\x04one",
        b"\x12\x06\x0a\x03one",
        b"\x12\x85",
        b"\x12\x85\x80\x80\x80\x80\x80\x00\x0a\x03one",
        b"\x12",
    ],
)
def test_what_is_no_chunk_in_the_usual_form_is_left_to_protobuf(part: bytes) -> None:
    assert chunk_in(part) is None


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda data: b"\x12" + data))
def test_a_chunk_that_is_found_is_the_one_that_protobuf_decodes(part: bytes) -> None:
    found = chunk_in(part)
    if found is not None:
        assert pb.UploadPart.FromString(part).chunk.data == found
