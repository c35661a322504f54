"""What outlives the server: one interface, SQLite behind it, and a store without memory for tests."""

from feddbp_server.store.availability import Jobs, WatchedStore
from feddbp_server.store.interface import (
    AggregateRecord,
    ClientRecord,
    ReportRecord,
    RunMismatchError,
    Store,
    StoreError,
    UploadRecord,
)
from feddbp_server.store.memory import MemoryStore
from feddbp_server.store.sqlite import SqliteStore
from feddbp_server.store.writer import StoreThread

__all__ = [
    "AggregateRecord",
    "ClientRecord",
    "Jobs",
    "MemoryStore",
    "ReportRecord",
    "RunMismatchError",
    "SqliteStore",
    "Store",
    "StoreError",
    "StoreThread",
    "UploadRecord",
    "WatchedStore",
]
