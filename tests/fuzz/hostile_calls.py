"""Calls nobody honest would make, drawn from a seed, and what a server may answer to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Final

import grpc
import numpy as np
from damage import damaged_bytes, spoil_a_field, with_foreign_field
from google.protobuf.message import DecodeError, Message
from raw_calls import RawAnswer, RawCall, serialised

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import PayloadError
from feddbp_common.wire import Encoded, FisherScores, Payload, decode, digest_of, encode

MESSAGE_LIMIT: Final = 1 << 20
"""Bytes of one message; gRPC itself refuses a longer one."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A run in the middle of a round. Whoever may still upload is one of its clients, and all ids are taken."""

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
    grpc.StatusCode.FAILED_PRECONDITION: {pb.REFUSAL_REASON_OTHER_RUN, pb.REFUSAL_REASON_WRONG_ROUND},
    grpc.StatusCode.ALREADY_EXISTS: {pb.REFUSAL_REASON_ID_IN_USE, pb.REFUSAL_REASON_ALREADY_UPLOADED},
    grpc.StatusCode.UNAUTHENTICATED: {pb.REFUSAL_REASON_STALE_SESSION},
    grpc.StatusCode.PERMISSION_DENIED: {pb.REFUSAL_REASON_NOT_AUTHORISED},
    grpc.StatusCode.RESOURCE_EXHAUSTED: {pb.REFUSAL_REASON_TOO_LARGE},
    grpc.StatusCode.UNAVAILABLE: {pb.REFUSAL_REASON_BUSY},
}
"""Which reasons go with which status. Nothing else may come back: not UNKNOWN, not INTERNAL."""

_CHANGES_NOTHING: Final = ("GetRun", "Report", "Follow", "Download", "GetStatus", "WatchStatus")
"""Calls that may succeed here: they only read, or report again what was reported before."""


def complaint(call: RawCall, answer: RawAnswer) -> str | None:
    """What is wrong with an answer, if anything is."""
    if answer.code is grpc.StatusCode.OK:
        may_succeed = call.method in _CHANGES_NOTHING or _is_receipt_again(call, answer)
        return None if may_succeed else "it was accepted"
    if answer.refusal is None:
        return None if _is_refused_by_grpc(call, answer) else f"{answer.code.name} without a reason: {answer.details}"
    if answer.refusal.reason not in EXPECTED.get(answer.code, ()):
        return f"{answer.reason} must not be told by {answer.code.name}: {answer.details}"
    if len(answer.details) > 1_000 or not answer.details.isprintable():
        return f"its message is not one readable line: {answer.details[:200]!r}"
    if answer.refusal.reason != pb.REFUSAL_REASON_BUSY and not _names(answer.details, answer.refusal.field):
        return f"its message does not name the field {answer.refusal.field!r}: {answer.details}"
    return None


def _is_receipt_again(call: RawCall, answer: RawAnswer) -> bool:
    return call.method == "Upload" and pb.UploadReceipt.FromString(answer.message).duplicate


def _is_refused_by_grpc(call: RawCall, answer: RawAnswer) -> bool:
    """The one refusal that does not reach us: a message over the limit, which gRPC stops while it arrives."""
    return (
        answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        and "Received message larger than max" in answer.details
        and any(len(message) > MESSAGE_LIMIT for message in call.messages)
    )


def _names(text: str, field: str) -> bool:
    return bool(field) and (field in text or any(word in text for word in field.split("_")))


# --- calls ---


def hostile_calls(scene: Scene, client: int, random: Random) -> Iterator[RawCall]:
    """Endless malformed calls in the name of one client, the same for the same seed."""
    while True:
        (kind,) = random.choices(list(_KINDS), weights=list(_KINDS.values()))
        call = kind(scene, client, random)
        if call is not None:
            yield call


def _upload_with_damaged_bytes(scene: Scene, client: int, random: Random) -> RawCall | None:
    parts = serialised(_parts(scene, client, random))
    hit = random.randrange(len(parts))
    parts[hit] = (
        damaged_bytes(parts[hit], random)
        if random.random() < 0.7
        else with_foreign_field(parts[hit], range(1, 6), random)
    )
    return None if _says_the_same(scene, client, parts) else RawCall(method="Upload", messages=parts, what="bytes")


