from __future__ import annotations

import math
import random
import struct
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wire_samples import arrays, payloads, prototype_set, same, sample_payload

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadError
from feddbp_common.wire import Encoded, FisherScores, Payload, PrototypeSet, TopChannels, WireType, decode, encode
from feddbp_common.wire.codec import LARGEST, declarations, digest_of, prototype_bytes, tensor_bytes

HALF_TYPES = [WireType.FLOAT16, WireType.BFLOAT16]


def over_the_wire(payload: Payload, real_type: WireType = WireType.FLOAT32) -> Payload:
    """Returns what the receiver decodes from the bytes."""
    encoded = encode(payload, real_type=real_type)
    return decode(pb.Manifest.FromString(encoded.manifest.SerializeToString()), encoded.body())


def bits_of(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def float_of(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def as_bfloat16(value: float) -> float:
    """Rounds to the nearest bfloat16 by exact arithmetic, ties to even."""
    sign = bits_of(value) & 0x8000_0000
    below = bits_of(abs(value)) & 0xFFFF_0000
    above = below + 0x1_0000
    exact = Fraction(abs(value))
    above_value = Fraction(2) ** 128 if above == 0x7F80_0000 else Fraction(float_of(above))
    to_below, to_above = exact - Fraction(float_of(below)), above_value - exact
    rounds_up = to_above < to_below or (to_above == to_below and below & 0x1_0000)
    return float_of(sign | (above if rounds_up else below))


def as_float16(value: float) -> float:
    return float(struct.unpack("<e", struct.pack("<e", value))[0])


# --- round trip ---


@settings(max_examples=80, deadline=None)
@given(payloads())
def test_encoding_and_decoding_preserve_a_payload(payload: Payload) -> None:
    assert same(over_the_wire(payload), payload)


@settings(max_examples=40, deadline=None)
@given(payloads(), st.sampled_from(HALF_TYPES))
def test_half_precision_rounds_only_real_values(payload: Payload, real_type: WireType) -> None:
    rounded = as_float16 if real_type is WireType.FLOAT16 else as_bfloat16
    received = over_the_wire(payload, real_type)
    for (name, sent), (received_name, got) in zip(payload.arrays(), received.arrays(), strict=True):
        expected = [rounded(x) for x in sent.ravel().tolist()] if sent.dtype == np.float32 else sent.ravel().tolist()
        assert (name, sent.dtype, sent.shape) == (received_name, got.dtype, got.shape)
        assert got.ravel().tolist() == expected


@settings(max_examples=150, deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(1.00390625)  # halfway between two bfloat16 numbers, the lower one even
@example(1.01171875)  # halfway, the upper one even
@example(float_of(0x7F7F_FFFF))
@example(float_of(0x0000_8000))
@example(-0.0)
def test_bfloat16_rounds_to_nearest_ties_to_even(value: float) -> None:
    received = over_the_wire(Payload(tensors={"x": np.array([value], dtype=np.float32)}), WireType.BFLOAT16)
    assert bits_of(received.tensors["x"].tolist()[0]) == bits_of(as_bfloat16(value))


@settings(max_examples=150, deadline=None)
@given(st.floats(-65_504, 65_504, width=32))
@example(6.0e-8)  # subnormal in half precision
@example(2049.0)  # halfway
@example(-0.0)
def test_float16_rounds_to_nearest_ties_to_even(value: float) -> None:
    received = over_the_wire(Payload(tensors={"x": np.array([value], dtype=np.float32)}), WireType.FLOAT16)
    assert bits_of(received.tensors["x"].tolist()[0]) == bits_of(as_float16(value))


@settings(max_examples=200, deadline=None)
@given(st.integers(0x7F80_0001, 0x7FFF_FFFF), st.booleans())
@example(0x7FFF_FFFF, False)  # what graphics processors write for "not a number"
@example(0x7FC0_0000, False)
@example(0x7F80_0001, True)
def test_bfloat16_keeps_nan_and_infinity(bits: int, negative: bool) -> None:
    array = np.array([bits | (0x8000_0000 if negative else 0)], dtype=np.uint32).view(np.float32)
    received = over_the_wire(Payload(tensors={"x": array}), WireType.BFLOAT16)
    assert not np.isfinite(received.tensors["x"]).any()


@pytest.mark.parametrize(
    ("real_type", "value"),
    [
        (WireType.FLOAT32, np.nan),
        (WireType.FLOAT32, np.inf),
        (WireType.FLOAT16, np.nan),
        (WireType.BFLOAT16, np.inf),
        (WireType.BFLOAT16, -np.inf),
    ],
)
def test_nan_and_infinity_are_preserved(real_type: WireType, value: float) -> None:
    received = over_the_wire(Payload(tensors={"x": np.array([value], dtype=np.float32)}), real_type)
    np.testing.assert_array_equal(received.tensors["x"], [value])


@pytest.mark.parametrize("value", [65_504.0, 65_504.004, -65_519.99])
def test_values_that_round_to_the_largest_float16_are_sent(value: float) -> None:
    received = over_the_wire(Payload(tensors={"x": np.array([value], dtype=np.float32)}), WireType.FLOAT16)
    assert received.tensors["x"].tolist() == [math.copysign(65_504.0, value)]


@pytest.mark.parametrize("real_type", LARGEST)
def test_the_largest_value_of_a_type_is_preserved(real_type: WireType) -> None:
    largest = np.array([LARGEST[real_type]], dtype=np.float32)
    received = over_the_wire(Payload(tensors={"x": largest}), real_type).tensors["x"]
    assert received.tolist() == largest.tolist()


@pytest.mark.parametrize("value", [65_520.0, 65_536.0, -1e6, math.inf])
def test_a_value_too_large_for_float16_is_refused_with_the_name_of_its_tensor(value: float) -> None:
    payload = Payload(tensors={"head": np.array([0.0, value], dtype=np.float32)})
    with pytest.raises(PayloadError, match="too large for float16") as refusal:
        encode(payload, real_type=WireType.FLOAT16)
    assert refusal.value.field == "head"


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint8, np.bool_, ">f4"])
def test_an_array_of_an_unsupported_type_cannot_be_sent(dtype: str) -> None:
    with pytest.raises(PayloadError) as refusal:
        encode(Payload(tensors={"odd": np.zeros(2, dtype=dtype)}))
    assert refusal.value.field == "odd"


@pytest.mark.parametrize("real_type", [WireType.FLOAT32, *HALF_TYPES])
def test_a_scalar_stays_a_zero_dimensional_array(real_type: WireType) -> None:
    received = over_the_wire(Payload(tensors={"x": np.array(1.5, dtype=np.float32)}), real_type).tensors["x"]
    assert isinstance(received, np.ndarray)
    assert received.shape == ()
    assert received == 1.5


@settings(max_examples=40, deadline=None)
@given(arrays(np.float32, max_dims=3), st.sampled_from([WireType.FLOAT32, WireType.BFLOAT16]))
def test_arrays_that_are_not_contiguous_are_encoded_like_their_copies(array: np.ndarray, real_type: WireType) -> None:
    strided = np.repeat(array[..., None], 2, axis=-1)[..., 0].T
    sent, copied = Payload(tensors={"x": strided}), Payload(tensors={"x": strided.copy(order="C")})
    assert encode(sent, real_type=real_type).manifest == encode(copied, real_type=real_type).manifest
    assert encode(sent, real_type=real_type).body() == encode(copied, real_type=real_type).body()


def test_bytes_are_little_endian_in_the_order_prototypes_fisher_tensors() -> None:
    payload = Payload(
        prototypes=PrototypeSet(class_ids=np.array([4], np.int32), vectors=np.array([[1.0, -2.0]], np.float32)),
        fisher=TopChannels(np.array([[1]], np.uint16)),
        tensors={"b": np.array([-1], np.int32), "a": np.array([0.5], np.float32)},
    )
    encoded = encode(payload)
    assert encoded.body() == struct.pack("<ffHif", 1.0, -2.0, 1, -1, 0.5)
    assert [tensor.name for tensor in declarations(encoded.manifest)] == ["prototypes", "fisher", "b", "a"]
    assert encoded.manifest.total_bytes == 18


def test_an_empty_payload_is_a_manifest_without_a_body() -> None:
    encoded = encode(Payload())
    assert (encoded.manifest.total_bytes, encoded.body()) == (0, b"")
    assert same(decode(encoded.manifest, b""), Payload())


def test_counts_are_optional() -> None:
    received = over_the_wire(Payload(prototypes=prototype_set(counts=None)))
    assert received.prototypes is not None
    assert received.prototypes.counts is None


# --- copies ---


def test_float32_arrays_are_not_copied_by_encoding() -> None:
    payload = sample_payload()
    segments = encode(payload).segments
    for (_, array), segment in zip(payload.arrays(), segments, strict=True):
        assert np.shares_memory(array, np.frombuffer(segment, dtype=np.uint8))


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_float32_arrays_are_not_copied_by_decoding(buffer: type) -> None:
    encoded = encode(sample_payload())
    body = buffer(encoded.body())
    for _, array in decode(encoded.manifest, body).arrays():
        assert np.shares_memory(array, np.frombuffer(body, dtype=np.uint8))


# --- incomplete bodies ---


@settings(max_examples=40, deadline=None)
@given(payloads(), st.sampled_from([WireType.FLOAT32, WireType.BFLOAT16]))
def test_prototypes_can_be_decoded_from_the_start_of_a_body(payload: Payload, real_type: WireType) -> None:
    encoded = encode(payload, real_type=real_type)
    prefix = encoded.body()[: prototype_bytes(encoded.manifest)]
    from_prefix = decode(encoded.manifest, prefix, prototypes_only=True)
    in_full = decode(encoded.manifest, encoded.body())
    assert same(from_prefix, Payload(prototypes=in_full.prototypes))


def test_a_prefix_of_a_body_is_refused() -> None:
    encoded = encode(sample_payload())
    with pytest.raises(PayloadError) as refusal:
        decode(encoded.manifest, encoded.body()[: prototype_bytes(encoded.manifest)])
    assert refusal.value.field == "fisher"


def test_decoding_prototypes_needs_all_their_bytes() -> None:
    encoded = encode(sample_payload())
    with pytest.raises(PayloadError) as refusal:
        decode(encoded.manifest, encoded.body()[: prototype_bytes(encoded.manifest) - 1], prototypes_only=True)
    assert refusal.value.field == "prototypes"


@pytest.mark.parametrize(("cut", "field"), [(1, "prototypes"), (31, "prototypes"), (33, "fisher"), (70, "head")])
def test_a_body_that_ends_early_is_refused_with_the_name_of_the_incomplete_tensor(cut: int, field: str) -> None:
    encoded = encode(sample_payload())
    with pytest.raises(PayloadError, match="bytes but only") as refusal:
        decode(encoded.manifest, encoded.body()[:cut])
    assert refusal.value.field == field


def test_undeclared_bytes_are_refused() -> None:
    encoded = encode(sample_payload())
    with pytest.raises(PayloadError, match="1 bytes follow that no tensor declares") as refusal:
        decode(encoded.manifest, encoded.body() + b"\0")
    assert refusal.value.field == "total_bytes"


@pytest.mark.parametrize("dtype", [pb.DTYPE_UNSPECIFIED, 99])
def test_an_unknown_element_type_is_refused(dtype: pb.DType.ValueType) -> None:
    manifest = pb.Manifest(tensors=[pb.Tensor(name="x", dtype=dtype, shape=[1])])
    with pytest.raises(PayloadError) as refusal:
        decode(manifest, b"1234")
    assert refusal.value.field == "x"


def test_fisher_without_a_form_is_refused() -> None:
    with pytest.raises(PayloadError) as refusal:
        decode(pb.Manifest(fisher=pb.FisherScores()), b"")
    assert refusal.value.field == "fisher"


def test_the_size_of_a_tensor_follows_from_its_declaration() -> None:
    sizes = {WireType.FLOAT32: 4, WireType.FLOAT16: 2, WireType.BFLOAT16: 2, WireType.INT32: 4, WireType.UINT16: 2}
    sizes[WireType.UINT64] = 8
    assert {wire_type: wire_type.item_bytes for wire_type in WireType} == sizes
    assert tensor_bytes(pb.Tensor(name="x", dtype=pb.DTYPE_FLOAT16, shape=[3, 5])) == 30
    assert tensor_bytes(pb.Tensor(name="x", dtype=pb.DTYPE_INT32, shape=[])) == 4
    assert tensor_bytes(pb.Tensor(name="x", dtype=pb.DTYPE_INT32, shape=[7, 0])) == 0


# --- digests ---


def digest(payload: Payload) -> bytes:
    return encode(payload).manifest.sha256


def variations() -> dict[str, Payload]:
    """Returns variants of the sample payload that differ from it in one respect each."""
    base = sample_payload()
    assert base.prototypes is not None
    assert isinstance(base.fisher, FisherScores)
    vectors = base.prototypes.vectors.copy()
    vectors[1, 2] = np.nextafter(vectors[1, 2], np.float32(9))
    scores = base.fisher.scores.copy()
    scores[0, 0] = -0.0
    head = base.tensors["head"]
    return {
        "nothing": base,
        "a prototype": replace(base, prototypes=replace(base.prototypes, vectors=vectors)),
        "a class id": replace(base, prototypes=replace(base.prototypes, class_ids=np.array([0, 1], np.int32))),
        "a count": replace(base, prototypes=replace(base.prototypes, counts=np.array([3, 6], np.int32))),
        "no counts": replace(base, prototypes=replace(base.prototypes, counts=None)),
        "the sign of a zero": replace(base, fisher=FisherScores(scores)),
        "another form of scores": sample_payload(top_channels=True),
        "no scores": replace(base, fisher=None),
        "a name": replace(base, tensors={"tail": head, "steps": base.tensors["steps"]}),
        "the shape": replace(base, tensors={**base.tensors, "head": head.reshape(3, 2)}),
        "another dimension": replace(base, tensors={**base.tensors, "head": head.reshape(1, 2, 3)}),
        "the type": replace(base, tensors={**base.tensors, "head": head.view(np.int32)}),
        "the order": replace(base, tensors=dict(reversed(list(base.tensors.items())))),
        "one tensor fewer": replace(base, tensors={"head": head}),
        "an empty tensor more": replace(base, tensors={**base.tensors, "none": np.zeros(0, np.float32)}),
        "no prototypes": Payload(tensors=base.tensors),
        "nothing at all": Payload(),
    }


def test_different_payloads_have_different_digests() -> None:
    digests = {changed: digest(payload) for changed, payload in variations().items()}
    assert len(set(digests.values())) == len(digests)


@settings(max_examples=40, deadline=None)
@given(payloads(), st.data())
def test_flipping_any_bit_of_the_body_changes_the_digest(payload: Payload, data: st.DataObject) -> None:
    encoded = encode(payload)
    if not encoded.manifest.total_bytes:
        return
    body = bytearray(encoded.body())
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert digest_of(encoded.manifest, [body]) != encoded.manifest.sha256


@settings(max_examples=40, deadline=None)
@given(payloads())
def test_the_digest_does_not_depend_on_segment_boundaries(payload: Payload) -> None:
    encoded = encode(payload)
    body = encoded.body()
    assert digest(over_the_wire(payload)) == encoded.manifest.sha256
    assert digest_of(encoded.manifest, [body]) == encoded.manifest.sha256
    assert digest_of(encoded.manifest, [body[:3], b"", body[3:]]) == encoded.manifest.sha256


def test_the_digest_does_not_depend_on_protobuf_serialisation() -> None:
    encoded = encode(sample_payload())
    pieces = [
        pb.Manifest(prototypes=encoded.manifest.prototypes).SerializeToString(),
        pb.Manifest(fisher=encoded.manifest.fisher).SerializeToString(),
        *(pb.Manifest(tensors=[tensor]).SerializeToString() for tensor in encoded.manifest.tensors),
    ]
    tensors_last = b"".join(pieces)
    tensors_first = b"".join((*pieces[2:], pieces[1], pieces[0]))
    unknown_field = b"\x98\x06\x07"  # field 99, a varint
    assert tensors_first != tensors_last
    for written in (tensors_last, tensors_first, tensors_last + unknown_field):
        assert digest_of(pb.Manifest.FromString(written), [encoded.body()]) == encoded.manifest.sha256


def test_received_names_of_prototypes_and_fisher_are_ignored() -> None:
    encoded = encode(sample_payload())
    renamed = pb.Manifest()
    renamed.CopyFrom(encoded.manifest)
    renamed.prototypes.matrix.name, renamed.fisher.scores.name = "", "something else"
    assert digest_of(renamed, [encoded.body()]) == encoded.manifest.sha256
    assert same(decode(renamed, encoded.body()), sample_payload())


def test_the_digest_does_not_change_between_versions() -> None:
    expected = "cab385d292caa84eb0ec37427f2c596e8b0e076f5918c778914f1cffdadab48d"
    assert encode(sample_payload()).manifest.sha256.hex() == expected


def test_encoding_is_deterministic() -> None:
    def once() -> Encoded:
        return encode(sample_payload(top_channels=True), real_type=WireType.BFLOAT16)

    random.seed(1)
    first = once()
    random.seed(2)
    assert (first.manifest, first.body()) == (once().manifest, once().body())
