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
"""Where a browser that Playwright can drive may be, most likely first."""
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""The tests may run as root, and the browser must not contact other hosts."""
PATIENCE_MS = 60_000
"""How long a page may take on a busy machine."""


def find_chrome() -> str | None:
    """`PENSTOCK_CHROMIUM`, or the first Chrome or Chromium of this machine."""
    return os.environ.get("PENSTOCK_CHROMIUM") or next(filter(None, map(shutil.which, CHROMES)), None)


def require(thing: object, problem: str) -> None:
    """Leave a browser test out where its machine lacks something, and fail instead where CI runs it."""
    if not thing:
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)


# Playwright runs a loop in this thread as long as it is open, and many tests elsewhere run one of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chrome = find_chrome()
    require(BUILT.exists(), "the console is not built: run `make setup` with Node 20 or newer")
    require(chrome, "no Chrome or Chromium found: install one, or set PENSTOCK_CHROMIUM to its path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chrome, args=list(QUIET))
        yield browser
        browser.close()


class Visit:
    """A user of the console: a page, and the errors on it."""

    def __init__(self, page: Page, server: ServerProcess) -> None:
        self.page = page
        self.server = server
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._said)
        page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        # A browser complains of every request that fails; those are shown on the page and are no mistake of it.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.server.http, "data:", "blob:")):
            self.foreign.append(request.url)

    def sign_in(self, path: str = "") -> Page:
        """Open the link that `penstock up` prints, then the page that is wanted."""
        token = (self.server.data / "run" / "operator.token").read_text().strip()
        self.page.goto(f"{self.server.http}/#token={token}")
        self.page.get_by_role("navigation").first.wait_for()
        if path:
            self.open(path)
        return self.page

    def open(self, path: str) -> Page:
        """Go to a page of the console, without loading it anew."""
        self.page.evaluate("path => { location.hash = path }", path)
        return self.page


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Visit]]:
    """Makes visitors; at the end none of their pages has an error or a request to another host."""
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
    assert [each.complaints for each in visits if each.complaints] == []
    assert [each.foreign for each in visits if each.foreign] == []
