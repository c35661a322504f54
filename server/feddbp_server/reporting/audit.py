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

from feddbp_common.artifacts import AUDIT_NAME
from feddbp_common.atomic_files import append_line
from feddbp_server.run.limits import DEFAULT_LIMITS, Limits
from feddbp_server.run.refusals import RefusedError
from feddbp_server.store import StoreError


class RateLimit:
    """Whatever others can make happen as often as they like must not fill a disk."""

    def __init__(self, at_once: int, *, per_second: float, clock: Callable[[], float]) -> None:
        self._most = float(at_once)
        self._per_second = per_second
        self._clock = clock
        self._left, self._counted_at = self._most, clock()
        self._withheld = 0

    def take(self) -> bool:
        """Whether there is any left for one more; if not, it is counted."""
        now = self._clock()
        self._left = min(self._left + (now - self._counted_at) * self._per_second, self._most)
        self._counted_at = now
        if self._left < 1:
            self._withheld += 1
            return False
        self._left -= 1
        return True

    def take_withheld(self) -> int:
        """How many there was nothing left for since this was last asked."""
        withheld, self._withheld = self._withheld, 0
        return withheld


log = logging.getLogger("feddbp.server")



class Audit:
    """Writes as things happen, line by line; a reader may follow it. No call fails because it cannot be written."""

    def __init__(
        self, directory: Path, *, limits: Limits = DEFAULT_LIMITS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = (directory / AUDIT_NAME).open("ab", buffering=0)
        except OSError as error:
            raise StoreError(f"the state directory {directory} cannot be used: {error.strerror}") from error
        self._lost = 0
        self._limits = limits
        self._clock = clock
        self._refusals = RateLimit(limits.audited_refusals, per_second=limits.audited_refusals_per_second, clock=clock)
        self._of_clients: dict[tuple[int, str], RateLimit] = {}
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

    def note_of_client(self, what: str, *, client: int, **facts: Any) -> bool:
        """Counts what a client did and writes it down; says whether it did, since a flood of them is only counted."""
        allowance = self._of_clients.get((client, what))
        if allowance is None:
            allowance = RateLimit(
                self._limits.audited_client_events,
                per_second=self._limits.audited_client_events_per_second,
                clock=self._clock,
            )
            self._of_clients[client, what] = allowance
        if not allowance.take():
            self.noted[what] += 1
            return False
        self._note_flood(allowance, what, client)
        self.note(what, client=client, **facts)
        return True

    def note_refusal(self, call: str, refusal: RefusedError, *, client: int | None, peer: str) -> bool:
        """Counts a refusal and writes it down; says whether it did, since a flood of them is only counted."""
        self.refused[call, refusal.reason_name] += 1
        if not self._refusals.take():
            return False
        self._note_flood(self._refusals, "refusals")
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
        self._note_flood(self._refusals, "refusals")
        for (client, what), allowance in self._of_clients.items():
            self._note_flood(allowance, what, client)
        self._file.close()

    def _note_flood(self, allowance: RateLimit, of_what: str, client: int | None = None) -> None:
        withheld = allowance.take_withheld()
        if withheld:
            self.note("flood", client=client, **{of_what: withheld})
