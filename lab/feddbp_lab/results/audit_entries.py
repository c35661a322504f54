"""What an entry of the audit log says of a run that has ended: refused calls, and incidents as its status had them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from feddbp_common.humanize import client_names
from feddbp_common.printable import printable_values
from feddbp_server.reporting.event_log import AUDITED_INCIDENTS, repeated

_SHOWN: Final = {*AUDITED_INCIDENTS, "disconnected"}
_WORDS: Final = {"alone": "training alone", "unusable": "state unusable"}
"""For kinds of entries whose own name says too little."""
_NO_REASON: Final = "reason not recorded"
"""Of refused calls that an earlier version only counted."""
_INCIDENTS: Final = 20


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    refusals: dict[str, int]
    """By reason: the call itself, or those that were no longer written one by one."""
    incident: dict[str, Any] | None

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> AuditEntry:
        """Raises one of `json_lines.MALFORMED` if something is missing or of the wrong type."""
        entry = printable_values(stored)
        return cls(refusals=_refusals(entry), incident=_incident(entry) if entry["what"] in _SHOWN else None)


def troubles(entries: Iterable[AuditEntry]) -> dict[str, Any]:
    """Refusals by reason, and the last incidents."""
    refusals: Counter[str] = Counter()
    incidents: dict[tuple[int | None, str], tuple[dict[str, Any], int]] = {}
    for entry in entries:
        refusals.update(entry.refusals)
        if entry.incident:
            key = entry.incident["client"], entry.incident["message"]
            _, times = incidents.pop(key, ({}, 0))
            incidents[key] = entry.incident, times + 1
    newest = list(incidents.values())[-_INCIDENTS:]
    shown = [{**incident, "message": repeated(incident["message"], times)} for incident, times in newest]
    return {"refusals": dict(refusals), "incidents": shown}


def _refusals(entry: dict[str, Any]) -> dict[str, int]:
    if entry["what"] == "refused":
        return {str(entry["reason"]): 1}
    if entry["what"] == "flood" and "refusals" in entry:
        reasons = entry.get("reasons", {_NO_REASON: entry["refusals"]})
        return {reason: int(count) for reason, count in reasons.items()}
    return {}


def _incident(entry: dict[str, Any]) -> dict[str, Any]:
    kind, clients = str(entry["what"]).replace("_", " "), entry.get("clients")
    detail = str(entry.get("message") or entry.get("cause") or entry.get("reason") or "")
    detail = detail.removeprefix(kind).lstrip(", ")  # why an upload was left out, clipped or capped begins with that
    about = f" {client_names(clients)}" if clients else ""
    where = f" in round {entry['round'] + 1}" if isinstance(entry.get("round"), int) else ""
    what = f"{_WORDS.get(kind, kind)}{about}{where}"
    return {
        "at": datetime.fromisoformat(entry["at"]).timestamp(),
        "client": entry["client"] if isinstance(entry.get("client"), int) else None,
        "message": f"{what}: {detail}" if detail else what,
    }
