from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import payloads, prototype_set, sample_payload

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadError, PayloadTooLargeError
from feddbp_common.wire import (
    Dim,
    FisherScores,
    Payload,
    PayloadRules,
    PrototypeRule,
    PrototypeSet,
    TensorRule,
    TopChannels,
    WireType,
    check_manifest,
    check_values,
    decode,
    encode,
)
from feddbp_common.wire.rules import MAGNITUDE_BOUND

LABEL_COUNTS = (3, 0, 9)
"""Declared at join by the client of `sample_payload`: three samples of class 0 and nine of class 2."""

RULES = PayloadRules(
    prototypes=PrototypeRule(classes=3, width=4, counts=True),
    fisher_scores=True,
    tensors=(
        TensorRule(name="head", shape=(Dim(1, 2), Dim.exactly(3))),
        TensorRule(name="steps", shape=(Dim(0, 5),), types=(WireType.INT32,), required=False, low=-10, high=10),
    ),
)
TOP_RULES = replace(RULES, fisher_scores=False, top_channels=2)
NOTHING = PayloadRules()
DOWNLOAD_RULES = PayloadRules(prototypes=PrototypeRule(classes=3, width=4), prototypes_required=False)

Change = Callable[[pb.Manifest], Any]


def manifest_of(payload: Payload | None = None, change: Change | None = None) -> pb.Manifest:
    """Returns a valid manifest with `change` applied."""
    manifest = encode(payload or sample_payload()).manifest
    if change is not None:
        change(manifest)
    return manifest


def admit(manifest: pb.Manifest, rules: PayloadRules = RULES, *, max_bytes: int = 10_000) -> None:
    check_manifest(manifest, rules, max_bytes=max_bytes, label_counts=LABEL_COUNTS)


def refusal_of(manifest: pb.Manifest, rules: PayloadRules = RULES, *, max_bytes: int = 10_000) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        admit(manifest, rules, max_bytes=max_bytes)
    return caught.value


def with_total(manifest: pb.Manifest, total: int) -> pb.Manifest:
    manifest.total_bytes = total
    return manifest


# --- accepted manifests ---


def test_a_payload_within_all_rules_is_accepted() -> None:
    admit(manifest_of())
    check_values(sample_payload(), RULES)


def test_top_channels_are_accepted_in_a_run_that_sends_them() -> None:
    admit(manifest_of(sample_payload(top_channels=True)), TOP_RULES)
    check_values(sample_payload(top_channels=True), TOP_RULES)


def test_a_payload_without_rows_is_accepted() -> None:
    empty = Payload(
        prototypes=prototype_set((), counts=()),
        fisher=FisherScores(np.zeros((0, 4), np.float32)),
        tensors={"head": np.zeros((1, 3), np.float32)},
    )
    admit(manifest_of(empty))
    check_values(empty, RULES)


@pytest.mark.parametrize("real_type", [WireType.FLOAT32, WireType.FLOAT16, WireType.BFLOAT16])
def test_real_tensors_are_accepted_in_any_real_type(real_type: WireType) -> None:
    admit(encode(sample_payload(), real_type=real_type).manifest)


def test_optional_parts_may_be_absent() -> None:
    without_steps = replace(sample_payload(), tensors={"head": np.zeros((2, 3), np.float32)})
    admit(manifest_of(without_steps))
    admit(manifest_of(Payload()), DOWNLOAD_RULES)
    admit(manifest_of(Payload()), NOTHING)


def test_counts_may_be_absent_if_the_rule_does_not_require_them() -> None:
    admit(manifest_of(Payload(prototypes=prototype_set(counts=None))), DOWNLOAD_RULES)


def test_a_class_without_samples_declared_at_join_is_refused_with_and_without_counts() -> None:
    for counts in (None, (3, 1)):
        undeclared = Payload(prototypes=prototype_set((0, 1), counts=counts))
        refusal = refusal_of(manifest_of(undeclared), DOWNLOAD_RULES)
        assert refusal.field == "class_ids"
        assert refusal.reason == "names class 1, of which no samples were declared at join"
        check_manifest(manifest_of(undeclared), DOWNLOAD_RULES, max_bytes=10_000)  # without declared label counts


