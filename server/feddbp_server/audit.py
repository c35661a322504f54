"""The audit log: who joined and left, what was accepted or refused and why; one JSON object a line, append only."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from feddbp_server.refusals import RefusedError

AUDIT_NAME: Final = "audit.jsonl"


class Audit:
    """Writes as things happen, line by line; a reader may follow it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / AUDIT_NAME).open("a", encoding="utf-8", buffering=1)
        self.refusals: Counter[str] = Counter()
        """Refused calls since the server started, by reason."""

    def note(self, what: str, *, client: int | None = None, **facts: Any) -> None:
        entry = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "what": what, "client": client, **facts}
        self._file.write(json.dumps(entry) + "\n")

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
