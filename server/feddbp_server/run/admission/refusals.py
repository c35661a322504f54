"""Refusals: why a call is refused, as a reason for programs and a message for people."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import FedDBPError, PayloadError, PayloadTooLargeError
from feddbp_common.rpc.enum_words import enum_word
from feddbp_server.store import StoreError


def reason_name(reason: pb.RefusalReason.ValueType) -> str:
    return enum_word(pb.RefusalReason.DESCRIPTOR, reason)


REASON_NAMES: Final = tuple(
    reason_name(reason) for reason in pb.RefusalReason.values() if reason != pb.REFUSAL_REASON_UNSPECIFIED
)
"""As counted in metrics and written to the audit log."""


class RefusedError(FedDBPError):
    """A call that is refused; becomes a status code and a `Refusal` in its metadata."""

    def __init__(
        self,
        reason: pb.RefusalReason.ValueType,
        message: str,
        *,
        field: str = "",
        current_round: int | None = None,
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(message)
        self.client_id: int | None = None
        """The caller, where known."""
        self.details = pb.Refusal(reason=reason, field=field, current_round=current_round)
        if retry_after is not None:
            self.details.retry_after.FromTimedelta(retry_after)

    @property
    def reason_name(self) -> str:
        return reason_name(self.details.reason)


def as_refusal(error: RefusedError | PayloadError | StoreError) -> RefusedError:
    match error:
        case RefusedError():
            return error
        case StoreError():
            return RefusedError(pb.REFUSAL_REASON_STORAGE, f"{error}; try again later")
        case PayloadTooLargeError():
            return RefusedError(pb.REFUSAL_REASON_TOO_LARGE, str(error), field=error.field)
        case PayloadError():
            return RefusedError(pb.REFUSAL_REASON_INVALID_PAYLOAD, str(error), field=error.field)
