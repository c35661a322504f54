"""Logging to stderr, as plain lines or as JSON lines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from feddbp_common.printable import printable, printable_lines

_LONGEST_MESSAGE: Final = 4000
"""Characters of a log line, of which foreign text is a part at most."""


class PlainFormatter(logging.Formatter):
    """Formats a record as one line, whatever text from another party is in it, and its traceback below."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message, _LONGEST_MESSAGE)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        first, *below = super().format(record).split("\n")
        return "\n".join([first, *map(printable, below)])


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage(), _LONGEST_MESSAGE),
        }
        if record.exc_info:
            entry["exception"] = printable_lines(self.formatException(record.exc_info))
        return json.dumps(entry)


def configure_logging(*, as_json: bool, level: str = "info") -> None:
    """Logs what is at the level or above it; of libraries, nothing below `warning`. Logs Python's warnings, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if as_json else PlainFormatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    )
    ours = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(ours, logging.WARNING), handlers=[handler], force=True)
    for package in ("feddbp", "feddbp_client"):
        logging.getLogger(package).setLevel(ours)
    logging.captureWarnings(True)


def logs_are_json() -> bool:
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def print_outcome(prog: str, message: str, *, exception: BaseException | None = None) -> None:
    """Prints the line with which a command ends; it is JSON if the log is."""
    message = printable(message, _LONGEST_MESSAGE)
    if logs_are_json():
        logging.getLogger(prog).error(message, exc_info=exception)
    else:
        print(f"{prog}: {message}", file=sys.stderr)
