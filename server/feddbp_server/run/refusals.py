"""Refusals: a call that the server turns away, with the reason for a program and the text for a person."""

from __future__ import annotations

from typing import Final, Self

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
        self.details = pb.Refusal(reason=reason, field=field, current_round=current_round)

    def of(self, client_id: int) -> Self:
        """The same refusal, with whose call it was."""
        self.client_id = client_id
        return self

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