def test_counts_equal_to_those_declared_at_join_are_accepted() -> None:
    admit(manifest_of(replace(sample_payload(), prototypes=prototype_set(counts=(3, 9)))))


def test_counts_are_not_bounded_without_declared_label_counts() -> None:
    check_manifest(manifest_of(change=lambda m: m.prototypes.counts.__setitem__(0, 10**6)), RULES, max_bytes=10_000)


def test_a_payload_of_exactly_the_maximum_size_is_accepted() -> None:
    manifest = manifest_of()
    admit(manifest, max_bytes=manifest.total_bytes)


# --- refused manifests, with the field at fault ---


def _move_fisher_to_channels(manifest: pb.Manifest) -> None:
    tensor = pb.Tensor()
    tensor.CopyFrom(manifest.fisher.scores)
    manifest.fisher.top_channels.CopyFrom(tensor)


def _repeat_head(manifest: pb.Manifest) -> None:
    manifest.tensors.add().CopyFrom(manifest.tensors[0])
    manifest.total_bytes += 24


def _add_unknown(manifest: pb.Manifest) -> None:
    manifest.tensors.add(name="tail", dtype=pb.DTYPE_INT32, shape=[0])


REFUSALS: dict[str, tuple[Change, str, str]] = {
    "a total that is too small": (lambda m: setattr(m, "total_bytes", 95), "total_bytes", "is 95, but"),
    "a total that is too large": (lambda m: setattr(m, "total_bytes", 97), "total_bytes", "is 97, but"),
    "no digest": (lambda m: m.ClearField("sha256"), "sha256", "has 0 bytes, not 32"),
    "a digest of another length": (lambda m: setattr(m, "sha256", b"x" * 31), "sha256", "has 31 bytes, not 32"),
    "a class the run does not have": (
        lambda m: m.prototypes.class_ids.__setitem__(1, 3),
        "class_ids",
        "names class 3, but the run has only 3 classes",
    ),
    "classes out of order": (
        lambda m: (m.prototypes.class_ids.__setitem__(0, 2), m.prototypes.class_ids.__setitem__(1, 0)),
        "class_ids",
        "must be ascending without repeats",
    ),
    "a repeated class": (
        lambda m: m.prototypes.class_ids.__setitem__(1, 0),
        "class_ids",
        "must be ascending without repeats",
    ),
    "fewer classes than rows": (lambda m: m.prototypes.class_ids.pop(), "prototypes", "has shape [2, 4], not [1, 4]"),
    "no counts": (lambda m: m.prototypes.ClearField("counts"), "counts", "has 0 entries for 2 classes"),
    "fewer counts than classes": (lambda m: m.prototypes.counts.pop(), "counts", "has 1 entries for 2 classes"),
    "more counts than classes": (lambda m: m.prototypes.counts.append(1), "counts", "has 3 entries for 2 classes"),
    "a class without samples": (
        lambda m: m.prototypes.counts.__setitem__(1, 0),
        "counts",
        "class 2 has 0 samples",
    ),
    "more samples than were declared": (
        lambda m: m.prototypes.counts.__setitem__(1, 10),
        "counts",
        "class 2 has 10 samples, but 9 were declared at join",
    ),
    "samples of a class that was declared empty": (
        lambda m: m.prototypes.class_ids.__setitem__(0, 1),
        "class_ids",
        "names class 1, of which no samples were declared at join",
    ),
    "prototypes of whole numbers": (
        lambda m: setattr(m.prototypes.matrix, "dtype", pb.DTYPE_INT32),
        "prototypes",
        "has dtype int32, not float32 or float16 or bfloat16",
    ),
    "prototypes of another width": (
        lambda m: m.prototypes.matrix.shape.__setitem__(slice(None), [4, 2]),
        "prototypes",
        "has shape [4, 2], not [2, 4]",
    ),
    "prototypes in another number of dimensions": (
        lambda m: m.prototypes.matrix.shape.append(1),
        "prototypes",
        "has shape [2, 4, 1], not [2, 4]",
    ),
    "fisher in neither form": (
        lambda m: m.fisher.ClearField("scores"),
        "fisher",
        "neither scores nor top_channels is set",
    ),
    "fisher in the wrong form": (_move_fisher_to_channels, "fisher", "must be sent as scores in this run"),
    "fisher of whole numbers": (
        lambda m: setattr(m.fisher.scores, "dtype", pb.DTYPE_INT32),
        "fisher",
        "has dtype int32",
    ),
    "fisher of another shape": (
        lambda m: m.fisher.scores.shape.__setitem__(slice(None), [1, 8]),
        "fisher",
        "has shape [1, 8], not [2, 4]",
    ),
    "an unexpected tensor": (_add_unknown, "'tail'", "is not expected in this payload"),
    "a tensor that is declared twice": (_repeat_head, "head", "is declared twice"),
    "a tensor of another type": (
        lambda m: setattr(m.tensors[0], "dtype", pb.DTYPE_INT32),
        "head",
        "has dtype int32",
    ),
    "a whole-number tensor of another type": (
        lambda m: setattr(m.tensors[1], "dtype", pb.DTYPE_FLOAT32),
        "steps",
        "has dtype float32, not int32",
    ),
    "a tensor of another shape": (
        lambda m: m.tensors[0].shape.__setitem__(slice(None), [3, 2]),
        "head",
        "has shape [3, 2], not [1 to 2, 3]",
    ),
    "a tensor in another number of dimensions": (
        lambda m: m.tensors[0].shape.__setitem__(slice(None), [6]),
        "head",
        "has shape [6], not [1 to 2, 3]",
    ),
    "a type that is not set": (
        lambda m: setattr(m.tensors[0], "dtype", pb.DTYPE_UNSPECIFIED),
        "head",
        "dtype 0 is not defined by the protocol",
    ),
    "prototypes of no type": (
        lambda m: m.prototypes.ClearField("matrix"),
        "prototypes",
        "dtype 0 is not defined by the protocol",
    ),
    "a type of a later version": (
        lambda m: setattr(m.fisher.scores, "dtype", 77),
        "fisher",
        "dtype 77 is not defined by the protocol",
    ),
    "too many dimensions": (
        lambda m: m.tensors[0].shape.extend([1] * 7),
        "'head'",
        "has 9 dimensions, at most 8 are admitted",
    ),
    "prototypes of too many dimensions": (
        lambda m: m.prototypes.matrix.shape.extend([1] * 30),
        "'prototypes'",
        "has 32 dimensions, at most 8 are admitted",
    ),
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_a_manifest_is_refused_for(fault: str) -> None:
    change, field, reason = REFUSALS[fault]
    refusal = refusal_of(manifest_of(change=change))
    assert refusal.field == field
    assert reason in refusal.reason


def _without(part: str) -> Payload:
    payload = sample_payload()
    match part:
        case "prototypes":
            return replace(payload, prototypes=None)
        case "fisher":
            return replace(payload, fisher=None)
    return replace(payload, tensors={"steps": payload.tensors["steps"]})


@pytest.mark.parametrize("part", ["prototypes", "fisher", "head"])
def test_a_missing_required_part_is_refused(part: str) -> None:
    refusal = refusal_of(manifest_of(_without(part)))
    assert (refusal.field, refusal.reason) == (part, "is missing")


@pytest.mark.parametrize(
    ("payload", "rules", "field"),
    [
        (Payload(prototypes=prototype_set()), NOTHING, "prototypes"),
        (Payload(fisher=FisherScores(np.zeros((0, 4), np.float32))), NOTHING, "fisher"),
        (Payload(prototypes=prototype_set(), fisher=sample_payload().fisher), DOWNLOAD_RULES, "fisher"),
        (Payload(tensors={"head": np.zeros((2, 3), np.float32)}), NOTHING, "'head'"),
    ],
)
def test_a_part_without_a_rule_is_refused(payload: Payload, rules: PayloadRules, field: str) -> None:
    refusal = refusal_of(manifest_of(payload), rules)
    assert (refusal.field, refusal.reason) == (field, "is not expected in this payload")


def test_full_scores_are_refused_in_a_run_that_sends_top_channels() -> None:
    refusal = refusal_of(manifest_of(), TOP_RULES)
    assert (refusal.field, refusal.reason) == ("fisher", "must be sent as top_channels in this run")


@pytest.mark.parametrize(
    ("channels", "reason"),
    [
        (np.zeros((2, 3), np.uint16), "has shape [2, 3], not [2, 2]"),
        (np.zeros((1, 2), np.uint16), "has shape [1, 2], not [2, 2]"),
        (np.zeros((2, 2), np.int32), "has dtype int32, not uint16"),
    ],
)
def test_top_channels_must_have_their_type_and_one_row_per_class(channels: np.ndarray, reason: str) -> None:
    refusal = refusal_of(manifest_of(replace(sample_payload(), fisher=TopChannels(channels))), TOP_RULES)
    assert (refusal.field, refusal.reason) == ("fisher", reason)


def test_optional_counts_are_checked_if_present() -> None:
    manifest = manifest_of(Payload(prototypes=prototype_set(counts=(0, 1))))
    assert refusal_of(manifest, DOWNLOAD_RULES).field == "counts"


ROWS = PayloadRules(
    tensors=(
        TensorRule(name="labels", shape=(Dim(0, 5),), types=(WireType.INT32,), required=False),
        TensorRule(name="logits", shape=(Dim(0, 5), Dim.exactly(2)), required=False, rows_as="labels"),
    )
)


def rows_of(**counts: int) -> pb.Manifest:
    made = {"labels": np.zeros(5, np.int32), "logits": np.zeros((5, 2), np.float32)}
    return manifest_of(Payload(tensors={name: made[name][:count] for name, count in counts.items()}))


def test_tensors_with_corresponding_rows_need_the_same_number_of_rows() -> None:
    for admitted in ({"labels": 3, "logits": 3}, {"labels": 0, "logits": 0}, {"labels": 3}, {}):
        admit(rows_of(**admitted), ROWS)
    refusal = refusal_of(rows_of(labels=2, logits=3), ROWS)
    assert (refusal.field, refusal.reason) == ("logits", "has 3 rows, but labels has 2")
    refusal = refusal_of(rows_of(logits=3), ROWS)
    assert (refusal.field, refusal.reason) == ("labels", "is missing, but logits is present")


# --- sizes ---


def test_a_payload_above_the_maximum_size_is_refused_as_too_large() -> None:
    manifest = manifest_of()
    total = manifest.total_bytes
    refusal = refusal_of(manifest, max_bytes=total - 1)
    assert isinstance(refusal, PayloadTooLargeError)
    assert (refusal.field, refusal.reason) == ("total_bytes", f"{total} bytes, at most {total - 1} are admitted")


@pytest.mark.parametrize("shape", [[2**32 - 1, 2**32 - 1], [2**32 - 1, 2**30], [2**31, 2]])
def test_a_huge_shape_is_refused_without_allocating_it(shape: list[int]) -> None:
    manifest = pb.Manifest(
        prototypes=pb.PrototypeSet(matrix=pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=shape)), sha256=bytes(32)
    )
    true_total = 4 * shape[0] * shape[1]
    if true_total < 2**64:
        manifest.total_bytes = true_total
    tracemalloc.start()
    try:
        refusal = refusal_of(manifest)
        with pytest.raises(PayloadError):
            decode(manifest, b"")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refusal.field == "total_bytes"
    assert isinstance(refusal, PayloadTooLargeError) == (true_total < 2**64)
    assert peak < 1 << 20


