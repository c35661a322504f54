"""Refusals: a call that the server turns away, with the reason for a program and the text for a person."""

from __future__ import annotations

from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.errors import FedDBPError, PayloadError, PayloadTooLargeError
from feddbp_server.store import StoreError


def reason_name(reason: pb.RefusalReason.ValueType) -> str:
    return pb.RefusalReason.Name(reason).removeprefix("REFUSAL_REASON_").lower()


REASON_NAMES: Final = tuple(
    reason_name(reason) for reason in pb.RefusalReason.values() if reason != pb.REFUSAL_REASON_UNSPECIFIED
)
"""As they are counted and written down."""


class RefusedError(FedDBPError):
    """A call the server turns away; the text says why to a person, the reason to a program."""

    def __init__(
        self, reason: pb.RefusalReason.ValueType, message: str, *, field: str = "", current_round: int | None = None
    ) -> None:
        super().__init__(message)
        self.client_id: int | None = None
        """Whose call it was, where that is known."""
        self.details = pb.Refusal(reason=reason, field=field, current_round=current_round)

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
