"""The dashboard's web application: who may look, who may control, and what every answer carries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from feddbp_common.wire import PrototypeSet
from feddbp_lab.dashboard.access import COOKIE, Access, allowed_hosts
from feddbp_lab.dashboard.library import Library
from feddbp_lab.dashboard.live import LiveRun
from feddbp_lab.dashboard.model import Json
from feddbp_lab.dashboard.source import RunSource
from feddbp_lab.dashboard.web import build_app

HOST = "127.0.0.1:8060"
ORIGIN = f"http://{HOST}"


class FakeLive(LiveRun):
    """A live run without a server, which records what it is asked to do."""

    def __init__(self) -> None:
        RunSource.__init__(self)
        self.asked: list[tuple[str, str]] = []
        self.model.start({"id": "run-1", "shares_prototypes": True})

    async def load_prototypes(self) -> dict[int, PrototypeSet]:
        return {}

    async def client_prototypes(self, client_id: int) -> list[Json]:
        return []

    async def operate(self, action: str, reason: str = "") -> None:
        self.asked.append((action, reason))


@asynccontextmanager
async def browser(run: RunSource, access: Access, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app(Library(single=run), access, hosts=allowed_hosts("127.0.0.1", 8060), **options)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=ORIGIN) as client:
        yield client


async def signed_in(client: httpx.AsyncClient, access: Access) -> dict[str, str]:
    """Opens the printed address; returns the headers with which the page sends an operator's request."""
    answer = await client.get("/run/0/", params={"key": access.key})
    assert (answer.status_code, answer.headers["location"]) == (303, "/run/0/")
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    return {"origin": ORIGIN, "x-csrf-token": access.csrf_token()}


async def test_the_page_of_a_session_has_a_token_and_that_of_a_visitor_none() -> None:
    access = Access()
    async with browser(FakeLive(), access) as client:
        visitor = await client.get("/run/0/")
        assert visitor.status_code == 200
        assert access.csrf_token() not in visitor.text
        await signed_in(client, access)
        assert access.csrf_token() in (await client.get("/run/0/")).text


async def test_every_answer_forbids_scripts_of_others_and_framing() -> None:
    async with browser(FakeLive(), Access()) as client:
        for path in ("/run/0/", "/static/run.js", "/run/0/api/run", "/nothing", "/run/7/"):
            headers = (await client.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("page", ["/run/0/", "/login"])
async def test_no_page_has_an_inline_script_or_style(page: str) -> None:
    async with browser(FakeLive(), Access()) as client:
        text = (await client.get(page)).text
        assert "<style" not in text
        assert "style=" not in text
        assert all("src=" in tag.partition(">")[0] for tag in text.split("<script")[1:])
        assert "http://" not in text
        assert "https://" not in text


async def test_a_confirmed_request_of_a_session_reaches_the_run() -> None:
    run, access = FakeLive(), Access()
    async with browser(run, access) as client:
        headers = await signed_in(client, access)
        body = {"confirm": "run-1", "reason": "enough"}
        answer = await client.post("/run/0/api/stop", json=body, headers=headers)
        assert answer.status_code == 200
        assert run.asked == [("stop", "enough")]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"headers": {"origin": ORIGIN}}, 403),
        ({"headers": {"origin": ORIGIN, "x-csrf-token": "wrong"}}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"cookie": "stolen"}, 403),
        ({"body": {}}, 400),
        ({"body": {"confirm": "another"}}, 409),
        ({"action": "explode"}, 404),
    ],
    ids=["no token", "wrong token", "another site", "no session", "not confirmed", "another run", "unknown action"],
)
async def test_a_request_that_may_be_forged_or_mistaken_is_refused(change: dict[str, Any], status: int) -> None:
    run, access = FakeLive(), Access()
    async with browser(run, access) as client:
        headers = await signed_in(client, access)
        headers = change.get("headers", headers)
        if "origin" in change:
            headers["origin"] = change["origin"]
        if "cookie" in change:
            client.cookies.set(COOKIE, change["cookie"])
            client.cookies.delete(COOKIE, domain="127.0.0.1")
        body = change.get("body", {"confirm": "run-1"})
        answer = await client.post(f"/run/0/api/{change.get('action', 'stop')}", json=body, headers=headers)
        assert answer.status_code == status
        assert "error" in answer.json()
    assert run.asked == []


async def test_another_host_name_is_not_answered() -> None:
    async with browser(FakeLive(), Access()) as client:
        answer = await client.get("/run/0/api/run", headers={"host": "rebound.example:8060"})
        assert answer.status_code == 421


async def test_beyond_loopback_nothing_is_shown_without_the_key() -> None:
    access = Access(open_to_view=False)
    async with browser(FakeLive(), access, secure=True) as client:
        assert (await client.get("/run/0/api/run")).status_code == 401
        assert (await client.get("/run/0/")).headers["location"] == "/login"
        wrong = await client.post("/login", data={"key": "guess"}, headers={"origin": ORIGIN})
        assert (wrong.status_code, "not the key" in wrong.text) == (403, True)
        right = await client.post("/login", data={"key": access.key}, headers={"origin": ORIGIN})
        assert right.status_code == 303
        assert "secure" in right.headers["set-cookie"].lower()


@pytest.mark.parametrize("path", ["/login", "/run/0/api/stop"])
async def test_a_body_that_is_too_long_is_refused_before_it_is_read_to_its_end(path: str) -> None:
    access, sent = Access(open_to_view=False), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1000
            yield b"x" * 1000

    async with browser(FakeLive(), access) as client:
        headers = await signed_in(client, access)
        answer = await client.post(path, content=endless(), headers=headers)
    assert answer.status_code == 413
    assert sent < 10_000


async def test_the_run_is_json_that_names_nothing_unprintable() -> None:
    run = FakeLive()
    run.model.join({"id": 3, "name": "a\x1b[2Jb\u202e", "label_counts": [1, 2]})
    async with browser(run, Access()) as client:
        answer = (await client.get("/run/0/api/run")).json()
    assert answer["clients"] == [{"id": 3, "name": "a\\x1b[2Jb\\u202e", "label_counts": [1, 2]}]
    assert answer["run"]["id"] == "run-1"
