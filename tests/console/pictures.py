"""The pictures of the README: pages of the console while the demo runs.

Run `.venv/bin/python -m tests.console.pictures` in the root of a clone, after `make setup`. It starts `penstock up --demo` on free
ports in a temporary directory, waits until the plots are filled, and writes `docs/images`.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

import msgspec
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.console.conftest import QUIET, find_chrome
from tests.console.visiting import PATIENCE_MS
from tests.paths import ROOT
from tests.server_process import ServerProcess

IMAGES = ROOT / "docs" / "images"
PICTURES = {"console": ("#/", 800), "sensors": ("#/spaces", 620)}
"""The page and the height of each picture."""
WIDTH = 1280
COLOURS = 128
"""Enough for the console, and a third of the bytes."""
FILLED_S = 150.0
"""By then the plots of two minutes are full."""
SPARK_S = 300.0
POLL_S = 1.0
"""How long Spark may take to start on a busy machine."""
SETTLE_MS = 3_000
"""A page draws its plots again when it comes to the front."""


def opened(page: Page, server: ServerProcess, path: str) -> Page:
    """Sign in with the link that `penstock up` prints, and open a page of the console."""
    page.set_default_timeout(PATIENCE_MS)
    token = (server.data / "run" / "operator.token").read_text().strip()
    page.goto(f"{server.http}/#token={token}")
    page.get_by_role("navigation").first.wait_for()
    page.evaluate("path => { location.hash = path }", path)
    return page


def wait_for_spark(server: ServerProcess) -> None:
    """Wait until the pipeline runs, so that the pictures show what it computes."""
    deadline = time.monotonic() + SPARK_S
    while msgspec.json.decode(urlopen(f"{server.http}/health").read())["pipeline"] != "running":
        if time.monotonic() >= deadline:
            sys.exit("error: Spark did not start\nhint: `penstock doctor` checks the machine")
        time.sleep(POLL_S)


def take(server: ServerProcess, chrome: str, filled_s: float, images: Path = IMAGES) -> None:
    """Open the pages, wait until they are filled, and write a small picture of each."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chrome, args=list(QUIET))
        pages = {
            name: opened(browser.new_page(viewport={"width": WIDTH, "height": height}), server, path)
            for name, (path, height) in PICTURES.items()
        }
        time.sleep(filled_s)
        for name, page in pages.items():
            page.bring_to_front()
            page.wait_for_timeout(SETTLE_MS)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture.quantize(COLOURS, dither=Image.Dither.NONE).save(images / f"{name}.png", optimize=True)
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
            wait_for_spark(server)
            take(server, chrome, filled_s)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
