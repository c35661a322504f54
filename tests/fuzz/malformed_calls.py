"""Malformed calls, drawn from a seed, and the answers that a server may give to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite, prod
from random import Random
from typing import Any, Final

import grpc
import numpy as np
from benchmarks.light_client import LightClient
from google.protobuf.message import DecodeError, Message
from mutations import MessageT, mutate_field, mutated_bytes, with_invalid_field
from raw_calls import RawAnswer, RawCall, serialised

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadError
from feddbp_common.wire import Encoded, FisherScores, Payload, decode, digest_of, encode
from feddbp_common.wire.payload import FISHER, PROTOTYPES

_MOST_VALIDATION_SAMPLES: Final = 10
"""Two for each of the five classes, of which a client has one sample each."""
MESSAGE_LIMIT: Final = 384 << 10
"""Bytes of one message; gRPC refuses a longer one."""


@dataclass(frozen=True, kw_only=True)
class OpenRound:
    """A run in the middle of a round, with all client ids in use."""

    run_id: str
    round: int
    sessions: Sequence[str]
    contributions: Sequence[Encoded]
    """What each client would upload to the open round."""
    classes: int


# --- answers ---

EXPECTED: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: {
        pb.REFUSAL_REASON_INVALID_PAYLOAD,
        pb.REFUSAL_REASON_INVALID_REQUEST,
        pb.REFUSAL_REASON_UNKNOWN_CLIENT,
    },
    grpc.StatusCode.FAILED_PRECONDITION: {
        pb.REFUSAL_REASON_OTHER_RUN,
        pb.REFUSAL_REASON_WRONG_ROUND,
        pb.REFUSAL_REASON_MISSING_FEATURE,
    },
    grpc.StatusCode.ALREADY_EXISTS: {pb.REFUSAL_REASON_ID_IN_USE, pb.REFUSAL_REASON_ALREADY_UPLOADED},
    grpc.StatusCode.UNAUTHENTICATED: {pb.REFUSAL_REASON_STALE_SESSION},
    grpc.StatusCode.PERMISSION_DENIED: {pb.REFUSAL_REASON_NOT_AUTHORISED},
    grpc.StatusCode.RESOURCE_EXHAUSTED: {pb.REFUSAL_REASON_TOO_LARGE},
    grpc.StatusCode.UNAVAILABLE: {pb.REFUSAL_REASON_BUSY},
}
"""Reasons by status. Any other answer is a violation, UNKNOWN and INTERNAL among them."""

_WITHOUT_FIELD: Final = (pb.REFUSAL_REASON_BUSY, pb.REFUSAL_REASON_MISSING_FEATURE)
"""Reasons that say enough without the name of a field."""

_CHANGES_NOTHING: Final = ("GetRun", "Report", "Follow", "Download", "GetStatus", "WatchStatus", "WatchRun")
"""Calls that may succeed: they read, or repeat a report."""


def violation(call: RawCall, answer: RawAnswer) -> str | None:
    """How an answer violates the protocol, or None."""
    if answer.code is grpc.StatusCode.OK:
        may_succeed = call.method in _CHANGES_NOTHING or _is_duplicate_receipt(call, answer)
        return None if may_succeed else "it was accepted"
    if answer.refusal is None:
        return (
            None
            if _is_refused_by_grpc(call, answer) or _is_lost_by_grpc(call, answer)
            else f"{answer.code.name} without a reason: {answer.details}"
        )
    if answer.refusal.reason not in EXPECTED.get(answer.code, ()):
        return f"{answer.reason} is not a reason for {answer.code.name}: {answer.details}"
    if len(answer.details) > 1_000 or not answer.details.isprintable():
        return f"its message is not one printable line: {answer.details[:200]!r}"
    if answer.refusal.reason not in _WITHOUT_FIELD and not _names(answer.details, answer.refusal.field):
        return f"its message does not name the field {answer.refusal.field!r}: {answer.details}"
    return None


def _is_duplicate_receipt(call: RawCall, answer: RawAnswer) -> bool:
    return call.method == "Upload" and pb.UploadReceipt.FromString(answer.message).duplicate


def _is_refused_by_grpc(call: RawCall, answer: RawAnswer) -> bool:
    """A message over the limit, which gRPC refuses before a handler sees it."""
    return (
        answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        and "Received message larger than max" in answer.details
        and any(len(message) > MESSAGE_LIMIT for message in call.messages)
    )


def _is_lost_by_grpc(call: RawCall, answer: RawAnswer) -> bool:
    """A refusal that arrived while the caller was sending: its own core may lose the reason."""
    return call.method == "Upload" and answer.details == "Internal error from Core" and len(call.messages) > 0


def _names(text: str, field: str) -> bool:
    return bool(field) and (field in text or any(word in text for word in field.split("_")))


# --- calls ---


def malformed_calls(open_round: OpenRound, client: int, random: Random) -> Iterator[RawCall]:
    """Malformed calls without end in the name of one client, the same for the same seed."""
    while True:
        (kind,) = random.choices(list(_KINDS), weights=list(_KINDS.values()))
        call = kind(open_round, client, random)
        if call is not None:
            yield call


def _upload_with_mutated_bytes(open_round: OpenRound, client: int, random: Random) -> RawCall | None:
    parts = serialised(_parts(open_round, client, random))
    hit = random.randrange(len(parts))
    parts[hit] = (
        mutated_bytes(parts[hit], random)
        if random.random() < 0.7
        else with_invalid_field(parts[hit], range(1, 6), random)
    )
    return None if _is_equivalent(open_round, client, parts) else RawCall(method="Upload", messages=parts, what="bytes")


def _upload_with_mutated_header(open_round: OpenRound, client: int, random: Random) -> RawCall | None:
    header, *chunks = _parts(open_round, client, random)
    if random.random() < 0.5:
        header.header.metrics.CopyFrom(_valid_metrics())
    mutated = [mutate_field(header, random) for _ in range(random.randint(1, 3))]
    if random.random() < 0.5:
        _update_digest(header.header.manifest, b"".join(chunk.chunk.data for chunk in chunks))
    parts = serialised((header, *chunks))
    if _is_equivalent(open_round, client, parts):
        return None
    return RawCall(method="Upload", messages=parts, what=f"mutated {', '.join(mutated)}")


def _upload_out_of_order(open_round: OpenRound, client: int, random: Random) -> RawCall:
    header, *chunks = serialised(_parts(open_round, client, random))
    empty_chunk = pb.UploadPart(chunk=pb.Chunk()).SerializeToString()
    what, parts = random.choice(
        (
            ("no parts", []),
            ("no header", chunks),
            ("two headers", [header, header, *chunks]),
            ("header last", [*chunks, header]),
            ("header again at the end", [header, *chunks, header]),
            ("no chunks", [header]),
            ("a chunk less", [header, *chunks[:-1]]),
            ("a chunk more", [header, *chunks, chunks[-1]]),
            ("an empty chunk", [header, empty_chunk, *chunks]),
            ("an empty chunk at the end", [header, *chunks, empty_chunk]),
            ("an empty part", [b"", header, *chunks]),
            ("an empty part inside", [header, b"", *chunks]),
            ("a chunk of another size", [header, pb.UploadPart(chunk=pb.Chunk(data=bytes(5_000))).SerializeToString()]),
        )
    )
    return RawCall(method="Upload", messages=parts, what=what)


def _upload_of_bad_values(open_round: OpenRound, client: int, random: Random) -> RawCall:
    """Values that would spoil an average, under a valid digest."""
    valid = open_round.contributions[client]
    payload = decode(valid.manifest, valid.body())
    arrays = {name: array.copy() for name, array in payload.arrays() if array.dtype == np.float32}
    name = random.choice(list(arrays))
    values = [np.nan, np.inf, -np.inf]
    values += [-1e-30, -1.0] if name == FISHER else [1e7, -1e30, 3e38]
    value = random.choice(values)
    arrays[name].flat[random.randrange(arrays[name].size)] = value
    encoded = encode(_with_arrays(payload, arrays))
    size = random.choice((64, 1000)) * _scale(encoded)
    parts = serialised(_parts_of(open_round.sessions[client], open_round.round, encoded, size))
    return RawCall(method="Upload", messages=parts, what=f"a value of {value} in {name}")


def _with_arrays(payload: Payload, arrays: Mapping[str, Any]) -> Payload:
    prototypes, fisher = payload.prototypes, payload.fisher
    return Payload(
        prototypes=None if prototypes is None else replace(prototypes, vectors=arrays[PROTOTYPES]),
        fisher=None if fisher is None else FisherScores(arrays[FISHER]),
        tensors={name: arrays.get(name, tensor) for name, tensor in payload.tensors.items()},
    )


def _upload_too_large(open_round: OpenRound, client: int, random: Random) -> RawCall:
    """A consistent manifest, far over the limit."""
    header, *chunks = _parts(open_round, client, random)
    manifest = header.header.manifest
    tensors = _tensors_of(manifest)
    widened = random.choice([tensor for tensor in tensors if len(tensor.shape) > 1])
    widened.shape[-1] = random.choice((10**8, 2**32 - 1))
    manifest.total_bytes = sum(4 * prod(tensor.shape) for tensor in tensors)
    return RawCall(method="Upload", messages=serialised((header, *chunks)), what=f"{manifest.total_bytes} bytes")


def _tensors_of(manifest: pb.Manifest) -> list[pb.Tensor]:
    of_prototypes = [manifest.prototypes.matrix, manifest.fisher.scores] if manifest.HasField("prototypes") else []
    return [*of_prototypes, *manifest.tensors]


def _message_over_the_limit(open_round: OpenRound, client: int, random: Random) -> RawCall:
    method = random.choice(("Join", "Report", "Upload", "Download", "Leave"))
    return RawCall(method=method, messages=[bytes(MESSAGE_LIMIT + random.randint(1, 1000))], what="over the limit")


def _join(open_round: OpenRound, client: int, random: Random) -> RawCall:
    """Must be refused: every id is in use, and the previous session is not the right one."""
    request = pb.JoinRequest(
        run_id=open_round.run_id,
        client_id=client,
        previous_session=random.choice(("", "guess", open_round.sessions[client][::-1])),
        data=pb.DataSummary(label_counts=[1] * open_round.classes, test_samples=1),
        capabilities=pb.Capabilities(architecture="light", parameters=7, device="none", software_version="1"),
    )
    return _mutated("Join", request, random)


def _report(open_round: OpenRound, client: int, random: Random) -> RawCall | None:
    """Not one that validly skips the open round, which would change the run."""
    request = pb.ReportRequest(session=open_round.sessions[client], round=random.randint(0, open_round.round))
    match random.randrange(4):
        case 0:
            request.progress.CopyFrom(pb.Progress(epochs_done=1, epochs=2))
        case 1:
            request.failure.CopyFrom(pb.Failure(cause="out of memory"))
        case _:
            request.metrics.CopyFrom(_valid_metrics())
    call = _mutated("Report", request, random)
    return None if skips_round(_decoded(pb.ReportRequest, call.messages[0]), open_round) else call


def skips_round(request: pb.ReportRequest | None, open_round: OpenRound) -> bool:
    """Whether a member says that it skips the open round."""
    return (
        request is not None
        and request.failure.skips_round
        and request.session in open_round.sessions
        and request.round == open_round.round
    )


def _download(open_round: OpenRound, client: int, random: Random) -> RawCall:
    return _mutated("Download", pb.DownloadRequest(session=open_round.sessions[client], round=open_round.round), random)


def _follow(open_round: OpenRound, client: int, random: Random) -> RawCall:
    return _mutated("Follow", pb.FollowRequest(session=open_round.sessions[client]), random)


def _advance_sum(open_round: OpenRound, client: int, random: Random) -> RawCall:
    """Of a run without secure sums."""
    request = pb.AdvanceSumRequest(session=open_round.sessions[client], round=open_round.round)
    match random.randrange(3):
        case 0:
            request.keys.CopyFrom(pb.SumKeys(client_id=client, share_key=bytes(32), mask_key=bytes(32)))
        case 1:
            request.shares.by_client[(client + 1) % 16] = bytes(82)
        case _:
            request.signature = bytes(70)
    return _mutated("AdvanceSum", request, random)


def _leave(open_round: OpenRound, client: int, random: Random) -> RawCall:
    """Without a valid session, with which it would be a valid call."""
    return _mutated("Leave", pb.LeaveRequest(session=open_round.sessions[client][::-1], reason="bored"), random)


def _ask(open_round: OpenRound, client: int, random: Random) -> RawCall:
    return _mutated(
        random.choice(("GetRun", "GetStatus", "WatchStatus")), pb.GetRunRequest(software_version="1"), random
    )


def _operate(open_round: OpenRound, client: int, random: Random) -> RawCall | None:
    """Undecodable bytes only: any decodable message would be a valid order."""
    method = random.choice(("Pause", "Resume", "Stop"))
    data = mutated_bytes(b"\x0a\x05hello", random)
    if _decoded(getattr(pb, f"{method}Request"), data) is not None:
        return None
    return RawCall(method=method, messages=[data], what="bytes")


_KINDS: Final[dict[Callable[[OpenRound, int, Random], RawCall | None], float]] = {
    _upload_with_mutated_bytes: 18,
    _upload_with_mutated_header: 18,
    _upload_out_of_order: 8,
    _upload_of_bad_values: 7,
    _upload_too_large: 1,
    _join: 16,
    _report: 16,
    _download: 5,
    _follow: 3,
    _advance_sum: 3,
    _leave: 3,
    _ask: 2,
    _operate: 3,
    _message_over_the_limit: 0.2,
}


def _mutated(method: str, request: Message, random: Random) -> RawCall:
    way = random.random()
    if way < 0.4:
        return RawCall(method=method, messages=[mutated_bytes(request.SerializeToString(), random)], what="bytes")
    if way < 0.5:
        data = with_invalid_field(request.SerializeToString(), range(1, 8), random)
        return RawCall(method=method, messages=[data], what="an invalid field")
    mutated = [mutate_field(request, random) for _ in range(random.randint(1, 3))]
    return RawCall(method=method, messages=[request.SerializeToString()], what=f"mutated {', '.join(mutated)}")


# --- uploads ---


def _parts(open_round: OpenRound, client: int, random: Random) -> list[pb.UploadPart]:
    encoded = open_round.contributions[client]
    size = random.choice((1, 7, 64, 200, 1_000)) * _scale(encoded)
    return _parts_of(open_round.sessions[client], open_round.round, encoded, size)


def _scale(encoded: Encoded) -> int:
    """By how much chunks are larger than those of a small upload, so that there are not too many."""
    return max(encoded.manifest.total_bytes // 1_000, 1)


def _parts_of(session: str, round_number: int, encoded: Encoded, size: int) -> list[pb.UploadPart]:
    manifest, body = pb.Manifest(), encoded.body()
    manifest.CopyFrom(encoded.manifest)
    header = pb.UploadPart(header=pb.UploadHeader(session=session, round=round_number, manifest=manifest))
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return [header, *(pb.UploadPart(chunk=pb.Chunk(data=chunk)) for chunk in chunks)]


def _update_digest(manifest: pb.Manifest, body: bytes) -> None:
    """Makes the digest valid for the mutated manifest, so that the server gets past it."""
    with suppress(PayloadError):  # a mutated manifest may have no digest
        manifest.sha256 = digest_of(manifest, [body])


def _is_equivalent(open_round: OpenRound, client: int, parts: Sequence[bytes]) -> bool:
    """Whether a mutation left the upload valid: unknown fields are ignored, and so are labels and valid metrics.

    Tensors may come in any order, if the digest is that of this order.
    """
    decoded = [_decoded(pb.UploadPart, part) for part in parts]
    encoded = open_round.contributions[client]
    valid = _parts_of(open_round.sessions[client], open_round.round, encoded, 1_000 * _scale(encoded))
    return _meaning(decoded) == _meaning(valid)


def _meaning(parts: Sequence[pb.UploadPart | None]) -> object:
    if not parts or any(part is None for part in parts):
        return None
    first, *rest = [part for part in parts if part is not None]
    if not first.HasField("header") or not all(part.HasField("chunk") and part.chunk.data for part in rest):
        return None
    header = pb.UploadHeader()
    header.CopyFrom(first.header)
    header.DiscardUnknownFields()
    header.awaits_admission = False  # says when the body is sent, not what is in it
    if _are_valid(header.metrics):
        header.ClearField("metrics")
    if header.manifest.HasField("prototypes"):
        for tensor in (header.manifest.prototypes.matrix, header.manifest.fisher.scores):
            tensor.name = ""
    body = b"".join(part.chunk.data for part in rest)
    with suppress(PayloadError):
        if header.manifest.sha256 == digest_of(header.manifest, [body]):
            header.manifest.sha256 = b""
            header.manifest.tensors.sort(key=lambda tensor: tensor.name)
    return header.SerializeToString(deterministic=True), body


def _decoded(kind: type[MessageT], data: bytes) -> MessageT | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


# --- metrics ---


def _valid_metrics() -> pb.RoundMetrics:
    return pb.RoundMetrics(
        accuracies=[pb.Accuracy(rule="head"), pb.Accuracy(rule="prototype", correct=1)],
        inference="prototype",
        test_samples=LightClient.test_samples,
        losses=[pb.LossTerm(name="total", value=0.5), pb.LossTerm(name="l_s", value=0.25)],
        seconds=pb.Seconds(evaluate=0.1, train=0.2, collect=0.3),
        bytes_down=10,
        bytes_up=20,
    )


def _are_valid(metrics: pb.RoundMetrics) -> bool:
    """By the rules of the protocol, for a client with one test sample and one training sample of each class."""
    rules, terms = [entry.rule for entry in metrics.accuracies], [term.name for term in metrics.losses]
    seconds = (metrics.seconds.evaluate, metrics.seconds.train, metrics.seconds.collect)
    return (
        all(entry.correct <= metrics.test_samples for entry in metrics.accuracies)
        and metrics.rare_correct <= metrics.rare_test_samples <= metrics.test_samples <= LightClient.test_samples
        and all(entry.validation_correct <= metrics.validation_samples for entry in metrics.accuracies)
        and metrics.validation_samples <= _MOST_VALIDATION_SAMPLES
        and all(len(set(names)) == len(names) <= 64 and all(names) for names in (rules, terms))
        and all(len(text) <= 256 and text.isprintable() for text in (*rules, *terms, metrics.inference))
        and all(isfinite(term.value) for term in metrics.losses)
        and all(0 <= taken <= 366 * 86_400 for taken in seconds)
        and max(metrics.bytes_down, metrics.bytes_up) <= 2**40
    )
