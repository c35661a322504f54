"""Why a call got no answer, in words a person can do something about."""

from __future__ import annotations

import grpc


def why_unanswered(error: grpc.aio.AioRpcError, *, with_certificate: bool) -> str:
    """GRPC's text is a chain of causes, of which the last one that says anything is meant."""
    text = told_by(error)
    cause = text.removesuffix(": OK").rpartition(": ")[2]
    if with_certificate and text.startswith("failed to connect") and cause == "Socket closed":
        return "it hangs up, as if it did not accept our certificate"
    return cause


def told_by(error: grpc.aio.AioRpcError) -> str:
    """What the status says, in one line; its code where it says nothing."""
    return next(iter((error.details() or "").strip().splitlines()), error.code().name)