def _upload_with_a_spoilt_header(scene: Scene, client: int, random: Random) -> RawCall | None:
    header, *chunks = _parts(scene, client, random)
    spoilt = [spoil_a_field(header, random) for _ in range(random.randint(1, 3))]
    if random.random() < 0.5:
        _sign_again(header.header.manifest, b"".join(chunk.chunk.data for chunk in chunks))
    parts = serialised((header, *chunks))
    if _says_the_same(scene, client, parts):
        return None
    return RawCall(method="Upload", messages=parts, what=f"spoilt {', '.join(spoilt)}")


def _upload_out_of_order(scene: Scene, client: int, random: Random) -> RawCall:
    header, *chunks = serialised(_parts(scene, client, random))
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


def _upload_of_poison(scene: Scene, client: int, random: Random) -> RawCall:
    """Values that would spoil an average, under a digest that is right."""
    honest = scene.contributions[client]
    payload = decode(honest.manifest, honest.body())
    assert payload.prototypes is not None
    assert isinstance(payload.fisher, FisherScores)
    vectors, scores = payload.prototypes.vectors.copy(), payload.fisher.scores.copy()
    poisoned = vectors if random.random() < 0.5 else scores
    row, column = random.randrange(poisoned.shape[0]), random.randrange(poisoned.shape[1])
    poisons = [np.nan, np.inf, -np.inf]
    poisons += [1e7, -1e30, 3e38] if poisoned is vectors else [-1e-30, -1.0]
    poisoned[row, column] = random.choice(poisons)
    prototypes = type(payload.prototypes)(
        class_ids=payload.prototypes.class_ids, counts=payload.prototypes.counts, vectors=vectors
    )
    encoded = encode(Payload(prototypes=prototypes, fisher=FisherScores(scores)))
    parts = serialised(_parts_of(scene.sessions[client], scene.round, encoded, random.choice((64, 1000))))
    return RawCall(method="Upload", messages=parts, what=f"a value of {poisoned[row, column]}")


def _upload_too_large(scene: Scene, client: int, random: Random) -> RawCall:
    """All of it consistent, and far more than anyone may send."""
    header, *chunks = _parts(scene, client, random)
    manifest = header.header.manifest
    manifest.prototypes.matrix.shape[1] = random.choice((10**8, 2**32 - 1))
    manifest.total_bytes = sum(4 * rows * columns for rows, columns in _shapes(manifest))
    return RawCall(method="Upload", messages=serialised((header, *chunks)), what=f"{manifest.total_bytes} bytes")


def _shapes(manifest: pb.Manifest) -> Iterator[tuple[int, int]]:
    for tensor in (manifest.prototypes.matrix, manifest.fisher.scores):
        rows, columns = tensor.shape
        yield rows, columns


def _message_over_the_limit(scene: Scene, client: int, random: Random) -> RawCall:
    method = random.choice(("Join", "Report", "Upload", "Download", "Leave"))
    return RawCall(method=method, messages=[bytes(MESSAGE_LIMIT + random.randint(1, 1000))], what="over the limit")


def _join(scene: Scene, client: int, random: Random) -> RawCall:
    """Nobody gets in: every id is in use, and the session that would open it is nobody else's."""
    request = pb.JoinRequest(
        run_id=scene.run_id,
        client_id=client,
        previous_session=random.choice(("", "guess", scene.sessions[client][::-1])),
        data=pb.DataSummary(label_counts=[1] * scene.classes, test_samples=1),
        capabilities=pb.Capabilities(architecture="light", parameters=7, device="none", software_version="1"),
    )
    return _damaged("Join", request, random)


def _report(scene: Scene, client: int, random: Random) -> RawCall:
    request = pb.ReportRequest(session=scene.sessions[client], round=random.randint(0, scene.round))
    match random.randrange(4):
        case 0:
            request.progress.CopyFrom(pb.Progress(epochs_done=1, epochs=2))
        case 1:
            request.failure.CopyFrom(pb.Failure(cause="out of memory"))
        case _:
            request.metrics.CopyFrom(
                pb.RoundMetrics(
                    accuracies=[pb.Accuracy(rule="head", correct=3), pb.Accuracy(rule="prototype", correct=4)],
                    inference="prototype",
                    test_samples=5,
                    losses=[pb.LossTerm(name="total", value=0.5), pb.LossTerm(name="l_s", value=0.25)],
                    seconds=pb.Seconds(evaluate=0.1, train=0.2, collect=0.3),
                    bytes_down=10,
                    bytes_up=20,
                )
            )
    return _damaged("Report", request, random)


