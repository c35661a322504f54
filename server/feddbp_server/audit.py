"""The audit log: who joined and left, what was accepted or refused and why; one JSON object a line, append only."""

from __future__ import annotations

import json
import logging
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from feddbp_common.files import append_line
from feddbp_server.refusals import RefusedError
from feddbp_server.store import StoreError

log = logging.getLogger("feddbp.server")

AUDIT_NAME: Final = "audit.jsonl"


class Audit:
    """Writes as things happen, line by line; a reader may follow it. No call fails because it cannot be written."""

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = (directory / AUDIT_NAME).open("ab", buffering=0)
        except OSError as error:
            raise StoreError(f"the state directory {directory} cannot be used: {error.strerror}") from error
        self._lost = 0
        self.refusals: Counter[str] = Counter()
        """Refused calls since the server started, by reason."""

    def note(self, what: str, *, client: int | None = None, **facts: Any) -> None:
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

    def note_refusal(self, call: str, refusal: RefusedError, *, client: int | None, peer: str) -> None:
        self.refusals[refusal.reason_name] += 1
        self.note(
            "refused",
            client=client,
            call=call,
            peer=peer,
            reason=refusal.reason_name,
            field=refusal.details.field or None,
            message=str(refusal),
        )

    def close(self) -> None:
        self._file.close()
