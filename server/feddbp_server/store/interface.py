"""The store interface and its records; it knows neither methods nor what rounds mean."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from feddbp_common.errors import ConfigurationError, ExitCode, FedDBPError

T = TypeVar("T")


class StoreError(FedDBPError):
    """The state directory cannot be used; the message says why and what to do."""


class StateDirectoryError(StoreError):
    """The path that is given as the state directory is none, or that of another user."""

    exit_code = ExitCode.USAGE

    def __init__(self, state_dir: Path, problem: str) -> None:
        super().__init__(f"the state directory {state_dir} cannot be used: {problem}")


class RunMismatchError(ConfigurationError):
    """The state directory holds another run."""


class ClientRecord(NamedTuple):
    """The newest session of a client that has joined."""

    client_id: int
    epoch: int
    session_sha256: bytes
    """Only a hash of the secret: a copy of the database must not give access. Empty once the client has left."""
    data: bytes
    """A serialised `DataSummary`."""
    capabilities: bytes
    """A serialised `Capabilities`."""


class UploadRecord(NamedTuple):
    """An upload without its body, which is read on request."""

    client_id: int
    round: int
    sha256: bytes
    manifest: bytes


class ReportRecord(NamedTuple):
    """A client's report on a round, as a serialised `RoundMetrics`."""

    client_id: int
    round: int
    metrics: bytes


class AggregateRecord(NamedTuple):
    """The global state after a number of completed rounds."""

    completed_rounds: int
    manifest: bytes
    body: bytes


class SumRecord(NamedTuple):
    """A message of a step of a round's secure sum, or what the step decided."""

    round: int
    step: str
    client_id: int | None
    """None for a decision."""
    body: bytes


class Store(ABC):
    """A back end. Not thread-safe: one thread owns it, see `StoreWriter`."""

    @abstractmethod
    def open_run(self, run_id: str, config_json: str) -> str:
        """Begins a run under this id unless there is one already; returns the id in force.

        A run that no client has joined gives way to another one: a start that failed does not occupy the store.

        Raises:
            RunMismatchError: the store holds another run; the message names differences.
        """

    @abstractmethod
    def stored_config(self) -> str | None:
        """The configuration of the run that the store holds; None if no client has joined one."""

    @abstractmethod
    def replace_config(self, config_json: str) -> None:
        """Gives the run another configuration, under the same id."""

    @abstractmethod
    def save_options(self, options_json: str) -> None:
        """Keeps the server's options, with which it may be started again."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """A transaction, durable when the context ends; may be nested."""

    @abstractmethod
    def snapshot(self) -> str | None:
        """The newest snapshot of the run's state."""

    @abstractmethod
    def save_snapshot(self, snapshot: str) -> None: ...

    @abstractmethod
    def add_new_member(self, client_id: int) -> None:
        """Keeps that a client has joined since the newest snapshot: a row, where a snapshot would have all members."""

    @abstractmethod
    def new_members(self) -> frozenset[int]:
        """Clients that joined since the newest snapshot."""

    @abstractmethod
    def forget_new_members(self, client_ids: Collection[int]) -> None:
        """Of clients whose membership a snapshot decides."""

    @abstractmethod
    def touch(self) -> None:
        """Writes without changing anything, to test whether the store is writable."""

    @abstractmethod
    def clients(self) -> list[ClientRecord]:
        """Every client that ever joined, by id."""

    @abstractmethod
    def save_client(self, record: ClientRecord) -> None: ...

    @abstractmethod
    def save_upload(self, record: UploadRecord, body: bytes) -> None: ...

    @abstractmethod
    def uploads(self, round_number: int) -> list[UploadRecord]:
        """The uploads of a round, by client id."""

    @abstractmethod
    def upload(self, client_id: int, round_number: int) -> UploadRecord | None:
        """A client's upload in a round, if there is one."""

    @abstractmethod
    def last_upload_before(self, client_id: int, round_number: int) -> UploadRecord | None:
        """A client's newest upload in an earlier round."""

    @abstractmethod
    def upload_body(self, record: UploadRecord, limit: int | None = None) -> bytes:
        """The body of an upload, or the first `limit` bytes of it."""

    @abstractmethod
    def forget_upload(self, client_id: int, round_number: int) -> None:
        """Deletes a client's upload in a round, if there is one."""

    @abstractmethod
    def forget_superseded_uploads(self, before_round: int) -> None:
        """Deletes every upload of an earlier round whose client has a newer one."""

    @abstractmethod
    def forget_from(self, round_number: int) -> None:
        """Deletes the uploads and reports of a round and of later ones."""

    @abstractmethod
    def tidy(self) -> None:
        """Housekeeping outside of any transaction, when no job is waiting."""

    @abstractmethod
    def save_report(self, record: ReportRecord) -> bool:
        """Keeps a client's report on a round unless there is one already; returns whether it was kept."""

    @abstractmethod
    def reports(self, from_round: int = 0) -> Iterator[ReportRecord]:
        """All reports from a round on, by round and client."""

    @abstractmethod
    def save_sum_record(self, record: SumRecord) -> bytes:
        """Keeps a message or a decision unless there is one already; returns the body that is kept."""

    @abstractmethod
    def sum_records(self, round_number: int) -> list[SumRecord]:
        """Those of a round, in any order."""

    @abstractmethod
    def forget_sum_records(self, before_round: int) -> None:
        """Deletes those of earlier rounds."""

    @abstractmethod
    def aggregate(self) -> AggregateRecord | None: ...

    @abstractmethod
    def save_aggregate(self, record: AggregateRecord) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


OTHER_RUN: Final = "the state directory holds another run"
"""With this the message of RunMismatchError begins."""
_MOST_DIFFERENCES: Final = 5
"""Settings that the message lists; the rest are counted."""


def refuse_other_run(*, stored: str, given: str) -> NoReturn:
    before, now = json.loads(stored), json.loads(given)
    if before.get("method") != now.get("method"):
        # settings of two methods say nothing of each other
        before, now = ({**config, "method_settings": {}} for config in (before, now))
    found = sorted(_differences(before, now), key=lambda difference: difference[0].count("."))
    listed = "; ".join(text for _, text in found[:_MOST_DIFFERENCES])
    more = f"; and {len(found) - _MOST_DIFFERENCES} more" if len(found) > _MOST_DIFFERENCES else ""
    raise RunMismatchError(f"{OTHER_RUN} ({listed}{more}); give --state-dir alone to resume it, or another one")


def _differences(stored: Mapping[str, Any], given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields the paths of settings that differ, sorted, with the text that says how."""
    for key in sorted({*stored, *given}):
        old, new = stored.get(key), given.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key}", f"{prefix}{key} is {old!r} there and {new!r} here"
