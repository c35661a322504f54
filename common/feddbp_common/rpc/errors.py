"""How a refusal travels: a serialised `Refusal` in the trailing metadata of the status."""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf.message import DecodeError

from feddbp.v1 import federation_pb2 as pb

REFUSAL_METADATA_KEY: Final = "feddbp-refusal-bin"
FOR_NOW: Final = (pb.REFUSAL_REASON_BUSY, pb.REFUSAL_REASON_STORAGE)
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
