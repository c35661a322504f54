"""Files of a run that cannot be read, or in which something is missing: as one line for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pydantic import ValidationError

from feddbp_common.config.diagnostics import FieldError
from feddbp_common.errors import ConfigurationError, FedDBPError
from feddbp_common.printable import printable
from feddbp_server.reporting.json_lines import MALFORMED

DAMAGE: Final = (*MALFORMED, OSError, FedDBPError)
"""Errors from reading files in which something is missing or of the wrong type."""


@contextmanager
def damage_as_error(place: str, raised: type[FedDBPError] = ConfigurationError) -> Iterator[None]:
    """Raises one error, in one line, for files that cannot be read or lack something."""
    try:
        yield
    except OSError as error:
        raise raised(f"{error.filename or place}: {error.strerror or error}") from None
    except MALFORMED as error:
        raise raised(f"the results in {place} are damaged: {problem_of(error)}") from error


def problem_of(error: Exception) -> str:
    """What is wrong with a malformed file."""
    if isinstance(error, KeyError):
        return printable(f"{error} is missing")
    return printable(str(FieldError.first_in(error) if isinstance(error, ValidationError) else error))
