"""Reports the events of a run: as log lines, as entries of the audit log, and as incidents in the status."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.humanize import address_text, client_names, human_seconds
from feddbp_common.printable import printable
from feddbp_common.version import VERSION
from feddbp_server.aggregation.screening import Screening
from feddbp_server.reporting.audit import Audit, RateLimit
from feddbp_server.reporting.event_command import EventCommand
from feddbp_server.reporting.round_lines import ClosedRound, RoundLines
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.participants import Waiting
from feddbp_server.run.sessions import Session
from feddbp_server.run.state_machine.events import (
    ClientsSetAside,
    CloseRound,
    DeadlineExtended,
    Effect,
    FinalEvaluationOpened,
    MembersDropped,
    RoundAbandoned,
    RoundOpened,
    RunBegan,
    RunEnded,
)
from feddbp_server.run.state_machine.state import Phase, RunState

log = logging.getLogger("feddbp.server")

AUDITED_INCIDENTS: Final = frozenset(
    {
        "alone",
        "began_without",
        "capped",
        "clipped",
        "closed_without",
        "dropped",
        "failed",
        "left_out",
        "refused",
        "set_aside",
        "skipped",
        "unusable",
    }
)
"""Kinds of entries of the audit log that are incidents in the status, too: what a run that has ended shows of them."""
_WAITING_LINES: Final = 30
"""Lines about joins at once; with more clients, one a second."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A problem the run survived, shown in the status."""

    at: float
    """When it happened last."""
    client_id: int | None
    message: str
    unauthenticated: bool = False
    times: int = 1

    @property
    def shown(self) -> str:
        return repeated(self.message, self.times)

    def is_like(self, client_id: int | None, *, unauthenticated: bool) -> bool:
        """Whether it takes the place of the same party: of one client, or of all unauthenticated callers."""
        if unauthenticated or self.unauthenticated:
            return unauthenticated and self.unauthenticated
        return client_id is not None and client_id == self.client_id


def repeated(message: str, times: int) -> str:
    return message if times == 1 else f"{message} ({times} times)"