def test_an_empty_dimension_does_not_hide_a_wrong_shape() -> None:
    manifest = manifest_of(change=lambda m: m.tensors[0].shape.__setitem__(slice(None), [2**32 - 1, 0]))
    assert refusal_of(with_total(manifest, manifest.total_bytes - 24)).field == "head"


@pytest.mark.parametrize("dtype", [pb.DTYPE_FLOAT32, 99])
def test_a_received_name_is_shortened_and_escaped_in_messages(dtype: pb.DType.ValueType) -> None:
    name = "head\nERROR forged line " + "x" * 10_000
    manifest = pb.Manifest(tensors=[pb.Tensor(name=name, dtype=dtype, shape=[0])], sha256=bytes(32))
    text = str(refusal_of(manifest))
    assert "\n" not in text
    assert len(text) < 500


# --- values ---


def values_refusal(payload: Payload, rules: PayloadRules = RULES) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        check_values(payload, rules)
    return caught.value


def with_value(part: str, value: float) -> Payload:
    """Returns the sample payload with one value of a part replaced."""
    payload = sample_payload()
    assert payload.prototypes is not None
    assert isinstance(payload.fisher, FisherScores)
    array = {
        "prototypes": payload.prototypes.vectors,
        "fisher": payload.fisher.scores,
        "head": payload.tensors["head"],
        "steps": payload.tensors["steps"],
    }[part].copy()
    array[(-1,) * array.ndim] = value
    match part:
        case "prototypes":
            return replace(payload, prototypes=replace(payload.prototypes, vectors=array))
        case "fisher":
            return replace(payload, fisher=FisherScores(array))
    return replace(payload, tensors={**payload.tensors, part: array})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["prototypes", "fisher", "head"])
