"""The audit log: who joined and left, what was accepted or refused and why; one JSON object a line, append only."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from feddbp_common.files import append_line
from feddbp_server.refusals import RefusedError
from feddbp_server.store import StoreError

log = logging.getLogger("feddbp.server")

AUDIT_NAME: Final = "audit.jsonl"
_REFUSALS_AT_ONCE: Final = 1000
_REFUSALS_PER_SECOND: Final = 20.0
"""Written one by one; beyond that they are only counted, or anyone could fill the disk by being refused."""


class Audit:
    """Writes as things happen, line by line; a reader may follow it. No call fails because it cannot be written."""

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = (directory / AUDIT_NAME).open("ab", buffering=0)
        except OSError as error:
            raise StoreError(f"the state directory {directory} cannot be used: {error.strerror}") from error
        self._lost = 0
        self._clock = clock
        self._allowance, self._allowed_at = float(_REFUSALS_AT_ONCE), clock()
        self._only_counted = 0
        self.noted: Counter[str] = Counter()
        """What happened since the server started, by what it was, whether or not it could be written."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """Refused calls since the server started, by method and reason."""

    @property
    def refusals(self) -> Counter[str]:
        """Refused calls since the server started, by reason."""
        by_reason: Counter[str] = Counter()
        for (_, reason), times in self.refused.items():
            by_reason[reason] += times
        return by_reason

    def note(self, what: str, *, client: int | None = None, **facts: Any) -> None:
        self.noted[what] += 1
        entry = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "what": what, "client": client, **facts}
        try:
            append_line(self._file, json.dumps(entry))
        except OSError as error:
            if not self._lost:
                log.error("the audit log cannot be written: %s", error.strerror)
            self._lost += 1
            return
        if self._lost:
            log.warning("the audit log can be written again; %d entries are missing", self._lost)
            self._lost = 0

    def note_refusal(self, call: str, refusal: RefusedError, *, client: int | None, peer: str) -> bool:
        """Counts a refusal and writes it down; says whether it did, since a flood of them is only counted."""
        self.refused[call, refusal.reason_name] += 1
        if not self._may_write():
            self._only_counted += 1
            return False
        self._note_flood()
        self.note(
            "refused",
            client=client,
            call=call,
            peer=peer,
            reason=refusal.reason_name,
            field=refusal.details.field or None,
            message=str(refusal),
        )
        return True

    def close(self) -> None:
        self._note_flood()
        self._file.close()

    def _may_write(self) -> bool:
        now = self._clock()
        earned = (now - self._allowed_at) * _REFUSALS_PER_SECOND
        self._allowance, self._allowed_at = min(self._allowance + earned, _REFUSALS_AT_ONCE), now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def _note_flood(self) -> None:
        if self._only_counted:
            self.note("flood", refusals=self._only_counted)
            self._only_counted = 0
