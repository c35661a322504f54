"""What has to outlive the process, as an interface; it knows nothing of methods or of what rounds mean."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn, TypeVar

from feddbp_common.errors import ConfigurationError, FedDBPError

T = TypeVar("T")


class StoreError(FedDBPError):
    """The state directory cannot be used; the text says why and what to do."""


class RunMismatchError(ConfigurationError):
    """The state directory holds another run."""


class ClientRecord(NamedTuple):
    """A client that has joined."""

    client_id: int
    epoch: int
    session_sha256: bytes
    """Only the hash of the session's secret: a copy of the database must not be a set of keys."""
    data: bytes
    """A serialised `DataSummary`."""
    capabilities: bytes
    """A serialised `Capabilities`."""


class UploadRecord(NamedTuple):
    """A contribution as it is kept: its manifest and, on request, its body."""

    client_id: int
    round: int
    sha256: bytes
    manifest: bytes


class ReportRecord(NamedTuple):
    """The results of a client in a round, as a serialised `RoundMetrics`."""

    client_id: int
    round: int
    metrics: bytes


class AggregateRecord(NamedTuple):
    """What the server has learnt after a number of completed rounds."""

    completed_rounds: int
    manifest: bytes
    body: bytes


class Store(ABC):
    """Not thread-safe: one thread owns it, see `StoreWriter`."""

    @abstractmethod
    def open_run(self, run_id: str, config_json: str) -> str:
        """Begins a run under this id, or finds the one that is here already; returns the id in force.

        Raises:
            RunMismatchError: it holds another run; the text names the differences.
        """

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing, durable when the context ends; may be nested."""

    @abstractmethod
    def snapshot(self) -> str | None:
        """What `save_snapshot` was last given."""

    @abstractmethod
    def save_snapshot(self, snapshot: str) -> None: ...

    @abstractmethod
    def touch(self) -> None:
        """Writes what changes nothing, to see whether anything can be written."""

    @abstractmethod
    def clients(self) -> list[ClientRecord]:
        """Everyone who ever joined, by id."""

    @abstractmethod
    def save_client(self, record: ClientRecord) -> None: ...

    @abstractmethod
    def save_upload(self, record: UploadRecord, body: bytes) -> None: ...

    @abstractmethod
    def uploads(self, round_number: int) -> list[UploadRecord]:
        """The contributions to a round, by client id."""

    @abstractmethod
    def upload(self, client_id: int, round_number: int) -> UploadRecord | None:
        """A client's contribution to a round, if it is here."""

    @abstractmethod
    def last_upload_before(self, client_id: int, round_number: int) -> UploadRecord | None:
        """A client's newest contribution to an earlier round."""

    @abstractmethod
    def upload_body(self, record: UploadRecord, limit: int | None = None) -> bytes:
        """The bytes of a contribution, or the first `limit` of them."""

    @abstractmethod
    def forget_superseded_uploads(self, before_round: int) -> None:
        """Drops every contribution to a round before this one that its client has followed up by a newer one."""

    @abstractmethod
    def tidy(self) -> None:
        """Housekeeping that nobody waits for; outside of any transaction."""

    @abstractmethod
    def save_report(self, record: ReportRecord) -> bool:
        """Keeps a client's results of a round; the first to arrive stays. Says whether this was the first."""

    @abstractmethod
    def reports(self) -> Iterator[ReportRecord]:
        """All results, by round and client."""

    @abstractmethod
    def aggregate(self) -> AggregateRecord | None: ...

    @abstractmethod
    def save_aggregate(self, record: AggregateRecord) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


def refuse_other_run(*, stored: str, given: str) -> NoReturn:
    differences = "; ".join(_differences(json.loads(stored), json.loads(given)))
    raise RunMismatchError(
        f"the state directory holds another run ({differences}); give the same options, or another --state-dir"
    )


def _differences(stored: Mapping[str, Any], given: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*stored, *given}):
        old, new = stored.get(key), given.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key} is {old!r} there and {new!r} here"
