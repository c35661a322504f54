"""The exception root, the exit codes, and the few errors both sides speak of."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, NoReturn


class ExitCode(IntEnum):
    """What a command's exit code says; they are part of its interface."""

    OK = 0
    FAILURE = 1
    """Something unforeseen, or a cause no other code names."""
    USAGE = 2
    """A flag, a variable, a file or their combination cannot be used."""
    UNREACHABLE = 3
    """The server did not answer for as long as the client was told to try."""
    REFUSED = 4
    """The server refused this client for good."""
    RUN_FAILED = 5
    """The run ended before its last round."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM."""


class FedDBPError(Exception):
    """Root of everything this project raises on purpose; its text is one line a person can act on."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILURE


class ConfigurationError(FedDBPError):
    """A flag, environment variable, file or combination of them that cannot be used."""

    exit_code = ExitCode.USAGE


class PayloadError(FedDBPError):
    """A tensor, or the description of one, that must not be let in."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class PayloadTooLargeError(PayloadError):
    """More bytes than the receiver admits."""


def refuse(field: str, reason: str) -> NoReturn:
    raise PayloadError(field, reason)