def _download(scene: Scene, client: int, random: Random) -> RawCall:
    return _damaged("Download", pb.DownloadRequest(session=scene.sessions[client], round=scene.round), random)


def _follow(scene: Scene, client: int, random: Random) -> RawCall:
    return _damaged("Follow", pb.FollowRequest(session=scene.sessions[client]), random)


def _leave(scene: Scene, client: int, random: Random) -> RawCall:
    """Not with a session that is in force: that would be a goodbye like any other."""
    return _damaged("Leave", pb.LeaveRequest(session=scene.sessions[client][::-1], reason="bored"), random)


def _ask(scene: Scene, client: int, random: Random) -> RawCall:
    return _damaged(
        random.choice(("GetRun", "GetStatus", "WatchStatus")), pb.GetRunRequest(software_version="1"), random
    )


def _operate(scene: Scene, client: int, random: Random) -> RawCall | None:
    """Only what is no message at all: the run belongs to whoever may operate it."""
    method = random.choice(("Pause", "Resume", "Stop"))
    data = damaged_bytes(b"\x0a\x05hello", random)
    if _decoded(getattr(pb, f"{method}Request"), data) is not None:
        return None
    return RawCall(method=method, messages=[data], what="bytes")


_KINDS: Final[dict[Callable[[Scene, int, Random], RawCall | None], float]] = {
    _upload_with_damaged_bytes: 18,
    _upload_with_a_spoilt_header: 18,
    _upload_out_of_order: 8,
    _upload_of_poison: 7,
    _upload_too_large: 1,
    _join: 16,
    _report: 16,
    _download: 5,
    _follow: 3,
    _leave: 3,
    _ask: 2,
    _operate: 3,
    _message_over_the_limit: 0.2,
}


def _damaged(method: str, request: Message, random: Random) -> RawCall:
    way = random.random()
    if way < 0.4:
        return RawCall(method=method, messages=[damaged_bytes(request.SerializeToString(), random)], what="bytes")
    if way < 0.5:
        data = with_foreign_field(request.SerializeToString(), range(1, 8), random)
        return RawCall(method=method, messages=[data], what="a foreign field")
    spoilt = [spoil_a_field(request, random) for _ in range(random.randint(1, 3))]
    return RawCall(method=method, messages=[request.SerializeToString()], what=f"spoilt {', '.join(spoilt)}")


# --- uploads ---


def _parts(scene: Scene, client: int, random: Random) -> list[pb.UploadPart]:
    size = random.choice((1, 7, 64, 200, 1_000))
    return _parts_of(scene.sessions[client], scene.round, scene.contributions[client], size)


def _parts_of(session: str, round_number: int, encoded: Encoded, size: int) -> list[pb.UploadPart]:
    manifest, body = pb.Manifest(), encoded.body()
    manifest.CopyFrom(encoded.manifest)
    header = pb.UploadPart(header=pb.UploadHeader(session=session, round=round_number, manifest=manifest))
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    return [header, *(pb.UploadPart(chunk=pb.Chunk(data=chunk)) for chunk in chunks)]


def _sign_again(manifest: pb.Manifest, body: bytes) -> None:
    """Makes the digest right for what the manifest says now, so that it is not what the server stumbles over."""
    with suppress(PayloadError):  # it may declare something that has no digest
        manifest.sha256 = digest_of(manifest, [body])


def _says_the_same(scene: Scene, client: int, parts: Sequence[bytes]) -> bool:
    """Whether the damage did not change the meaning: unknown fields are ignored, and some names are only labels."""
    decoded = [_decoded(pb.UploadPart, part) for part in parts]
    honest = _parts_of(scene.sessions[client], scene.round, scene.contributions[client], 1_000)
    return _meaning(decoded) == _meaning(honest)


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
    for tensor in (header.manifest.prototypes.matrix, header.manifest.fisher.scores):
        tensor.name = ""
    return header.SerializeToString(deterministic=True), b"".join(part.chunk.data for part in rest)


def _decoded(kind: type[Message], data: bytes) -> Message | None:
    try:
        return kind.FromString(data)
    except DecodeError:
        return None
