"""Checks of what a server says, as strict as the server's of what a client says.

Every reply passes through here before anything is done with it: nothing a server names becomes a path, no number it
gives is used unbounded, and what is invalid ends the client with one line that names the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.artifacts import DATA_CACHE_NAME
from feddbp_common.config.run import RunConfig, run_from_proto
from feddbp_common.errors import ConfigurationError, ExitCode, FedDBPError, PayloadError
from feddbp_common.printable import printable

MAX_DOWNLOAD_BYTES: Final = 256 << 20
MAX_PROTOTYPE_VALUES: Final = 1 << 25
"""Classes times features: a client has several matrices of that size, for its head, its prototypes and their scores.
It is the largest number of classes at the default width."""
MAX_LAYER_VALUES: Final = 1 << 26
"""Features times features: methods have layers of that size, such as the branches of FedDBP."""
LONGEST_DURATION: Final = timedelta(days=3650)
"""Of a lease or a deadline; a longer one is a mistake, and sums of such may not fit into a timedelta."""
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TOKEN: Final = re.compile(r"[!-~]{1,256}")
_LONGEST_NAME: Final = 256
_MOST_NAMES: Final = 1024
MessageT = TypeVar("MessageT", bound=Message)
_OUTCOMES: Final = (pb.RUN_OUTCOME_FINISHED, pb.RUN_OUTCOME_FAILED, pb.RUN_OUTCOME_STOPPED)


class InvalidReplyError(FedDBPError):
    """The server sent something invalid; names the field and the reason."""

    exit_code = ExitCode.INVALID_REPLY

    def __init__(self, call: str, field: str, reason: str) -> None:
        super().__init__(f"the server's answer to {call} is invalid: {field}: {printable(reason)}")
        self.call = call
        self.field = field


class OutOfBoundsError(InvalidReplyError):
    """A download has values that no training can use; the one of the next round may be usable."""


def decoded(call: str, reply: MessageT | None) -> MessageT:
    """The reply, unless its bytes were no message: gRPC gives None then."""
    if reply is None:
        raise InvalidReplyError(call, "message", "is not a message of the protocol")
    return reply


def check_run(described: pb.GetRunResponse) -> None:
    """Checks everything but the configuration, for which there is `checked_config`."""
    if _RUN_ID.fullmatch(described.run_id) is None:
        wanted = "up to 64 letters, digits, hyphens and underscores that begin with a letter or a digit"
        raise _invalid_run("run_id", f"is {described.run_id[:64]!r}, not {wanted}")
    if described.run_id == DATA_CACHE_NAME:
        raise _invalid_run("run_id", f"is {DATA_CACHE_NAME!r}, the name of a client's cache")
    _check_names("software_version", [described.software_version])
    _check_names("required_features", described.required_features)
    _check_names("features", described.features)


def checked_config(described: pb.GetRunResponse) -> RunConfig:
    """The run's configuration, which decides how much memory a client takes."""
    _check_names("config.data.class_names", described.config.data.class_names, most=described.config.data.classes)
    try:
        config = run_from_proto(described.config)
    except ConfigurationError as error:
        raise _invalid_run("config", str(error)) from None
    width = config.training.feature_dim
    _check_size(config.classes * width, f"{config.classes} classes of {width} features", most=MAX_PROTOTYPE_VALUES)
    _check_size(width * width, f"a layer from {width} to {width} features", most=MAX_LAYER_VALUES)
    return config


def _check_size(values: int, what: str, *, most: int) -> None:
    if values > most:
        raise _invalid_run("config", f"{what}: {values} values, at most {most} are admitted")


def check_joined(joined: pb.JoinResponse) -> timedelta:
    """Returns the lease."""
    if _TOKEN.fullmatch(joined.session) is None:
        raise InvalidReplyError("Join", "session", "is not a token of 1 to 256 printable characters")
    lease = _duration("Join", "lease", joined.lease)
    if not lease:
        raise InvalidReplyError("Join", "lease", "is zero")
    return lease


def check_event(event: pb.RoundEvent) -> None:
    kind = event.WhichOneof("event")
    if kind is None:
        raise InvalidReplyError("Follow", "event", "is empty, or of a kind that this version does not know")
    if kind == "round_opened" and event.round_opened.HasField("deadline"):
        _duration("Follow", "deadline", event.round_opened.deadline)
    if kind == "run_ended" and event.run_ended.outcome not in _OUTCOMES:
        raise InvalidReplyError("Follow", "outcome", f"is {event.run_ended.outcome}, which is not known")


def check_round(event: pb.RoundEvent, rounds: int) -> None:
    """Checks that the round of an event is one of the run's, or the evaluation after the last of them."""
    if event.HasField("round_opened") and event.round_opened.round >= rounds:
        raise InvalidReplyError("Follow", "round", f"is {event.round_opened.round} in a run of {rounds} rounds")
    if event.HasField("final_evaluation") and event.final_evaluation.round > rounds:
        after = event.final_evaluation.round
        raise InvalidReplyError("Follow", "round", f"is {after} for the evaluation after {rounds} rounds")


def check_receipt(receipt: pb.UploadReceipt, round_number: int, sha256: bytes) -> None:
    if receipt.round != round_number:
        raise InvalidReplyError("Upload", "round", f"is {receipt.round}, the upload was for {round_number}")
    if receipt.sha256 != sha256:
        raise InvalidReplyError("Upload", "sha256", "is not the digest of the upload")


@contextmanager
def checking_download(call: str = "Download") -> Iterator[None]:
    try:
        yield
    except PayloadError as error:
        raise InvalidReplyError(call, error.field, error.reason) from None


def _invalid_run(field: str, reason: str) -> InvalidReplyError:
    return InvalidReplyError("GetRun", field, reason)


def _check_names(field: str, names: Iterable[str], *, most: int = _MOST_NAMES) -> None:
    for number, name in enumerate(names):
        if number >= most:
            raise _invalid_run(field, f"has more than {most} entries")
        if len(name) > _LONGEST_NAME or not name.isprintable():
            raise _invalid_run(field, f"{name[:64]!r} is longer than {_LONGEST_NAME} characters or not printable")


def _duration(call: str, field: str, duration: Duration) -> timedelta:
    seconds = duration.seconds + duration.nanos / 1e9
    if not 0 <= seconds <= LONGEST_DURATION.total_seconds():
        raise InvalidReplyError(
            call, field, f"is {seconds:g}s; it must be positive and at most {LONGEST_DURATION.days} days"
        )
    return timedelta(seconds=seconds)
