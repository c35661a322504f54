"""Durable state: one interface, a SQLite back end, an in-memory back end for tests, and the thread that owns either."""

from feddbp_server.store.interface import (
    AggregateRecord,
    ClientRecord,
    ReportRecord,
    RunMismatchError,
    Store,
    StoreError,
    SumRecord,
    UploadRecord,
)
from feddbp_server.store.memory import MemoryStore
from feddbp_server.store.sqlite import SqliteStore
from feddbp_server.store.writer import Announcement, Jobs, MonitoredStore, StoreWriter

__all__ = [
    "AggregateRecord",
    "Announcement",
    "ClientRecord",
    "Jobs",
    "MemoryStore",
    "MonitoredStore",
    "ReportRecord",
    "RunMismatchError",
    "SqliteStore",
    "Store",
    "StoreError",
    "StoreWriter",
    "SumRecord",
    "UploadRecord",
]
