"""Leases: which runner works on a cell, so that several share one --out and none does a cell twice.

cells/ID/lease-000002.json is the lease of the second attempt at a cell. Its number is the fencing token: it only
grows, taking it means creating the file, and a runner that finds a higher one has lost the cell and writes nothing
more. A holder renews its lease several times per lease time; whoever has seen no renewal for a whole lease time, by its
own clock, takes the next number. Clocks of different machines are compared for display alone.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from feddbp_common.errors import FedDBPError
from feddbp_lab.experiments.run.store import Store

_NAME: Final = re.compile(r"lease-(\d+)\.json")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
RENEWALS_PER_LEASE: Final = 4


class LeaseLostError(FedDBPError):
    """Another runner has taken the cell, or the lease could not be renewed in time."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that works on a cell."""

    id: str
    node: str
    boot: str
    """Of the machine's running kernel: whether a file lock tells about this process."""
    pid: int

    @classmethod
    def here(cls) -> Holder:
        return cls(id=uuid.uuid4().hex, node=socket.gethostname(), boot=boot_id(), pid=os.getpid())


@dataclass(frozen=True, kw_only=True)
class LeaseRecord:
    """The content of a lease's file."""

    epoch: int
    """The number of the attempt at the cell, from 1."""
    owner: str
    node: str
    boot: str = ""
    pid: int = 0
    seconds: float
    """The lease time."""
    renewals: int = 0
    renewed_at: float = 0.0
    """By the holder's clock; for display alone, see `is_fresh`."""
    released: bool = False
    rounds_done: float = 0.0
    accuracy: float | None = None
    clients: int = 0
    """Over how many clients the accuracy is."""

    @classmethod
    def parse(cls, content: bytes, epoch: int) -> LeaseRecord:
        """A file that cannot be read is a lease without known holder: it ends like any other."""
        try:
            loaded: dict[str, Any] = json.loads(content)
            known = {name.name: loaded[name.name] for name in fields(cls) if name.name in loaded}
            return _RECORD.validate_python({**known, "epoch": epoch})
        except (ValueError, TypeError):
            return cls(epoch=epoch, owner="", node="unknown", seconds=60.0)

    @property
    def is_of_this_machine(self) -> bool:
        """Whether a file lock tells if it is held: it is of the running kernel, or of an earlier one, which is gone."""
        return self.boot == boot_id() or self.node == socket.gethostname()

    @property
    def is_fresh(self) -> bool:
        """Whether it seems to be held, by this machine's clock: enough for display, not for a decision."""
        return not self.released and abs(time.time() - self.renewed_at) < self.seconds + 30

    @property
    def mark(self) -> tuple[int, str, int]:
        """Changes with every renewal."""
        return self.epoch, self.owner, self.renewals


_RECORD: Final = TypeAdapter(LeaseRecord)


def boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return f"{socket.gethostname()}-{uuid.getnode()}"


def cell_key(cell_id: str, name: str = "") -> str:
    return f"cells/{cell_id}/{name}"


def current_lease(store: Store, cell_id: str) -> LeaseRecord | None:
    """The lease with the highest number; None if nobody has taken the cell."""
    epoch = max(_epochs(store, cell_id), default=None)
    if epoch is None:
        return None
    content = store.read(_key(cell_id, epoch))
    return LeaseRecord.parse(content or b"", epoch)


@dataclass
class LeaseWatch:
    """Tells which leases are no longer renewed, by this process's clock."""

    clock: Callable[[], float] = time.monotonic
    _seen: dict[str, tuple[tuple[int, str, int], float]] = field(default_factory=dict)

    def has_ended(self, cell_id: str, record: LeaseRecord) -> bool:
        """Whether the lease is released, or has not been renewed for its time since this process first saw it so."""
        if record.released:
            return True
        mark, since = self._seen.get(cell_id, (None, 0.0))
        if mark != record.mark:
            self._seen[cell_id] = record.mark, self.clock()
            return False
        return self.clock() - since > record.seconds


@dataclass
class Lease:
    """A lease that this process holds."""

    store: Store
    cell_id: str
    record: LeaseRecord
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._renewed = self.clock()
        self._writing = threading.Lock()
        self._has_ended = False

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def renewal_seconds(self) -> float:
        return self.record.seconds / RENEWALS_PER_LEASE

    def verify(self) -> None:
        """Raises LeaseLostError if another runner has taken the cell. To be called before every write to the store."""
        found = current_lease(self.store, self.cell_id)
        if found is None or (found.epoch, found.owner) != (self.record.epoch, self.record.owner):
            by = f"{found.node} (attempt {found.epoch})" if found else "another runner, which has finished it"
            raise LeaseLostError(f"the cell was taken over by {by}")

    def renew(self, rounds_done: float, accuracy: float | None = None, clients: int = 0) -> None:
        """Raises LeaseLostError if the lease is another's, or if it could not be renewed for most of its time."""
        with self._writing:
            if not self._has_ended:
                self._renew(rounds_done=round(rounds_done, 3), accuracy=accuracy, clients=clients)

    def _renew(self, **progress: Any) -> None:
        try:
            self.verify()
            record = self.record
            self.record = replace(
                record,
                renewals=record.renewals + 1,
                renewed_at=time.time(),
                **progress,
            )
            self._write()
        except OSError as error:
            if self.clock() - self._renewed > self.record.seconds * (1 - 1 / RENEWALS_PER_LEASE):
                raise LeaseLostError(f"the lease could not be renewed: {error}") from None
        else:
            self._renewed = self.clock()

    def release(self) -> None:
        """Lets others take the cell at once. The file stays, so that no number is given twice."""
        with self._writing:
            self.verify()
            self._has_ended = True
            self.record = replace(self.record, released=True)
            self._write()

    def remove(self) -> None:
        """Removes all leases of a cell that has its results."""
        with self._writing:
            self._has_ended = True
            self.store.delete(_key(self.cell_id, epoch) for epoch in _epochs(self.store, self.cell_id))

    def _write(self) -> None:
        self.store.write(_key(self.cell_id, self.epoch), _encoded(self.record))


def take_lease(
    store: Store, cell_id: str, holder: Holder, seconds: float, *, after: LeaseRecord | None
) -> Lease | None:
    """Takes a cell whose current lease is `after`, which has ended; None if another runner was faster."""
    epoch = after.epoch + 1 if after is not None else 1
    record = LeaseRecord(
        epoch=epoch,
        owner=holder.id,
        node=holder.node,
        boot=holder.boot,
        pid=holder.pid,
        seconds=seconds,
        renewed_at=time.time(),
    )
    if not store.create(_key(cell_id, epoch), _encoded(record)):
        return None
    lease = Lease(store, cell_id, record)
    earlier = [number for number in _epochs(store, cell_id) if number < epoch]
    store.delete(_key(cell_id, number) for number in earlier)
    return lease


def _epochs(store: Store, cell_id: str) -> list[int]:
    found = map(_NAME.fullmatch, store.names(cell_key(cell_id)))
    return [int(match[1]) for match in found if match]


def _key(cell_id: str, epoch: int) -> str:
    return cell_key(cell_id, f"lease-{epoch:06d}.json")


def _encoded(record: LeaseRecord) -> bytes:
    return (json.dumps(asdict(record)) + "\n").encode()