def test_a_value_that_is_not_finite_is_refused(part: str, value: float) -> None:
    refusal = values_refusal(with_value(part, value))
    assert (refusal.field, refusal.reason) == (part, "has a value that is not finite")


def test_infinities_of_both_signs_do_not_cancel() -> None:
    payload = with_value("prototypes", np.inf)
    assert payload.prototypes is not None
    payload.prototypes.vectors[0, 0] = -np.inf
    assert values_refusal(payload).field == "prototypes"


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("part", ["prototypes", "head"])
def test_a_value_beyond_the_magnitude_bound_is_refused(part: str, sign: int) -> None:
    just_beyond = float(np.nextafter(np.float32(sign * MAGNITUDE_BOUND), np.float32(sign * np.inf)))
    refusal = values_refusal(with_value(part, just_beyond))
    assert refusal.field == part
    assert refusal.reason.endswith("the maximum is 1e+06" if sign > 0 else "the minimum is -1e+06")
    check_values(with_value(part, sign * MAGNITUDE_BOUND), RULES)


LARGEST_HALF = 65_504.0


@pytest.mark.parametrize("part", ["prototypes", "fisher", "head"])
def test_a_value_too_large_for_the_type_of_the_run_is_refused_in_any_type(part: str) -> None:
    beyond = float(np.nextafter(np.float32(LARGEST_HALF), np.float32(np.inf)))
    with pytest.raises(PayloadError, match="the maximum is 65504") as refused:
        check_values(with_value(part, beyond), RULES, real_type=WireType.FLOAT16)
    assert refused.value.field == part
    check_values(with_value(part, LARGEST_HALF), RULES, real_type=WireType.FLOAT16)
    for wide in (WireType.FLOAT32, WireType.BFLOAT16):
        check_values(with_value(part, beyond), RULES, real_type=wide)


