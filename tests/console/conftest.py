"""One browser for all of these tests, a context for each test, and servers with some data.

The browser is the system's Chrome or Chromium: Playwright's own would have to be downloaded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

import penstock
from tests.console.visiting import PATIENCE_MS, Visit, operator
from tests.integration.serving import Http
from tests.paths import ROOT
from tests.server_process import ServerProcess

BUILT = Path(penstock.__file__).parent / "console" / "index.html"
CHROMES = (
    "chromium-headless-shell",
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


@pytest.fixture
def http(server: ServerProcess) -> Http:
    """The operator's requests to the server of the module."""
    return operator(server)


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
