"""The base exception, the exit codes, and the errors that server and client share."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, NoReturn


class ExitCode(IntEnum):
    """Exit codes of the commands; they are part of the interface."""

    OK = 0
    FAILURE = 1
    """An unexpected error, or a cause without a code of its own."""
    USAGE = 2
    """A flag, an environment variable, a file or a combination of them is invalid."""
    UNREACHABLE = 3
    """The server did not answer in time; a client waits for --patience."""
    REFUSED = 4
    """The server refused this client, and a retry would not help."""
    RUN_FAILED = 5
    """The run ended before its last round."""
    INVALID_REPLY = 6
    """The server sent a client something invalid."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM before the end; started again, a server or a client resumes."""


class FedDBPError(Exception):
    """Base of all exceptions this project raises deliberately; the text is one line that a user can act on."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILURE


class ConfigurationError(FedDBPError):
    """A flag, an environment variable, a file or a combination of them is invalid."""

    exit_code = ExitCode.USAGE


class PayloadError(FedDBPError):
    """A tensor or its declaration is invalid; names the field and the reason."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class PayloadTooLargeError(PayloadError):
    """A payload exceeds the receiver's size limit."""


def one_line(error: BaseException, *, first: bool = False) -> str:
    """The text of an error of a library or a user's code, or else its type.

    With `first` its first line alone: some libraries let pages follow.
    """
    text = str(error).strip()
    return " ".join((text.partition("\n")[0] if first else text).split()) or type(error).__name__


def refuse(field: str, reason: str) -> NoReturn:
    raise PayloadError(field, reason)


class ProtocolViolationError(FedDBPError):
    """A party of a secure sum broke the protocol; the message says who and how. Nothing secret is sent after it."""
