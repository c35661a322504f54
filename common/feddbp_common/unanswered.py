"""Why a call got no answer, in words a person can do something about."""

from __future__ import annotations

import grpc


def why_unanswered(error: grpc.aio.AioRpcError, *, with_certificate: bool) -> str:
    """GRPC's text is a chain of causes, of which the last one that says anything is meant."""
    text = (error.details() or error.code().name).strip().splitlines()[0]
    cause = text.removesuffix(": OK").rpartition(": ")[2]
    if with_certificate and text.startswith("failed to connect") and cause == "Socket closed":
        return "it hangs up, as if it did not accept our certificate"
    return cause
