"""The dashboard's web application: pages, JSON, the stream of changes, and an operator's requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feddbp_common.errors import FedDBPError
from feddbp_common.version import VERSION
from feddbp_lab.dashboard.access import COOKIE, Access, is_same_origin
from feddbp_lab.dashboard.library import Library
from feddbp_lab.dashboard.live import LiveRun
from feddbp_lab.dashboard.model import Cursor, Json
from feddbp_lab.dashboard.source import RunSource
from feddbp_lab.results.html_templates import html_templates

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_INTERVAL: Final = 0.25
"""Seconds between two messages of a stream; changes in between are sent together."""
_CROWD: Final = 200
"""Clients beyond which messages are sent once a second."""
_HEARTBEAT: Final = 15.0
_BODY_BYTES: Final = 4096
_UNREADABLE: Final = 422
"""The status of a run whose files are damaged."""
_ACTIONS: Final = ("pause", "resume", "stop")


class Pages:
    """The handlers; they own nothing but what they were given."""

    def __init__(self, library: Library, access: Access, *, secure: bool) -> None:
        self._library = library
        self._access = access
        self._secure = secure
        self._templates = html_templates("feddbp_lab.dashboard")

    # --- pages ---

    async def home(self, request: Request) -> Response:
        if self._library.single is not None:
            return RedirectResponse("/run/0/", status_code=303)
        return self._page("runs.html.j2", request, api="/api", title=str(self._library.folder))

    async def run(self, request: Request) -> Response:
        source = await self._library.get(request.path_params["key"], newest=True)
        if source is None:
            return self._page("missing.html.j2", request, api="", title="Not found", status=404)
        api = f"/run/{request.path_params['key']}/api"
        has_siblings = self._library.single is None
        return self._page("run.html.j2", request, api=api, title="Run", live=source.is_live, siblings=has_siblings)

    async def damaged(self, request: Request, error: Exception) -> Response:
        """Of a run that cannot be read; the others can."""
        if "/api/" in request.url.path:
            return _json({"error": str(error)}, status=_UNREADABLE)
        return self._page(
            "damaged.html.j2", request, api="", title="Damaged run", problem=str(error), status=_UNREADABLE
        )

    async def login(self, request: Request) -> Response:
        if request.method == "GET":
            return self._page("login.html.j2", request, api="", title="Key", failed=False)
        key = _form_value(await _body(request), "key")
        if not (is_same_origin(request.headers) and self._access.admits(key)):
            return self._page("login.html.j2", request, api="", title="Key", failed=True, status=403)
        return self.signed_in("/")

    def signed_in(self, path: str) -> Response:
        response = RedirectResponse(path, status_code=303)
        response.set_cookie(COOKIE, self._access.session, httponly=True, samesite="strict", secure=self._secure)
        return response

    def _page(
        self, template: str, request: Request, *, api: str, title: str, status: int = 200, **values: Any
    ) -> Response:
        csrf = self._access.csrf_token() if self._access.has_session(request.cookies) else ""
        page = self._templates.get_template(template).render(api=api, title=title, csrf=csrf, version=VERSION, **values)
        return HTMLResponse(page, status_code=status, headers={"cache-control": "no-store"})

    # --- data ---

    async def runs(self, request: Request) -> Response:
        listing = await self._library.listing()
        return _json({"folder": str(self._library.folder), "runs": listing.runs, "damaged": listing.damaged})

    async def snapshot(self, request: Request, source: RunSource) -> Response:
        return _json(_changes(source, Cursor()))

    async def events(self, request: Request, source: RunSource) -> Response:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(_stream(source), media_type="text/event-stream", headers=headers)

    async def prototypes(self, request: Request, source: RunSource) -> Response:
        return _json(await source.prototypes())

    async def similarity(self, request: Request, source: RunSource) -> Response:
        return _json(await source.similarity(request.path_params["after"]))

    async def client_prototypes(self, request: Request, source: RunSource) -> Response:
        return _json({"classes": await source.client_prototypes(request.path_params["client"])})

    # --- an operator's requests ---

    async def operate(self, request: Request, source: RunSource) -> Response:
        action = request.path_params["action"]
        if action not in _ACTIONS or not isinstance(source, LiveRun):
            return _json({"error": "this run cannot be controlled"}, status=404)
        if not self._access.may_control(request.cookies, request.headers):
            message = "this browser may look, but not control the run: open the address that the command printed"
            return _json({"error": message}, status=403)
        try:
            body = json.loads(await _body(request))
            confirmed, reason = body["confirm"], str(body.get("reason", ""))
        except (ValueError, LookupError, TypeError, AttributeError):
            return _json({"error": "the request has no confirmation"}, status=400)
        if confirmed != source.model.run.get("id"):
            return _json({"error": "the confirmation is for another run; reload the page"}, status=409)
        try:
            await source.operate(action, reason[:300])
        except FedDBPError as error:
            return _json({"error": str(error)}, status=502)
        return _json({})


async def _stream(source: RunSource) -> AsyncIterator[str]:
    cursor, model = Cursor(), source.model
    while True:
        changed = model.upcoming_change()
        changes = _changes(source, cursor)
        if changes:
            yield f"data: {json.dumps(changes, separators=(',', ':'))}\n\n"
            await asyncio.sleep(1.0 if len(model.clients) > _CROWD else _INTERVAL)
        try:
            await asyncio.wait_for(changed.wait(), timeout=_HEARTBEAT)
        except TimeoutError:
            yield ": still here\n\n"


def _changes(source: RunSource, cursor: Cursor) -> Json:
    changes = source.model.changes_since(cursor)
    if "run" in changes:
        changes["baseline"] = source.baseline
    return changes


def _json(content: Json, status: int = 200) -> Response:
    return JSONResponse(content, status_code=status, headers={"cache-control": "no-store"})


async def _body(request: Request) -> bytes:
    """The request's body; refused once it is too long, before the rest of it is read."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _BODY_BYTES:
            raise HTTPException(413)
    return bytes(body)


