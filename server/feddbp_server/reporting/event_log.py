"""What happens in a run, told to people: in the log, in the audit log, and as incidents in the status."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.reporting.audit import Audit
from feddbp_server.run.limits import Limits
from feddbp_server.run.refusals import RefusedError
from feddbp_server.run.sessions import Client
from feddbp_server.run.state_machine import (
    CloseRound,
    DeadlineExtended,
    Effect,
    FinalEvaluationOpened,
    MembersDropped,
    Phase,
    RoundAbandoned,
    RoundOpened,
    RunEnded,
)
from feddbp_server.run.validation import one_line

log = logging.getLogger("feddbp.server")


@dataclass(frozen=True, kw_only=True)
class Incident:
    """Something that went wrong and was dealt with."""

    at: float
    client_id: int | None
    message: str


class EventLog:
    """Decides nothing: whoever calls has done so, and made it durable where it has to be."""

    def __init__(self, audit: Audit, *, limits: Limits, changed: Callable[[], None]) -> None:
        self.audit = audit
        self.incidents: deque[Incident] = deque(maxlen=limits.incidents)
        self._limits = limits
        self._changed = changed
        """Called when there is another incident."""

    def incident(self, client_id: int | None, message: str) -> None:
        of_client = [known for known in self.incidents if client_id is not None and known.client_id == client_id]
        if len(of_client) >= self._limits.incidents_per_client:
            self.incidents.remove(of_client[0])
        self.incidents.append(Incident(at=time.time(), client_id=client_id, message=message))
        self._changed()

    def joined(self, client: Client) -> None:
        if self.audit.note_of_client("joined", client=client.client_id, epoch=client.epoch):
            log.info(
                "client %d joins with %s on %s (session %d)",
                client.client_id,
                client.capabilities.architecture or "an unnamed model",
                client.capabilities.device or "an unnamed device",
                client.epoch,
            )

    def left(self, client: Client, reason: str) -> None:
        shown = one_line(reason, self._limits.text_characters)
        if self.audit.note_of_client("left", client=client.client_id, reason=shown):
            log.info("client %d left: %s", client.client_id, shown or "no reason given")

    def accepted(self, client: Client, round_number: int, manifest: pb.Manifest) -> None:
        self.audit.note(
            "accepted",
            client=client.client_id,
            round=round_number,
            sha256=manifest.sha256.hex(),
            bytes=manifest.total_bytes,
        )

    def failed(self, client: Client, round_number: int, cause: str) -> None:
        shown = one_line(cause, self._limits.text_characters) or "no cause given"
        if self.audit.note_of_client("failed", client=client.client_id, round=round_number, cause=shown):
            log.warning("client %d could not do round %d: %s", client.client_id, round_number, shown)
            self.incident(client.client_id, f"could not do round {round_number}: {shown}")

    def refused(self, call: str, refusal: RefusedError, *, peer: str) -> None:
        """A flood of refusals is only counted: it must push nothing else out of sight."""
        if self.audit.note_refusal(call, refusal, client=refusal.client_id, peer=peer):
            log.warning("refused %s (%s): %s", call, refusal.reason_name, refusal)
            self.incident(refusal.client_id, f"refused {call} ({refusal.reason_name}): {refusal}")

    def storage(self, trouble: str) -> None:
        """Nothing can be kept because of a trouble; without one it can again."""
        if trouble:
            log.error("%s; nothing is accepted until it can be", trouble)
            self.incident(None, trouble)
        else:
            log.warning("the state directory can be used again")

    def phase(self, before: Phase, now: Phase) -> None:
        """Only an operator takes a run in or out of a pause."""
        if (before is Phase.PAUSED) == (now is Phase.PAUSED) or now.is_final:
            return
        what = "paused" if now is Phase.PAUSED else "resumed"
        self.audit.note(what)
        log.info("an operator has %s the run", what)

    def effect(self, effect: Effect) -> None:
        match effect:
            case RoundOpened(number, selected):
                log.info("round %d is open for %d clients", number, len(selected))
            case CloseRound(number, missing):
                if missing:
                    log.warning("round %d closes without %s", number, _listed(missing))
                    self.audit.note("closed_without", round=number, clients=sorted(missing))
                    self.incident(None, f"round {number} closed without {_listed(missing)}")
            case DeadlineExtended(number, extension, missing):
                log.warning("round %d: extension %d, waiting for %s", number, extension, _listed(missing))
                self.incident(None, f"round {number} extended; missing: {_listed(missing)}")
            case MembersDropped(clients):
                log.warning("dropped until they join again: %s", _listed(clients))
                self.audit.note("dropped", clients=sorted(clients))
                self.incident(None, f"dropped until they join again: {_listed(clients)}")
            case RoundAbandoned(number):
                log.warning(
                    "round %d: everyone who was to train has left; it begins anew with whoever is there", number
                )
                self.incident(None, f"round {number} begins anew: everyone who was to train has left")
            case FinalEvaluationOpened(_):
                log.info("all rounds are done; clients evaluate once more")
            case RunEnded(phase, reason):
                self.audit.note("ended", phase=phase.value, reason=reason)
                level = logging.INFO if phase is Phase.FINISHED else logging.ERROR
                log.log(level, "the run %s: %s", phase.value, reason)


def _listed(clients: frozenset[int]) -> str:
    return ", ".join(f"client {client}" for client in sorted(clients))
