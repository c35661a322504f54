"""Reads failed calls: the refusal that the server attached, or the cause of a connection failure."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from feddbp.v1 import federation_pb2 as pb

REFUSAL_METADATA_KEY: Final = "feddbp-refusal-bin"
TRANSIENT_REASONS: Final = (pb.REFUSAL_REASON_BUSY, pb.REFUSAL_REASON_STORAGE)
"""Refusals that do not depend on the caller: the call may be retried."""
_LONGEST_RETURN: Final = timedelta(minutes=5)


def refusal_in(error: grpc.aio.AioRpcError) -> pb.Refusal | None:
    """Returns the refusal in the trailing metadata; None if there is none or it cannot be parsed."""
    for key, value in error.trailing_metadata() or ():
        if key == REFUSAL_METADATA_KEY and isinstance(value, bytes):
            try:
                return pb.Refusal.FromString(value)
            except DecodeError:
                return None
    return None


def retry_after_of(refusal: pb.Refusal | None) -> timedelta | None:
    """When the server wants to be called again, within what a client may be asked to wait; None if it does not say."""
    if refusal is None or not refusal.HasField("retry_after"):
        return None
    seconds = refusal.retry_after.seconds + refusal.retry_after.nanos / 1e9
    return timedelta(seconds=min(max(0.0, seconds), _LONGEST_RETURN.total_seconds()))


def describe_failure(error: grpc.aio.AioRpcError, *, with_certificate: bool) -> str:
    """Returns the innermost cause: gRPC's text is a chain of causes, from the outermost to a status."""
    text = status_text(error)
    cause = text.removesuffix(": OK").rpartition(": ")[2].rstrip("]")
    if with_certificate and text.startswith("failed to connect") and cause == "Socket closed":
        return "it closes the connection, perhaps because it does not accept our certificate"
    return cause


def status_text(error: grpc.aio.AioRpcError) -> str:
    """Returns the first line of the status message, or the name of its code if the message is empty."""
    return next(iter((error.details() or "").strip().splitlines()), error.code().name)
