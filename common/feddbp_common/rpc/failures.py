"""How failed calls are read: the refusal a server attached, or why there was no answer at all."""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf.message import DecodeError

from feddbp.v1 import federation_pb2 as pb

REFUSAL_METADATA_KEY: Final = "feddbp-refusal-bin"
TRANSIENT_REASONS: Final = (pb.REFUSAL_REASON_BUSY, pb.REFUSAL_REASON_STORAGE)
"""Reasons that say nothing about the caller: the same call may do later."""


def refusal_in(error: grpc.aio.AioRpcError) -> pb.Refusal | None:
    """The refusal behind a failed call, if the server put one there."""
    for key, value in error.trailing_metadata() or ():
        if key == REFUSAL_METADATA_KEY and isinstance(value, bytes):
            try:
                return pb.Refusal.FromString(value)
            except DecodeError:
                return None
    return None


def describe_failure(error: grpc.aio.AioRpcError, *, with_certificate: bool) -> str:
    """GRPC's text is a chain of causes, of which the last one that says anything is meant."""
    text = status_text(error)
    cause = text.removesuffix(": OK").rpartition(": ")[2]
    if with_certificate and text.startswith("failed to connect") and cause == "Socket closed":
        return "it hangs up, as if it did not accept our certificate"
    return cause


def status_text(error: grpc.aio.AioRpcError) -> str:
    """What the status says, in one line; its code where it says nothing."""
    return next(iter((error.details() or "").strip().splitlines()), error.code().name)
