"""Who is who: sessions, their epochs, and the rule that an id has one live daemon."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from feddbp.v1 import federation_pb2 as pb
from feddbp_server.run.refusals import RefusedError
from feddbp_server.store import ClientRecord


@dataclass(kw_only=True)
class Client:
    """A client as the running server knows it."""

    client_id: int
    epoch: int
    session_sha256: bytes
    data: pb.DataSummary
    capabilities: pb.Capabilities
    last_seen: float
    """On the server's monotonic clock."""
    streams: int = 0
    """Open Follow streams of the current session."""
    downloads: int = 0
    """Downloads of the current session that are being sent."""
    progress: pb.Progress = field(default_factory=pb.Progress)

    def record(self) -> ClientRecord:
        return ClientRecord(
            client_id=self.client_id,
            epoch=self.epoch,
            session_sha256=self.session_sha256,
            data=self.data.SerializeToString(),
            capabilities=self.capabilities.SerializeToString(),
        )

    def closed_record(self) -> ClientRecord:
        """As it is kept once it has left: no secret opens the session again."""
        return self.record()._replace(session_sha256=b"")


class Sessions:
    """All clients that have joined, by id and by session."""

    def __init__(self, *, lease: timedelta) -> None:
        self.lease = lease
        self.entrance = asyncio.Lock()
        """Held while an id changes hands: of two that claim it at once, one comes first."""
        self._by_id: dict[int, Client] = {}
        self._by_session: dict[bytes, Client] = {}

    def restore(self, records: Iterable[ClientRecord], now: float) -> None:
        """Takes back the sessions of before a restart: their holders may go on, nobody else may take the id yet.

        Whoever had left by then is known, but has no session.
        """
        for record in records:
            self._put(
                Client(
                    client_id=record.client_id,
                    epoch=record.epoch,
                    session_sha256=record.session_sha256,
                    data=pb.DataSummary.FromString(record.data),
                    capabilities=pb.Capabilities.FromString(record.capabilities),
                    last_seen=now,
                )
            )

    def open(self, request: pb.JoinRequest, now: float) -> tuple[Client, str]:
        """A new session for an id, or a refusal while someone else is using it. Not in force until `enter`."""
        holder = self._by_id.get(request.client_id)
        if holder is not None and not self._may_take_over(holder, request.previous_session, now):
            raise RefusedError(
                pb.REFUSAL_REASON_ID_IN_USE,
                f"client {request.client_id} is in use by another daemon; its lease ends "
                f"{self.lease.total_seconds():g}s after it was last heard of",
                field="client_id",
            )
        secret = secrets.token_urlsafe(24)
        client = Client(
            client_id=request.client_id,
            epoch=holder.epoch + 1 if holder is not None else 1,
            session_sha256=_fingerprint(secret),
            data=request.data,
            capabilities=request.capabilities,
            last_seen=now,
        )
        return client, secret

    def enter(self, client: Client) -> Client | None:
        """Puts a session in force; returns the one it fences off, if the id had one."""
        superseded = self._by_id.get(client.client_id)
        self._put(client)
        return superseded

    def by_session(self, secret: str) -> Client:
        client = self._by_session.get(_fingerprint(secret))
        if client is None:
            raise RefusedError(
                pb.REFUSAL_REASON_STALE_SESSION,
                "this session is unknown or was superseded; join again",
                field="session",
            )
        return client

    def close(self, client: Client) -> None:
        """Ends a session; its id is free at once."""
        if self.is_current(client):
            self._by_session.pop(client.session_sha256, None)

    def is_current(self, client: Client) -> bool:
        """Whether it is the session of its id, neither superseded nor closed."""
        return self._by_session.get(client.session_sha256) is client

    def get(self, client_id: int) -> Client | None:
        return self._by_id.get(client_id)

    def label_counts(self, client_id: int) -> Sequence[int]:
        """The training samples per class of a client that has joined."""
        return self._by_id[client_id].data.label_counts

    def all(self) -> list[Client]:
        return [self._by_id[client_id] for client_id in sorted(self._by_id)]

    def _may_take_over(self, holder: Client, previous_session: str, now: float) -> bool:
        if previous_session and hmac.compare_digest(_fingerprint(previous_session), holder.session_sha256):
            return True
        if not self.is_current(holder):  # it left
            return True
        return holder.streams == 0 and now - holder.last_seen >= self.lease.total_seconds()

    def _put(self, client: Client) -> None:
        before = self._by_id.get(client.client_id)
        if before is not None:
            self._by_session.pop(before.session_sha256, None)
        self._by_id[client.client_id] = client
        if client.session_sha256:
            self._by_session[client.session_sha256] = client


def _fingerprint(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
