"""A real Chromium, driven by Playwright, for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from playwright.async_api import BrowserContext, Page, async_playwright

from feddbp_lab.dashboard.access import COOKIE

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Watched:
    """A page, and what went wrong on it."""

    page: Page
    context: BrowserContext
    problems: list[str] = field(default_factory=list)

    async def shows(self, selector: str, text: str) -> None:
        """Waits until an element contains a text."""
        await self.page.locator(selector).filter(has_text=text).first.wait_for(timeout=60_000)

    async def has_session(self) -> bool:
        return any(cookie.get("name") == COOKIE for cookie in await self.context.cookies())


@asynccontextmanager
async def browser_page(url: str, *, width: int = 1440, dark: bool = False) -> AsyncIterator[Watched]:
    """Opens a page; skips the test where no Chromium is installed."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("no Chromium is installed; `apt-get install chromium` brings one")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            context = await browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
            )
            watched = Watched(await context.new_page(), context)
            watched.page.on("pageerror", lambda error: watched.problems.append(str(error)))
            watched.page.on(
                "console", lambda line: watched.problems.append(line.text) if line.type == "error" else None
            )
            await watched.page.goto(url)
            await watched.page.locator("body[data-ready=yes]").wait_for(timeout=60_000)
            yield watched
        finally:
            await browser.close()
