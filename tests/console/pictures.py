"""The pictures of the README: pages of the console, while the demo runs.

Run it with `.venv/bin/python -m tests.console.pictures` in the root of a clone after `make setup`. It starts `penstock up --demo` on
free ports, in a directory of its own, waits until the plots have something to show, and writes `docs/images`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.console.conftest import PATIENCE_MS, QUIET, find_chrome
from tests.paths import ROOT
from tests.server_process import ServerProcess

IMAGES = ROOT / "docs" / "images"
FILLED_S = 150.0
"""After this time Spark has computed means, and the plots of two minutes are full."""


def sign_in(page: Page, server: ServerProcess) -> None:
    token = (server.data / "run" / "operator.token").read_text().strip()
    page.goto(f"{server.http}/#token={token}")
    page.get_by_role("navigation").first.wait_for()


def take(server: ServerProcess, chrome: str, filled_s: float) -> None:
    """Open the pages, wait until they are filled, and write a picture of each."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chrome, args=list(QUIET))
        pages = {}
        for name, path, height in (("console", "#/", 700), ("sensors", "#/spaces", 620)):
            pages[name] = browser.new_page(viewport={"width": 1280, "height": height})
            pages[name].set_default_timeout(PATIENCE_MS)
            sign_in(pages[name], server)
            pages[name].evaluate("path => { location.hash = path }", path)
        time.sleep(filled_s)
        for name, page in pages.items():
            page.bring_to_front()
            page.wait_for_timeout(2_000)
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--seconds", type=float, default=FILLED_S, help="how long the demo runs before the pictures")
    filled_s = options.parse_args().seconds
    chrome = find_chrome()
    if chrome is None:
        sys.exit("error: no Chrome or Chromium found\nhint: install one, or set PENSTOCK_CHROMIUM to its path")
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder), "--demo", "--pipeline", "--relay")
        try:
            take(server, chrome, filled_s)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
