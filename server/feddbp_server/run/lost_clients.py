"""Clients that are disconnected for so long that an operator should know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from feddbp_server.run.sessions import Session, Sessions


class LostClients:
    """Owns the timer of every session without an event stream, which reports it once it is unseen for long enough."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        after: timedelta,
        clock: Callable[[], float],
        report: Callable[[Session, float], None],
    ) -> None:
        self._sessions = sessions
        self._after = after.total_seconds()
        self._clock = clock
        self._report = report
        """Called with the session and the seconds for which it is unseen."""

    def watch(self, session: Session) -> None:
        """From its last sign of life on; further ones, such as reports, put it off."""
        self.forget(session)
        left = max(0.0, session.last_seen + self._after - self._clock())
        session.lost_timer = asyncio.get_running_loop().call_later(left, self._check, session)

    def forget(self, session: Session) -> None:
        if session.lost_timer is not None:
            session.lost_timer.cancel()
            session.lost_timer = None

    def _check(self, session: Session) -> None:
        session.lost_timer = None
        if session.streams or not self._sessions.is_current(session):
            return
        unseen = self._clock() - session.last_seen
        if unseen < self._after:
            self.watch(session)
        else:
            self._report(session, unseen)
