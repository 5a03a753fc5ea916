"""One browser for all of these tests, a context for each test, and servers with some data.

The browser is the system's Chromium: Playwright's own would have to be downloaded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

import penstock
from tests.paths import ROOT
from tests.server_process import ServerProcess

BUILT = Path(penstock.__file__).parent / "console" / "index.html"
CHROMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
"""Names and paths of browsers that Playwright can drive, most likely first."""
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Flags: the tests may run as root, and the browser must not contact other hosts."""
PATIENCE_MS = 60_000
"""Timeout for a page on a busy machine."""


def find_chrome() -> str | None:
    """`PENSTOCK_CHROMIUM`, or the first Chrome or Chromium of this machine."""
    return os.environ.get("PENSTOCK_CHROMIUM") or next(filter(None, map(shutil.which, CHROMES)), None)


def require(thing: object, problem: str) -> None:
    """Skip a test of the console if something is missing; fail if `CI=true`."""
    if not thing:
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)


@pytest.fixture(scope="session")
def built_console() -> None:
    require(BUILT.exists(), "the console is not built: run `make setup` with Node 20 or newer")


@pytest.fixture(scope="session")
def console_tools() -> None:
    is_there = shutil.which("npm") and (ROOT / "console" / "node_modules" / "tsx").exists()
    require(is_there, "the console's tools are not installed: run `make setup` with Node 20 or newer")


# Module scope: Playwright runs an event loop in this thread while open, and other test modules run their own.
@pytest.fixture(scope="module")
def browser(built_console: None) -> Iterator[Browser]:
    chrome = find_chrome()
    require(chrome, "no Chrome or Chromium found: install one, or set PENSTOCK_CHROMIUM to its path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chrome, args=list(QUIET))
        yield browser
        browser.close()


class Visit:
    """A visit to the console: a page, its errors, and its requests to other origins."""

    def __init__(self, page: Page, server: ServerProcess) -> None:
        self.page = page
        self.server = server
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._logged)
        page.on("request", self._requested)

    def _logged(self, message: Any) -> None:
        # The browser logs every failed request as an error; the page shows those itself.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.server.http, "data:", "blob:")):
            self.foreign.append(request.url)

    def sign_in(self, path: str = "") -> Page:
        """Open the link that `penstock up` prints, then the page at `path`."""
        token = (self.server.data / "run" / "operator.token").read_text().strip()
        self.page.goto(f"{self.server.http}/#token={token}")
        self.page.get_by_role("navigation").first.wait_for()
        if path:
            self.open(path)
        return self.page

    def open(self, path: str) -> Page:
        """Open a page of the console without a reload."""
        self.page.evaluate("path => { location.hash = path }", path)
        return self.page


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Visit]]:
    """Makes visits; at the end asserts that no page had errors or requests to other origins."""
    contexts: list[BrowserContext] = []
    visits: list[Visit] = []

    def make(server: ServerProcess, **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        visits.append(Visit(context.new_page(), server))
        return visits[-1]

    yield make
    for context in contexts:
        context.close()
    assert [each.errors for each in visits if each.errors] == []
    assert [each.foreign for each in visits if each.foreign] == []
