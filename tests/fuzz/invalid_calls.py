"""Calls that are invalid in one respect each, with the reason and the field of the expected refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from google.protobuf.message import Message
from malformed_calls import OpenRound
from raw_calls import RawCall, serialised

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.wire import Encoded, digest_of

InvalidCall = tuple[RawCall, pb.RefusalReason.ValueType, str]
Change = Callable[[Any], object]

_PAYLOAD: Final = pb.REFUSAL_REASON_INVALID_PAYLOAD
_REQUEST: Final = pb.REFUSAL_REASON_INVALID_REQUEST

_HEADERS: Final[Sequence[tuple[str, Change, pb.RefusalReason.ValueType, str]]] = (
    ("no session", lambda h: h.ClearField("session"), pb.REFUSAL_REASON_STALE_SESSION, "session"),
    ("another session", lambda h: setattr(h, "session", "x" * 32), pb.REFUSAL_REASON_STALE_SESSION, "session"),
    ("a long session", lambda h: setattr(h, "session", "x" * 10**5), pb.REFUSAL_REASON_STALE_SESSION, "session"),
    ("a round to come", lambda h: setattr(h, "round", 2), pb.REFUSAL_REASON_WRONG_ROUND, "round"),
    ("a round of minus one", lambda h: setattr(h, "round", 2**32 - 1), pb.REFUSAL_REASON_WRONG_ROUND, "round"),
    ("no manifest", lambda h: h.ClearField("manifest"), _PAYLOAD, "sha256"),
    ("no prototypes", lambda h: h.manifest.ClearField("prototypes"), _PAYLOAD, "total_bytes"),
    ("no fisher", lambda h: h.manifest.ClearField("fisher"), _PAYLOAD, "total_bytes"),
    ("fisher of no form", lambda h: h.manifest.fisher.ClearField("scores"), _PAYLOAD, "fisher"),
    ("no dtype", lambda h: h.manifest.prototypes.matrix.ClearField("dtype"), _PAYLOAD, "prototypes"),
    ("dtype 99", lambda h: setattr(h.manifest.prototypes.matrix, "dtype", 99), _PAYLOAD, "prototypes"),
    ("dtype -1", lambda h: setattr(h.manifest.fisher.scores, "dtype", -1), _PAYLOAD, "fisher"),
    ("whole numbers", lambda h: setattr(h.manifest.fisher.scores, "dtype", pb.DTYPE_INT32), _PAYLOAD, "fisher"),
    ("a flat matrix", lambda h: _put(h.manifest.prototypes.matrix.shape, [40]), _PAYLOAD, "prototypes"),
    ("a turned matrix", lambda h: _put(h.manifest.prototypes.matrix.shape, [8, 5]), _PAYLOAD, "prototypes"),
    ("a cube", lambda h: _put(h.manifest.prototypes.matrix.shape, [5, 8, 1]), _PAYLOAD, "prototypes"),
    ("nine dimensions", lambda h: _put(h.manifest.prototypes.matrix.shape, [1] * 9), _PAYLOAD, "'prototypes'"),
    ("scores for fewer", lambda h: _put(h.manifest.fisher.scores.shape, [4, 10]), _PAYLOAD, "fisher"),
    ("unsorted ids", lambda h: _put(h.manifest.prototypes.class_ids, [1, 0, 2, 3, 4]), _PAYLOAD, "class_ids"),
    ("repeated ids", lambda h: _put(h.manifest.prototypes.class_ids, [0, 1, 1, 3, 4]), _PAYLOAD, "class_ids"),
    ("an id too high", lambda h: _put(h.manifest.prototypes.class_ids, [0, 1, 2, 3, 5]), _PAYLOAD, "class_ids"),
    (
        "an id of minus one",
        lambda h: _put(h.manifest.prototypes.class_ids, [0, 1, 2, 3, 2**32 - 1]),
        _PAYLOAD,
        "class_ids",
    ),
    ("an id less", lambda h: h.manifest.prototypes.class_ids.pop(), _PAYLOAD, "prototypes"),
    ("no counts", lambda h: h.manifest.prototypes.ClearField("counts"), _PAYLOAD, "counts"),
    ("a count less", lambda h: h.manifest.prototypes.counts.pop(), _PAYLOAD, "counts"),
    ("a count of zero", lambda h: _put(h.manifest.prototypes.counts, [1, 1, 0, 1, 1]), _PAYLOAD, "counts"),
    ("more than declared", lambda h: _put(h.manifest.prototypes.counts, [1, 1, 2, 1, 1]), _PAYLOAD, "counts"),
    ("a count of minus one", lambda h: _put(h.manifest.prototypes.counts, [1, 1, 2**32 - 1, 1, 1]), _PAYLOAD, "counts"),
    ("total off by one", lambda h: setattr(h.manifest, "total_bytes", 321), _PAYLOAD, "total_bytes"),
    ("total of minus one", lambda h: setattr(h.manifest, "total_bytes", 2**64 - 1), _PAYLOAD, "total_bytes"),
    (
        "a tensor too many",
        lambda h: h.manifest.tensors.add(name="weights", dtype=pb.DTYPE_FLOAT32, shape=[0]),
        _PAYLOAD,
        "'weights'",
    ),
    (
        "tensors without end",
        lambda h: h.manifest.tensors.extend([pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=[0])] * 5000),
        _PAYLOAD,
        "tensors",
    ),
)
"""Changes of a header, under a digest that is valid for it."""

_JOINS: Final[Sequence[tuple[str, Change, pb.RefusalReason.ValueType, str]]] = (
    ("no run", lambda r: r.ClearField("run_id"), pb.REFUSAL_REASON_OTHER_RUN, "run_id"),
    ("another run", lambda r: setattr(r, "run_id", "0" * 10**4), pb.REFUSAL_REASON_OTHER_RUN, "run_id"),
    ("an id too high", lambda r: setattr(r, "client_id", 16), pb.REFUSAL_REASON_UNKNOWN_CLIENT, "client_id"),
    ("an id of minus one", lambda r: setattr(r, "client_id", 2**32 - 1), pb.REFUSAL_REASON_UNKNOWN_CLIENT, "client_id"),
    ("an id in use", lambda r: None, pb.REFUSAL_REASON_ID_IN_USE, "client_id"),
    ("a stolen id", lambda r: setattr(r, "client_id", 3), pb.REFUSAL_REASON_ID_IN_USE, "client_id"),
    ("no data", lambda r: r.ClearField("data"), _REQUEST, "label_counts"),
    ("a class more", lambda r: r.data.label_counts.append(1), _REQUEST, "label_counts"),
    ("no samples", lambda r: _put(r.data.label_counts, [0] * 5), _REQUEST, "label_counts"),
    ("too many samples", lambda r: _put(r.data.label_counts, [2**32 - 1] * 5), _REQUEST, "label_counts"),
    ("too many tests", lambda r: setattr(r.data, "test_samples", 2**32 - 1), _REQUEST, "test_samples"),
    ("a long session", lambda r: setattr(r, "previous_session", "x" * 10**4), _REQUEST, "previous_session"),
    ("a long name", lambda r: setattr(r.capabilities, "architecture", "名" * 257), _REQUEST, "architecture"),
    ("a name of two lines", lambda r: setattr(r.capabilities, "architecture", "a\nb"), _REQUEST, "architecture"),
    ("a long device", lambda r: setattr(r.capabilities, "device", "x" * 10**4), _REQUEST, "device"),
    ("a strange version", lambda r: setattr(r.capabilities, "software_version", "\x00"), _REQUEST, "software_version"),
)
_REPORTS: Final[Sequence[tuple[str, Change, pb.RefusalReason.ValueType, str]]] = (
    ("no session", lambda r: r.ClearField("session"), pb.REFUSAL_REASON_STALE_SESSION, "session"),
    ("a round to come", lambda r: setattr(r, "round", 2), pb.REFUSAL_REASON_WRONG_ROUND, "round"),
    ("nothing", lambda r: r.ClearField("metrics"), _REQUEST, "report"),
    ("a failure to come", lambda r: _fail(r, 2), pb.REFUSAL_REASON_WRONG_ROUND, "round"),
    ("more done than there is", lambda r: setattr(r.progress, "epochs_done", 1), _REQUEST, "epochs_done"),
)
_METRICS: Final[Sequence[tuple[str, Change, pb.RefusalReason.ValueType, str]]] = (
    ("more right than asked", lambda r: setattr(r.metrics.accuracies[0], "correct", 2), _REQUEST, "accuracies"),
    ("a rule without a name", lambda r: r.metrics.accuracies[0].ClearField("rule"), _REQUEST, "accuracies"),
    ("a rule twice", lambda r: r.metrics.accuracies.add(rule="head"), _REQUEST, "accuracies"),
    ("a long rule", lambda r: setattr(r.metrics.accuracies[0], "rule", "x" * 10**4), _REQUEST, "accuracies"),
    ("too many rules", lambda r: r.metrics.accuracies.extend(_rules(100)), _REQUEST, "accuracies"),
    ("a long inference", lambda r: setattr(r.metrics, "inference", "x" * 10**4), _REQUEST, "inference"),
    ("a loss that is none", lambda r: setattr(r.metrics.losses[0], "value", float("nan")), _REQUEST, "losses"),
    ("an endless loss", lambda r: setattr(r.metrics.losses[0], "value", float("-inf")), _REQUEST, "losses"),
    ("a loss twice", lambda r: r.metrics.losses.add(name="total"), _REQUEST, "losses"),
    ("a negative time", lambda r: setattr(r.metrics.seconds, "train", -1.0), _REQUEST, "seconds"),
    ("an endless time", lambda r: setattr(r.metrics.seconds, "collect", float("inf")), _REQUEST, "seconds"),
    ("more tests than declared", lambda r: setattr(r.metrics, "test_samples", 2), _REQUEST, "test_samples"),
    ("too many tests", lambda r: setattr(r.metrics, "test_samples", 2**32 - 1), _REQUEST, "test_samples"),
    ("too many bytes up", lambda r: setattr(r.metrics, "bytes_up", 2**64 - 1), _REQUEST, "bytes_up"),
    ("too many bytes down", lambda r: setattr(r.metrics, "bytes_down", 2**63), _REQUEST, "bytes_down"),
)
"""Changes of what a round's results are sent in: a report, or the header of an upload."""


