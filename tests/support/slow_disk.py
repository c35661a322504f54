"""A store that blocks on one kind of record until a test releases it."""

from __future__ import annotations

import threading
from typing import Any

from coordinator_runs import PATIENCE

from feddbp_server.store import MemoryStore


class SlowDisk(MemoryStore):
    """Blocks on one kind of record until a test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.slow_at = ""
        self.reached = threading.Event()
        self.released = threading.Event()

    def _wait(self, what: str) -> None:
        if what == self.slow_at:
            self.reached.set()
            assert self.released.wait(PATIENCE)

    def save_snapshot(self, progress: str) -> None:
        self._wait("snapshot")
        super().save_snapshot(progress)

    def add_new_member(self, client_id: int) -> None:
        self._wait("member")
        super().add_new_member(client_id)

    def save_client(self, record: Any) -> None:
        self._wait("client")
        super().save_client(record)

    def save_upload(self, record: Any, body: bytes) -> None:
        self._wait("upload")
        super().save_upload(record, body)

    def forget_upload(self, client_id: int, round_number: int) -> None:
        self._wait("forgotten upload")
        super().forget_upload(client_id, round_number)

    def save_report(self, record: Any) -> bool:
        self._wait("report")
        return super().save_report(record)
