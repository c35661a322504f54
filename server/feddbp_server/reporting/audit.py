"""The audit log, its rotation, and the allowances that bound what callers can write to it."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from feddbp_common.artifacts import AUDIT_NAME
from feddbp_common.atomic_files import LineFile
from feddbp_server.run.admission.limits import DEFAULT_LIMITS, Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.store import StoreError

log = logging.getLogger("feddbp.server")

_HOST: Final = "host "
_OTHER_HOSTS: Final = "other hosts"


class RateLimit:
    """A token bucket: events that callers can repeat at will must not fill the disk."""

    def __init__(self, burst: int, *, per_second: float, clock: Callable[[], float]) -> None:
        self._burst = float(burst)
        self._per_second = per_second
        self._clock = clock
        self._left, self._counted_at = self._burst, clock()
        self._withheld: Counter[str] = Counter()

    def take(self, reason: str = "") -> bool:
        """Whether one more is allowed; if not, it is counted as withheld."""
        now = self._clock()
        self._left = min(self._left + (now - self._counted_at) * self._per_second, self._burst)
        self._counted_at = now
        if self._left < 1:
            self._withheld[reason] += 1
            return False
        self._left -= 1
        return True

    def take_withheld(self) -> Counter[str]:
        """How many were withheld since the last call, by reason."""
        withheld, self._withheld = self._withheld, Counter()
        return withheld


class Audit:
    """The audit log: joins, uploads, refusals and their reasons, one JSON object a line, append only.

    A call never fails because its entry cannot be written. A file that has grown large is renamed to `audit.jsonl.1`,
    and the oldest of those removed.
    """

    def __init__(
        self, directory: Path, *, limits: Limits = DEFAULT_LIMITS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines = LineFile(directory / AUDIT_NAME, log, name="the audit log")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lines.open()
        except OSError as error:
            raise StoreError(f"the state directory {directory} cannot be used: {error.strerror}") from error
        self._grows = False
        """The file could not be renamed when it had become large."""
        self._limits = limits
        self._clock = clock
        self._unauthenticated = RateLimit(
            limits.audited_unauthenticated, per_second=limits.audited_unauthenticated_per_second, clock=clock
        )
        self._of_callers: dict[str, RateLimit] = {}
        self._of_clients: dict[tuple[int, str], RateLimit] = {}
        self.recorded: Counter[str] = Counter()
        """Entries since the server started, by kind, whether or not they could be written."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """Refused calls since the server started, by method and reason."""

    @property
    def refusals(self) -> Counter[str]:
        """Refused calls since the server started, by reason."""
        by_reason: Counter[str] = Counter()
        for (_, reason), times in self.refused.items():
            by_reason[reason] += times
        return by_reason

    def record(self, what: str, *, client: int | None = None, **facts: Any) -> None:
        self.recorded[what] += 1
        entry = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "what": what, "client": client, **facts}
        if self._lines.append(json.dumps(entry)) >= self._limits.audit_bytes:
            self._rotate()

    def record_client_event(self, what: str, *, client: int, **facts: Any) -> bool:
        """Counts an event of a client, and writes it unless there is a flood of them; returns whether it did."""
        rate_limit = self._of_clients.get((client, what))
        if rate_limit is None:
            rate_limit = RateLimit(
                self._limits.audited_client_events,
                per_second=self._limits.audited_client_events_per_second,
                clock=self._clock,
            )
            self._of_clients[client, what] = rate_limit
        if not rate_limit.take():
            self.recorded[what] += 1
            return False
        self._record_flood(rate_limit, what, client)
        self.record(what, client=client, **facts)
        return True

    def record_refusal(
        self, call: str, refusal: RefusedError, *, client: int | None, peer: str, caller: str | None = None
    ) -> bool:
        """Counts a refusal, and writes it unless there is a flood of them; returns whether it did.

        Each caller has an allowance, by its name if it has authenticated, so that no flood hides what others do.
        `caller` is empty for one that has not, and None where no caller authenticates.
        """
        self.refused[call, refusal.reason_name] += 1
        name, is_unauthenticated = _allowance_of(caller, client, peer)
        rate_limit = self._rate_limit_of(name)
        reason = refusal.reason_name
        if not rate_limit.take(reason) or (is_unauthenticated and not self._unauthenticated.take(reason)):
            return False
        self._record_flood(rate_limit, "refusals", caller=name)
        if is_unauthenticated:
            self._record_flood(self._unauthenticated, "refusals", caller="strangers")
        self.record(
            "refused",
            client=client,
            call=call,
            peer=peer,
            **({"caller": caller} if caller else {}),
            reason=refusal.reason_name,
            field=refusal.details.field or None,
            message=str(refusal),
        )
        return True

    def _rate_limit_of(self, name: str) -> RateLimit:
        limits = self._limits
        if name not in self._of_callers:
            hosts = sum(known.startswith(_HOST) for known in self._of_callers) if name.startswith(_HOST) else 0
            name = name if hosts < limits.audited_hosts else _OTHER_HOSTS
        return self._of_callers.setdefault(
            name,
            RateLimit(limits.audited_refusals, per_second=limits.audited_refusals_per_second, clock=self._clock),
        )

    def _rotate(self) -> None:
        """Continues in a new file; the one that is full becomes the first of the older ones."""
        path = self._lines.path
        older = [path.with_name(f"{AUDIT_NAME}.{number}") for number in range(1, self._limits.audit_files + 1)]
        try:
            for source, target in zip(reversed([path, *older[:-1]]), reversed(older), strict=True):
                if source.exists():
                    source.replace(target)
        except OSError as error:
            if not self._grows:
                log.error("the audit log grows on: a large one cannot be renamed: %s", error.strerror)
            self._grows = True
            return
        self._grows = False
        self._lines.close()
        with suppress(OSError):  # the next entry tries again, and reports it
            self._lines.open()

    def close(self) -> None:
        self._record_flood(self._unauthenticated, "refusals", caller="strangers")
        for name, rate_limit in self._of_callers.items():
            self._record_flood(rate_limit, "refusals", caller=name)
        for (client, what), rate_limit in self._of_clients.items():
            self._record_flood(rate_limit, what, client)
        self._lines.close()

    def _record_flood(self, rate_limit: RateLimit, of_what: str, client: int | None = None, **facts: Any) -> None:
        withheld = rate_limit.take_withheld()
        if withheld:
            reasons = {} if "" in withheld else {"reasons": dict(withheld)}
            self.record("flood", client=client, **facts, **{of_what: withheld.total()}, **reasons)


def _allowance_of(caller: str | None, client: int | None, peer: str) -> tuple[str, bool]:
    """Whose allowance a refusal takes from, and whether it is also one of a caller that has not authenticated."""
    if caller:
        return caller, False
    if caller is None and client is not None:
        return f"client {client}", False
    host = peer.rpartition(":")[0] if peer.startswith("ipv") else peer
    return f"{_HOST}{host}", True