def invalid_calls(open_round: OpenRound) -> Iterator[InvalidCall]:
    """Calls in the name of client 0, which has not uploaded to the open round yet."""
    for what, change, reason, field in _HEADERS:
        yield _upload(open_round, what, change), reason, field
    for what, change, reason, field in _JOINS:
        request = pb.JoinRequest(run_id=open_round.run_id, data=pb.DataSummary(label_counts=[1] * open_round.classes))
        yield _changed("Join", what, request, change), reason, field
    # as many test samples as the client has declared
    metrics = pb.RoundMetrics(accuracies=_rules(1), test_samples=1, losses=[pb.LossTerm(name="total", value=0.5)])
    for what, change, reason, field in (*_REPORTS, *_METRICS):
        report = pb.ReportRequest(session=open_round.sessions[0], round=open_round.round, metrics=metrics)
        yield _changed("Report", what, report, change), reason, field
    for what, change, reason, field in _METRICS:
        yield _upload(open_round, what, change, metrics=metrics), reason, field
    yield _upload(open_round, "a digest of 31 bytes", lambda _: None, sha256=bytes(31)), _PAYLOAD, "sha256"
    yield _upload(open_round, "a wrong digest", lambda _: None, sha256=bytes(32)), _PAYLOAD, "sha256"
    large: tuple[tuple[str, Message], ...] = (
        ("Join", pb.JoinRequest(run_id="0" * 10**5)),
        ("Follow", pb.FollowRequest(session="x" * 10**5)),
        ("Report", pb.ReportRequest(session="x" * 3 * 10**5)),
        ("GetRun", pb.GetRunRequest(software_version="x" * 10**5)),
        ("Stop", pb.StopRequest(reason="x" * 10**5)),
    )
    for method, message in large:
        yield _changed(method, "too large", message), pb.REFUSAL_REASON_TOO_LARGE, "request"
    for round_number in (0, 2, 2**32 - 1):
        download = pb.DownloadRequest(session=open_round.sessions[0], round=round_number)
        yield _changed("Download", "another round", download), pb.REFUSAL_REASON_WRONG_ROUND, "round"
    without_session: tuple[tuple[str, Message], ...] = (
        ("Follow", pb.FollowRequest()),
        ("Leave", pb.LeaveRequest()),
        ("Download", pb.DownloadRequest()),
    )
    for method, message in without_session:
        yield _changed(method, "no session", message), pb.REFUSAL_REASON_STALE_SESSION, "session"
    for method in ("Join", "Follow", "Download", "Upload", "Report", "Leave", "GetRun", "Pause", "Resume", "Stop"):
        yield RawCall(method=method, messages=[b"\x08\x96\xff"], what="no message"), _REQUEST, "request"


