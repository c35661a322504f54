"""States that are sent along with the event of a round: made a few at a time, and only if they are small."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from feddbp.v1 import federation_pb2 as pb
from feddbp_common.fault_injection import fault_point
from feddbp_common.wire import Encoded
from feddbp_server.run.admission.fairness import SlotsWithTimeout
from feddbp_server.run.admission.limits import Limits
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.run.admission.validation import check_download
from feddbp_server.run.engine import RunEngine
from feddbp_server.run.sessions import Session
from feddbp_server.store import StoreError


class PushedStates:
    """Owns the bytes that pushed states may take: a fixed number of them is in memory, made but not sent.

    Clients that do not read what they are sent delay nobody for longer than `pushed_state_wait`: then the other events
    are sent without states, and their clients download.
    """

    def __init__(self, engine: RunEngine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._slots = SlotsWithTimeout(limits.pushed_states, limits.pushed_state_wait)

    @asynccontextmanager
    async def with_state(self, session: Session, event: pb.RoundEvent) -> AsyncIterator[pb.RoundEvent | EventWithState]:
        """The event with the state that belongs to it, if there is one to be sent; in memory until the context ends."""
        number = announced_round(event)
        if number is None or session.client_id in self._engine.state.uploaded:
            yield event
            return
        has_slot = await self._slots.take()
        try:
            state = await self._state(session, number) if has_slot else None
            fault_point("server.state.pushing")
            if state is None:
                yield event
            else:
                with self._engine.history.downloading(session.client_id, number):
                    yield EventWithState(event, state)
        finally:
            if has_slot:
                self._slots.release()

    async def _state(self, session: Session, number: int) -> Encoded | None:
        engine = self._engine
        try:
            check_download(number, engine.state)  # the round may have closed meanwhile
            encoded = await engine.aggregator.download(
                session.client_id, number, engine.sessions.label_counts, engine.state.excluded
            )
        except (RefusedError, StoreError):  # Download says why
            return None
        if encoded.manifest.total_bytes > self._limits.pushed_state_bytes:
            return None
        return encoded


def announced_round(event: pb.RoundEvent) -> int | None:
    """The round for which a client needs its state after an event."""
    if event.HasField("round_opened"):
        return event.round_opened.round
    return event.final_evaluation.round if event.HasField("final_evaluation") else None


@dataclass(frozen=True)
class EventWithState:
    """An event of a round and the client's state, sent as one `RoundEvent`.

    It is serialised here: protobuf would copy the state's bytes into its message first, and then out of it.
    """

    event: pb.RoundEvent
    state: Encoded

    def SerializeToString(self) -> bytes:
        body_bytes = self.state.manifest.total_bytes
        manifest = pb.PushedState(manifest=self.state.manifest).SerializeToString()
        body = _field(pb.PushedState.BODY_FIELD_NUMBER, body_bytes)
        state = _field(pb.RoundEvent.STATE_FIELD_NUMBER, len(manifest) + len(body) + body_bytes)
        return b"".join((self.event.SerializeToString(), state, manifest, body, *self.state.segments))


def _field(number: int, length: int) -> bytes:
    """The beginning of a protobuf field of so many bytes: its number, and the length, seven bits a byte."""
    begun = bytearray([number << 3 | 2])
    while length > 0x7F:
        begun.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*begun, length))