class EventLog:
    """Owns where events are reported; decides nothing, and is called once an event is durable."""

    def __init__(
        self,
        audit: Audit,
        *,
        rounds: RoundLines,
        limits: Limits,
        changed: Callable[[], None],
        names: Callable[[int], str] = lambda _: "",
        command: EventCommand | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.audit = audit
        self.rounds = rounds
        self._command = command or EventCommand()
        """Started for what needs an operator; by default there is none."""
        self._names = names
        """The name of a client, if it has one."""
        self._waiting_lines = RateLimit(_WAITING_LINES, per_second=1.0, clock=clock)
        self._crowd_lines = RateLimit(1, per_second=1 / 60, clock=clock)
        self._alone: int | None = None
        self.incidents: deque[Incident] = deque(maxlen=limits.incidents)
        self._limits = limits
        self._changed = changed
        """Called after a new incident."""

    def incident(self, client_id: int | None, message: str, *, unauthenticated: bool = False) -> None:
        """Adds an incident, or counts one more of an incident that is among the newest.

        `unauthenticated`: the caller has not authenticated, and the client is the one that it claims to be.
        """
        limits, times = self._limits, 1
        for known in self.incidents:
            if (known.client_id, known.message, known.unauthenticated) == (client_id, message, unauthenticated):
                self.incidents.remove(known)
                times += known.times
                break
        alike = [known for known in self.incidents if known.is_like(client_id, unauthenticated=unauthenticated)]
        if len(alike) >= (limits.incidents_of_unauthenticated if unauthenticated else limits.incidents_per_client):
            self.incidents.remove(alike[0])
        self.incidents.append(
            Incident(at=time.time(), client_id=client_id, message=message, unauthenticated=unauthenticated, times=times)
        )
        self._changed()

    def shown(self, *clients: int) -> str:
        """Clients with their names."""
        return client_names(clients, self._names)

    def joined(self, session: Session) -> None:
        version = session.capabilities.software_version
        named = {"name": session.capabilities.name} if session.capabilities.name else {}
        if self.audit.record_client_event("joined", client=session.client_id, epoch=session.epoch, **named):
            log.info(
                "%s joins%s with %s on %s (session %d%s)",
                self.shown(session.client_id),
                f" from {address_text(session.peer)}" if session.peer else "",
                session.capabilities.architecture or "an unnamed model",
                session.capabilities.device or "an unnamed device",
                session.epoch,
                "" if version == VERSION else f", feddbp {version or 'of an unknown version'}",
            )

    def left(self, session: Session, reason: str) -> None:
        shown = printable(reason, self._limits.text_characters)
        if self.audit.record_client_event("left", client=session.client_id, reason=shown):
            log.info("%s left: %s", self.shown(session.client_id), shown or "no reason given")

    def disconnected(self, session: Session, *, awaited_in: int | None, seconds_left: float | None) -> None:
        """A client is lost; `awaited_in` is the round that waits for it, if one does."""
        if not self.audit.record_client_event("disconnected", client=session.client_id, peer=session.peer):
            return
        limit = "" if seconds_left is None else f", for {human_seconds(seconds_left)} at most"
        waits = "" if awaited_in is None else f"; {self.rounds.name(awaited_in)} waits for it{limit}"
        log.warning("%s is disconnected%s", self.shown(session.client_id), waits)

    def lost(self, session: Session, seconds: float) -> None:
        """A client has been disconnected for so long that an operator should know."""
        name = session.capabilities.name
        log.warning("%s has been disconnected for %s", self.shown(session.client_id), human_seconds(seconds))
        self._command.notify("client_lost", client=session.client_id, name=name, seconds=round(seconds))

    def waiting(self, waiting: Callable[[], Waiting]) -> None:
        """A client has joined a run that waits for others; of many joins at once only some are logged."""
        if self._waiting_lines.take():
            log.info("%s", waiting())

    def alone(self, client: int | None) -> None:
        """The only client that takes part, if there are others in the run; logged when that begins."""
        if client == self._alone:
            return
        self._alone = client
        if client is None:
            return
        log.warning("training alone: %s is the only one that takes part", self.shown(client))
        self.audit.record("alone", client=client)
        self.incident(client, "training alone: no other client takes part")

    def accepted(self, session: Session, round_number: int, manifest: pb.Manifest) -> None:
        self.audit.record(
            "accepted",
            client=session.client_id,
            round=round_number,
            sha256=manifest.sha256.hex(),
            bytes=manifest.total_bytes,
        )

    def failed(self, session: Session, round_number: int, cause: str) -> None:
        self._could_not("failed", "failed in", session, round_number, cause)

    def skipped(self, session: Session, round_number: int, cause: str) -> None:
        self._could_not("skipped", "skips", session, round_number, cause)

    def _could_not(self, what: str, verb: str, session: Session, round_number: int, cause: str) -> None:
        """A client has not completed a round, for the cause that it gives."""
        shown = printable(cause, self._limits.text_characters) or "no cause given"
        if self.audit.record_client_event(what, client=session.client_id, round=round_number, cause=shown):
            where = self.rounds.name(round_number)
            log.warning("%s %s %s: %s", self.shown(session.client_id), verb, where, shown)
            self.incident(session.client_id, f"{verb} {where}: {shown}")

    def refused(self, call: str, refusal: RefusedError, *, peer: str, caller: str | None = None) -> None:
        """A flood of refusals is only counted: it must not displace other incidents."""
        if refusal.details.HasField("retry_after"):
            self._deferred(call, refusal)
        elif self.audit.record_refusal(call, refusal, client=refusal.client_id, peer=peer, caller=caller):
            whose = "" if refusal.client_id is None else f" of {self.shown(refusal.client_id)}"
            log.warning("refused %s%s (%s): %s", call, whose, refusal.reason_name, refusal)
            shown = f"refused {call} ({refusal.reason_name}): {refusal}"
            self.incident(refusal.client_id, shown, unauthenticated=caller == "")

    def _deferred(self, call: str, refusal: RefusedError) -> None:
        """Too many callers at once, who did nothing wrong: counted, and logged once a minute."""
        self.audit.refused[call, refusal.reason_name] += 1
        if self._crowd_lines.take():
            log.warning("refused %s: %s; more of these are logged once a minute", call, refusal)
            self.incident(None, f"too many calls of {call} at once; they are refused with a time to retry")

    def storage(self, trouble: str) -> None:
        """The store is not writable because of `trouble`, or is writable again if that is empty."""
        if trouble:
            log.error("%s; nothing is accepted until it can be written", trouble)
            self.incident(None, trouble)
            self._command.notify("storage_trouble", reason=trouble)
        else:
            log.warning("the state directory can be used again")
            self._command.notify("storage_recovered")

    def operated(self, what: str, client: int, reason: str = "") -> None:
        """An operator has dropped, blocked or allowed a client."""
        shown = printable(reason, self._limits.text_characters)
        self.audit.record(f"{what}_by_operator", client=client, reason=shown)
        log.warning("an operator has %s %s%s", what, self.shown(client), f": {shown}" if shown else "")

    def phase(self, before: Phase, now: Phase) -> None:
        """A run enters and leaves a pause only on an operator's request."""
        if (before is Phase.PAUSED) == (now is Phase.PAUSED) or now.is_final:
            return
        what = "paused" if now is Phase.PAUSED else "resumed"
        self.audit.record(what)
        log.info("an operator has %s the run", what)

    def closed(self, closed: ClosedRound) -> None:
        """The one line of a round, once it is aggregated."""
        level = logging.WARNING if self.rounds.missing(closed) else logging.INFO
        log.log(level, "%s", self.rounds.closed(closed))

    def screened(self, number: int, screening: Screening) -> None:
        """Names the clients whose uploads were left out of an average, or count for less than they would."""
        where = self.rounds.name(number)
        if screening.unusable:
            self.audit.record("unusable", round=number, reason=screening.unusable)
            log.error(
                "%s: the state before it stays, since clients could not use this one: %s", where, screening.unusable
            )
            self.incident(None, f"{where}: the state before it stays: {screening.unusable}")
        found = {
            "left_out": {client: f"left out, {why}" for client, why in screening.left_out.items()},
            "clipped": {client: f"clipped, {why}" for client, why in screening.clipped.items()},
            "capped": {
                client: f"capped at a weight of {screening.samples:.0f} samples, of {declared} that were declared"
                for client, declared in screening.capped.items()
            },
        }
        for what, of_clients in found.items():
            for client, text in of_clients.items():
                if self.audit.record_client_event(what, client=client, round=number, reason=text):
                    log.warning("the upload of %s to %s was %s", self.shown(client), where, text)
                    self.incident(client, f"upload to {where} was {text}")

    def resumed(self, state: RunState, *, extendable: bool) -> None:
        """A run was found in the state directory."""
        if state.phase.is_final:
            log.warning(
                "the run in this state directory %s after %d rounds: %s; %sanother run needs another --state-dir",
                state.phase.value,
                state.round,
                state.reason,
                "more --rounds extend it, " if extendable else "",
            )
            return
        self.rounds.resumed(state.selected)
        log.info("resuming the run: %s, %s", state.phase.value, self.rounds.name(state.round))

    def lingering(self, unaware: frozenset[int], seconds: float) -> None:
        """The server would stop, but for clients that have not received the end of the run."""
        if seconds > 0:
            names = self.shown(*unaware)
            log.info(
                "waiting up to %s (--linger) for %s to receive the end of the run: not known to have it yet",
                human_seconds(seconds),
                names,
            )

    def exiting(self, unaware: frozenset[int]) -> None:
        """The run is over, and the server does not wait for clients any longer."""
        if unaware:
            names, have = self.shown(*unaware), "has" if len(unaware) == 1 else "have"
            log.warning(
                "the server exits; %s %s not received the end of the run: a server that is started again in the same "
                "state directory reports it",
                names,
                have,
            )
        else:
            log.info("the server exits: the run is over, and no client waits for its end")

    def effect(self, effect: Effect) -> None:
        match effect:
            case RoundOpened(number, selected):
                if begins := self.rounds.finetuning(number):
                    log.info("%s", begins)
                # of later rounds, the line of the round before says enough
                log.log(logging.DEBUG if number else logging.INFO, "%s", self.rounds.opened(number, selected))
            case RunBegan(members, missing):
                begun = f"the run begins with {len(members)} of {len(members) + len(missing)} clients"
                log.warning("%s; missing: %s", begun, self.shown(*missing))
                self.audit.record("began_without", clients=sorted(missing))
                self.incident(None, f"{begun}; missing: {self.shown(*missing)}")
            case CloseRound(number, missing):
                if missing:
                    self.audit.record("closed_without", round=number, clients=sorted(missing))
                    self.incident(None, f"{self.rounds.name(number)} closed without {self.shown(*missing)}")
            case DeadlineExtended(number, extension, missing):
                name, names = self.rounds.name(number), self.shown(*missing)
                log.warning("%s: extension %d, waiting for %s", name, extension, names)
                self.incident(None, f"{name} extended; missing: {names}")
            case MembersDropped(clients):
                log.warning("dropped until they join again: %s", self.shown(*clients))
                self.audit.record("dropped", clients=sorted(clients))
                self.incident(None, f"dropped until they join again: {self.shown(*clients)}")
            case ClientsSetAside(clients):
                names = self.shown(*clients)
                log.warning("set aside until they upload again, after too many missed rounds: %s", names)
                self.audit.record("set_aside", clients=sorted(clients))
                self.incident(None, f"set aside until they upload again, after too many missed rounds: {names}")
            case RoundAbandoned(number):
                name = self.rounds.name(number)
                log.warning(
                    "%s: every client selected for it has left; it opens again as soon as enough have joined", name
                )
                self.incident(None, f"{name} opens again: every client selected for it has left")
            case FinalEvaluationOpened(_, reason):
                log.info("%s; clients evaluate the final state", reason)
            case RunEnded(phase, reason):
                self.audit.record("ended", phase=phase.value, reason=reason)
                level = logging.INFO if phase is Phase.FINISHED else logging.ERROR
                log.log(level, "the run %s: %s", phase.value, reason)
                self._command.notify(f"run_{phase.value}", reason=reason)