def _upload(
    open_round: OpenRound,
    what: str,
    change: Change,
    *,
    sha256: bytes | None = None,
    metrics: pb.RoundMetrics | None = None,
) -> RawCall:
    valid: Encoded = open_round.contributions[0]
    header = pb.UploadHeader(
        session=open_round.sessions[0], round=open_round.round, manifest=valid.manifest, metrics=metrics
    )
    change(header)
    header.manifest.sha256 = _digest(header.manifest, valid.body()) if sha256 is None else sha256
    if what == "no manifest":
        header.ClearField("manifest")
    parts = (pb.UploadPart(header=header), pb.UploadPart(chunk=pb.Chunk(data=valid.body())))
    return RawCall(method="Upload", messages=serialised(parts), what=what)


def _digest(manifest: pb.Manifest, body: bytes) -> bytes:
    try:
        return digest_of(manifest, [body])
    except Exception:  # an invalid manifest may have no digest
        return bytes(32)


def _changed(method: str, what: str, request: Any, change: Change = lambda _: None) -> RawCall:
    change(request)
    return RawCall(method=method, messages=[request.SerializeToString()], what=what)


def _put(entries: Any, values: list[int]) -> None:
    entries[:] = values


def _fail(request: pb.ReportRequest, round_number: int) -> None:
    request.round = round_number
    request.failure.cause = "none"


def _rules(count: int) -> list[pb.Accuracy]:
    return [pb.Accuracy(rule="head" if number == 0 else f"rule {number}") for number in range(count)]
