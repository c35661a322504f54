"""Refusals: the one exception calls are turned away with, and the one table that maps it to gRPC."""

from __future__ import annotations

from typing import Final, Self

import grpc

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import FedDBPError, PayloadError, PayloadTooLargeError
from feddbp_server.store import StoreError

STATUS_OF: Final = {
    pb.REFUSAL_REASON_OTHER_RUN: grpc.StatusCode.FAILED_PRECONDITION,
    pb.REFUSAL_REASON_UNKNOWN_CLIENT: grpc.StatusCode.INVALID_ARGUMENT,
    pb.REFUSAL_REASON_ID_IN_USE: grpc.StatusCode.ALREADY_EXISTS,
    pb.REFUSAL_REASON_STALE_SESSION: grpc.StatusCode.UNAUTHENTICATED,
    pb.REFUSAL_REASON_WRONG_ROUND: grpc.StatusCode.FAILED_PRECONDITION,
    pb.REFUSAL_REASON_NOT_SELECTED: grpc.StatusCode.FAILED_PRECONDITION,
    pb.REFUSAL_REASON_ALREADY_UPLOADED: grpc.StatusCode.ALREADY_EXISTS,
    pb.REFUSAL_REASON_INVALID_PAYLOAD: grpc.StatusCode.INVALID_ARGUMENT,
    pb.REFUSAL_REASON_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.REFUSAL_REASON_BUSY: grpc.StatusCode.UNAVAILABLE,
    pb.REFUSAL_REASON_RUN_ENDED: grpc.StatusCode.FAILED_PRECONDITION,
    pb.REFUSAL_REASON_INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    pb.REFUSAL_REASON_NOT_AUTHORISED: grpc.StatusCode.PERMISSION_DENIED,
    pb.REFUSAL_REASON_STORAGE: grpc.StatusCode.UNAVAILABLE,
}


def reason_name(reason: pb.RefusalReason.ValueType) -> str:
    return pb.RefusalReason.Name(reason).removeprefix("REFUSAL_REASON_").lower()


REASON_NAMES: Final = tuple(map(reason_name, STATUS_OF))
"""As they are counted and written down."""


class RefusedError(FedDBPError):
    """A call the server turns away; the text says why to a person, the reason to a program."""

    def __init__(
        self, reason: pb.RefusalReason.ValueType, message: str, *, field: str = "", current_round: int | None = None
    ) -> None:
        super().__init__(message)
        self.client_id: int | None = None
        self.details = pb.Refusal(reason=reason, field=field, current_round=current_round)

    def of(self, client_id: int) -> Self:
        """The same refusal, with whose call it was."""
        self.client_id = client_id
        return self

    @property
    def status(self) -> grpc.StatusCode:
        return STATUS_OF[self.details.reason]

    @property
    def reason_name(self) -> str:
        return reason_name(self.details.reason)


def as_refusal(error: PayloadError | StoreError) -> RefusedError:
    if isinstance(error, StoreError):
        return RefusedError(pb.REFUSAL_REASON_STORAGE, f"{error}; try again later")
    reason = (
        pb.REFUSAL_REASON_TOO_LARGE if isinstance(error, PayloadTooLargeError) else pb.REFUSAL_REASON_INVALID_PAYLOAD
    )
    return RefusedError(reason, str(error), field=error.field)
