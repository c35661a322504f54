"""Logging to stderr, as plain lines or as JSON lines."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from feddbp_common.errors import ConfigurationError
from feddbp_common.printable import printable, printable_lines

_LINE: Final = "%(asctime)s %(levelname)-7s %(message)s"
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


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """A log file, and when it is begun anew."""

    path: Path
    size: int
    kept: int
    """Earlier files, which have a number at the end."""


class _RotatingFile(RotatingFileHandler):
    """Reports a file that cannot be written once, and not with a traceback for every line."""

    _failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not self._failed:
            print(f"the log file {self.baseFilename} cannot be written: {error}", file=sys.stderr)
        self._failed = True


def configure_logging(*, as_json: bool, level: str = "info", file: LogFile | None = None) -> None:
    """Logs what is at the level or above it; of libraries, nothing below `warning`. Logs Python's warnings, too."""
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    handlers[0].setFormatter(JsonFormatter() if as_json else PlainFormatter(_LINE, "%H:%M:%S"))
    if file is not None:
        handlers.append(_open_file(file))
        # with the date, since it is read days later
        handlers[1].setFormatter(JsonFormatter() if as_json else PlainFormatter(_LINE, "%Y-%m-%d %H:%M:%S"))
    ours = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(ours, logging.WARNING), handlers=handlers, force=True)
    for package in ("feddbp", "feddbp_client"):
        logging.getLogger(package).setLevel(ours)
    logging.captureWarnings(True)


def _open_file(file: LogFile) -> logging.Handler:
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        return _RotatingFile(file.path, maxBytes=file.size, backupCount=file.kept, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--log-file {file.path}: {error.strerror}") from None


def logs_are_json() -> bool:
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def print_outcome(prog: str, message: str, *, exception: BaseException | None = None) -> None:
    """Prints the line with which a command ends; it is JSON if the log is."""
    message = printable(message, _LONGEST_MESSAGE)
    if logs_are_json():
        logging.getLogger(prog).error(message, exc_info=exception)
    else:
        print(f"{prog}: {message}", file=sys.stderr)
