"""Who may see the page and who may control the run: a key in the printed address, a session, a token per session."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

COOKIE: Final = "feddbp_dashboard"
CSRF_HEADER: Final = "x-csrf-token"


@dataclass(frozen=True, kw_only=True)
class Access:
    """On loopback anyone may look; the key is needed to control the run, and elsewhere to see anything."""

    key: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    open_to_view: bool = True
    """Whether the page is served without a key: on loopback only."""
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    def admits(self, key: str) -> bool:
        return hmac.compare_digest(key.encode(), self.key.encode())

    @property
    def session(self) -> str:
        """The value of the cookie that the key is exchanged for."""
        return self._session

    def has_session(self, cookies: Mapping[str, str]) -> bool:
        return hmac.compare_digest(cookies.get(COOKIE, "").encode(), self._session.encode())

    def may_view(self, cookies: Mapping[str, str]) -> bool:
        return self.open_to_view or self.has_session(cookies)

    def csrf_token(self) -> str:
        """In the page of a session alone: another site can neither read it nor send it in a header."""
        return hmac.new(self._session.encode(), b"csrf", hashlib.sha256).hexdigest()

    def may_control(self, cookies: Mapping[str, str], headers: Mapping[str, str]) -> bool:
        sent = headers.get(CSRF_HEADER, "")
        return (
            self.has_session(cookies)
            and hmac.compare_digest(sent.encode(), self.csrf_token().encode())
            and is_same_origin(headers)
        )


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a request was sent by a page of this address."""
    origin = headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc == headers.get("host", "")


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """Values of the header Host that loopback answers to: another name in it is a site that rebinds its own."""
    bare = host.strip("[]")
    names = {"localhost", "127.0.0.1", "[::1]", f"[{bare}]" if ":" in bare else bare}
    return frozenset({f"{name}:{port}" for name in names})
