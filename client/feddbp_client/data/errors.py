"""The one error of this package."""

from __future__ import annotations

from feddbp_common.errors import FedDBPError


class DataError(FedDBPError):
    """Data that cannot be found, fetched, read or split; the text names the file and the fault."""
