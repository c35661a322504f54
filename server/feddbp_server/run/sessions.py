"""Sessions of clients: secrets, epochs, leases, and the rule that a client id has one live daemon."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.run.admission.refusals import RefusedError
from feddbp_server.store import ClientRecord


@dataclass(kw_only=True)
class Session:
    """A client from one join to the next; its fields beyond the record are lost with the server."""

    client_id: int
    epoch: int
    """Which join of the client it is, counted from 1."""
    session_sha256: bytes
    data: pb.DataSummary
    capabilities: pb.Capabilities
    last_seen: float
    """On the server's monotonic clock."""
    streams: int = 0
    """Open event streams."""
    progress: pb.Progress = field(default_factory=pb.Progress)
    peer: str = ""
    """Where it last joined or followed from, as gRPC names it; empty before that."""
    lost_timer: asyncio.TimerHandle | None = None
    """Runs while it has no event stream; see `LostClients`."""

    @cached_property
    def label_counts(self) -> tuple[int, ...]:
        """Its declared training samples per class; of a message they would be read one by one, in every round."""
        return tuple(self.data.label_counts)

    def record(self) -> ClientRecord:
        return ClientRecord(
            client_id=self.client_id,
            epoch=self.epoch,
            session_sha256=self.session_sha256,
            data=self.data.SerializeToString(),
            capabilities=self.capabilities.SerializeToString(),
        )

    def closed_record(self) -> ClientRecord:
        """The record of a client that has left: no secret opens the session again."""
        return self.record()._replace(session_sha256=b"")


class Sessions:
    """The newest session of every client that ever joined, by client id and by secret."""

    def __init__(self, *, lease: timedelta) -> None:
        self.lease = lease
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._by_id: dict[int, Session] = {}
        self._by_secret: dict[bytes, Session] = {}

    def restore(self, records: Iterable[ClientRecord], now: float) -> None:
        """Restores sessions after a restart with a new lease; clients that had left are known without a session."""
        for record in records:
            self.join(
                Session(
                    client_id=record.client_id,
                    epoch=record.epoch,
                    session_sha256=record.session_sha256,
                    data=pb.DataSummary.FromString(record.data),
                    capabilities=pb.Capabilities.FromString(record.capabilities),
                    last_seen=now,
                )
            )

    def prepare_join(self, request: pb.JoinRequest, now: float) -> tuple[Session, str]:
        """A new session and its secret, or a refusal while another daemon uses the id. In force after `join`."""
        holder = self._by_id.get(request.client_id)
        if holder is not None and not self._may_take_over(holder, request.previous_session, now):
            raise RefusedError(
                pb.REFUSAL_REASON_ID_IN_USE,
                f"client {request.client_id} is in use by another daemon; its lease ends "
                f"{self.lease.total_seconds():g}s after its last sign of life",
                field="client_id",
            )
        secret = secrets.token_urlsafe(24)
        session = Session(
            client_id=request.client_id,
            epoch=holder.epoch + 1 if holder is not None else 1,
            session_sha256=_fingerprint(secret),
            data=request.data,
            capabilities=request.capabilities,
            last_seen=now,
        )
        return session, secret

    def join(self, session: Session) -> Session | None:
        """Puts a session in force; returns the one it supersedes, if the client had one."""
        superseded = self._by_id.get(session.client_id)
        if superseded is not None:
            self._by_secret.pop(superseded.session_sha256, None)
        self._by_id[session.client_id] = session
        if session.session_sha256:
            self._by_secret[session.session_sha256] = session
        return superseded

    def leave(self, session: Session) -> None:
        """Ends a session; its client id is free at once."""
        if self.is_current(session):
            self._by_secret.pop(session.session_sha256, None)

    def resolve(self, secret: str) -> Session:
        """The session of a secret."""
        session = self._by_secret.get(_fingerprint(secret))
        if session is None:
            raise RefusedError(
                pb.REFUSAL_REASON_STALE_SESSION,
                "this session is unknown or was superseded; join again",
                field="session",
            )
        return session

    def is_current(self, session: Session) -> bool:
        """Whether a session is in force: neither superseded nor ended."""
        return self._by_secret.get(session.session_sha256) is session

    def has_left(self, session: Session) -> bool:
        """Whether a session ended and no newer one of its client superseded it."""
        return self._by_id.get(session.client_id) is session and not self.is_current(session)

    def get(self, client_id: int) -> Session | None:
        return self._by_id.get(client_id)

    def lock_of(self, client_id: int) -> asyncio.Lock:
        """Held while a client joins, uploads, leaves, or is dropped or blocked, from the check to what it decides.

        So of two joins one is refused, and no upload is stored after the step that blocks its client.
        """
        return self._locks[client_id]

    def in_any_order(self) -> Iterable[Session]:
        return self._by_id.values()

    def all(self) -> list[Session]:
        return [self._by_id[client_id] for client_id in sorted(self._by_id)]

    def name(self, client_id: int) -> str:
        """The name that the client's operator has given it; empty if none."""
        session = self._by_id.get(client_id)
        return "" if session is None else session.capabilities.name

    def label_counts(self, client_id: int) -> Sequence[int]:
        """The training samples per class of a client that has joined."""
        return self._by_id[client_id].label_counts

    def _may_take_over(self, holder: Session, previous_session: str, now: float) -> bool:
        if previous_session and hmac.compare_digest(_fingerprint(previous_session), holder.session_sha256):
            return True
        if not self.is_current(holder):  # it left
            return True
        return holder.streams == 0 and now - holder.last_seen >= self.lease.total_seconds()


def _fingerprint(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