def test_integers_are_not_bounded_by_the_real_type_of_the_run() -> None:
    rule = TensorRule(name="steps", shape=(Dim(0, 5),), types=(WireType.INT32,), low=-(10**9), high=10**9)
    steps = Payload(tensors={"steps": np.array([-(10**9), 10**9], np.int32)})
    check_values(steps, PayloadRules(tensors=(rule,)), real_type=WireType.FLOAT16)


def test_scores_must_not_be_negative() -> None:
    refusal = values_refusal(with_value("fisher", -1e-30))
    assert (refusal.field, refusal.reason) == ("fisher", "has a value of -1e-30, the minimum is 0")
    check_values(with_value("fisher", 0.0), RULES)
    check_values(with_value("fisher", -0.0), RULES)


@pytest.mark.parametrize("value", [-11, 11])
def test_a_value_beyond_the_bounds_of_its_tensor_is_refused(value: int) -> None:
    assert values_refusal(with_value("steps", value)).field == "steps"
    check_values(with_value("steps", value - np.sign(value)), RULES)


@pytest.mark.parametrize("real_type", [WireType.FLOAT16, WireType.BFLOAT16])
def test_nan_is_refused_in_any_real_type(real_type: WireType) -> None:
    payload = Payload(prototypes=prototype_set())
    encoded = encode(payload, real_type=real_type)
    nan = b"\x01\x7e" if real_type is WireType.FLOAT16 else b"\xc1\x7f"
    body = nan + encoded.body()[2:]
    assert values_refusal(decode(encoded.manifest, body)).field == "prototypes"


