"""A visit to the console in a browser, and what the tests of its pages do and check on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from tests.integration.serving import Http
from tests.server_process import ServerProcess

PATIENCE_MS = 60_000
"""Timeout for a page on a busy machine."""

expect.set_options(timeout=PATIENCE_MS)


def operator_token(server: ServerProcess) -> str:
    return (server.data / "run" / "operator.token").read_text().strip()


def operator(server: ServerProcess) -> Http:
    """The operator's requests."""
    return Http(server.http, operator_token(server))


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
        self.page.goto(f"{self.server.http}/#token={operator_token(self.server)}")
        self.page.get_by_role("navigation").first.wait_for()
        if path:
            self.open(path)
        return self.page

    def open(self, path: str) -> Page:
        """Open a page of the console without a reload."""
        self.page.evaluate("path => { location.hash = path }", path)
        return self.page


Visiting = Callable[..., Visit]


def heading(page: Page, title: str) -> None:
    expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()


def notified(page: Page, text: str) -> None:
    expect(page.get_by_role("log", name="Notifications")).to_contain_text(text)


def confirm(page: Page, verb: str, name: str) -> None:
    """Confirm an action that destroys: its button is disabled until the name is typed."""
    dialog = page.get_by_role("dialog").last
    button = dialog.get_by_role("button", name=verb, exact=True)
    expect(button).to_be_disabled()
    dialog.get_by_label(f"Type {name} to confirm").fill(name)
    button.click()