def _form_value(body: bytes, name: str) -> str:
    from urllib.parse import parse_qs

    return parse_qs(body.decode(errors="replace")).get(name, [""])[0]


RunHandler = Callable[[Request, RunSource], Awaitable[Response]]


def build_app(
    library: Library, access: Access, *, hosts: frozenset[str] | None = None, secure: bool = False
) -> Starlette:
    """`hosts` are the values of the header Host that are answered; None for any."""
    pages = Pages(library, access, secure=secure)

    def of_run(handler: RunHandler) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            source = await library.get(request.path_params["key"])
            return _json({"error": "no such run"}, status=404) if source is None else await handler(request, source)

        return handle

    routes = [
        Route("/", pages.home),
        Route("/login", pages.login, methods=["GET", "POST"]),
        Route("/api/runs", pages.runs),
        Route("/run/{key}/", pages.run),
        Route("/run/{key}/api/run", of_run(pages.snapshot)),
        Route("/run/{key}/api/events", of_run(pages.events)),
        Route("/run/{key}/api/prototypes", of_run(pages.prototypes)),
        Route("/run/{key}/api/similarity/{after:int}", of_run(pages.similarity)),
        Route("/run/{key}/api/clients/{client:int}/prototypes", of_run(pages.client_prototypes)),
        Route("/run/{key}/api/{action}", of_run(pages.operate), methods=["POST"]),
        Mount("/static", StaticFiles(directory=Path(__file__).with_name("static"))),
    ]
    middleware = [Middleware(Gate, pages=pages, access=access, hosts=hosts), Middleware(GZipMiddleware)]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={FedDBPError: pages.damaged})


class Gate:
    """Adds the security headers to every answer, and rejects requests without access."""

    def __init__(self, app: ASGIApp, *, pages: Pages, access: Access, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._pages = pages
        self._access = access
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        answer = self._answer(Request(scope))
        await (self._app if answer is None else answer)(scope, receive, send_guarded)

    def _answer(self, request: Request) -> Response | None:
        """An answer of its own, or None to let the request pass."""
        if self._hosts is not None and request.headers.get("host", "") not in self._hosts:
            return Response("this address is not served here", status_code=421)
        key = request.query_params.get("key")
        if key is not None and request.method == "GET" and self._access.admits(key):
            return self._pages.signed_in(request.url.path)
        path = request.url.path
        if self._access.may_view(request.cookies) or path == "/login" or path.startswith("/static/"):
            return None
        return _json({"error": "a key is needed"}, status=401) if "/api/" in path else RedirectResponse("/login", 303)