def channels(*rows: list[int]) -> Payload:
    return replace(sample_payload(), fisher=TopChannels(np.array(rows, np.uint16)))


def test_a_channel_that_does_not_exist_is_refused() -> None:
    refusal = values_refusal(channels([0, 1], [4, 2]), TOP_RULES)
    assert (refusal.field, refusal.reason) == ("fisher", "names channel 4, but there are only 4")
    check_values(channels([0, 1], [3, 2]), TOP_RULES)


def test_a_repeated_channel_in_a_row_is_refused() -> None:
    refusal = values_refusal(channels([0, 1], [3, 3]), TOP_RULES)
    assert (refusal.field, refusal.reason) == ("fisher", "names a channel twice in one row")
    check_values(channels([3, 1], [1, 3]), TOP_RULES)


def test_repeats_need_not_be_adjacent() -> None:
    rules = replace(TOP_RULES, top_channels=4)
    assert values_refusal(channels([0, 1, 2, 0], [0, 1, 2, 3]), rules).field == "fisher"


@pytest.mark.parametrize("rules", [RULES, TOP_RULES])
def test_parts_without_values_are_accepted(rules: PayloadRules) -> None:
    empty = PrototypeSet(class_ids=np.zeros(0, np.int32), vectors=np.zeros((0, 4), np.float32))
    check_values(Payload(prototypes=empty, fisher=FisherScores(np.zeros((0, 4), np.float32))), rules)
    check_values(Payload(prototypes=empty, fisher=TopChannels(np.zeros((0, 2), np.uint16))), rules)
    check_values(Payload(tensors={"steps": np.zeros(0, np.int32)}), rules)


# --- arbitrary manifests ---


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_arbitrary_manifest_is_accepted_or_refused_without_another_error(data: st.DataObject) -> None:
    uint32 = st.integers(0, 2**32 - 1) | st.integers(0, 5)
    tensors = st.builds(
        pb.Tensor,
        name=st.sampled_from(["head", "steps", "fisher", "prototypes", ""]) | st.text(max_size=3),
        dtype=st.integers(0, 7),
        shape=st.lists(uint32, max_size=10),
    )
    manifest = pb.Manifest(
        prototypes=data.draw(
            st.none()
            | st.builds(
                pb.PrototypeSet,
                class_ids=st.lists(uint32, max_size=4),
                counts=st.lists(uint32, max_size=4),
                matrix=tensors,
            )
        ),
        fisher=data.draw(
            st.none()
            | st.builds(pb.FisherScores, scores=tensors)
            | st.builds(pb.FisherScores, top_channels=tensors)
            | st.builds(pb.FisherScores)
        ),
        tensors=data.draw(st.lists(tensors, max_size=4)),
        total_bytes=data.draw(st.integers(0, 200)),
        sha256=data.draw(st.sampled_from([bytes(32), b""])),
    )
    refusal = None
    try:
        admit(manifest, data.draw(st.sampled_from([RULES, TOP_RULES, NOTHING, DOWNLOAD_RULES])))
    except PayloadError as error:
        refusal = error
    assert refusal is None or (refusal.field and refusal.reason)


@settings(max_examples=50, deadline=None)
@given(payloads())
def test_an_accepted_payload_can_be_decoded_and_has_the_shapes_of_the_rules(payload: Payload) -> None:
    encoded = encode(payload)
    rules = PayloadRules(
        prototypes=PrototypeRule(classes=65_536, width=3),
        prototypes_required=False,
        tensors=tuple(
            TensorRule(name=name, shape=(Dim(0, 4),) * 2, types=tuple(WireType)) for name in sorted(payload.tensors)
        ),
    )
    try:
        check_manifest(encoded.manifest, rules, max_bytes=10_000)
    except PayloadError:
        return
    received = decode(encoded.manifest, encoded.body())
    assert received.fisher is None
    assert received.prototypes is None or received.prototypes.vectors.shape[1] == 3
    assert all(array.ndim == 2 for array in received.tensors.values())
