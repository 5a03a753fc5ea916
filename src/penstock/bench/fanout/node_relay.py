"""The peer of the fan-out: the small Node relay of `benches/ws_relay`.

Its one dependency is installed on demand, by its lock file, into the user's cache. Without Node, or when the install
fails, the bench runs without a peer and notes why.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock.bench.harness.processes import SOURCE, ServerProcess
from penstock.bench.harness.result import BenchError

RELAY_FILES = ("package.json", "package-lock.json", "relay.js")
INSTALL_S = 120.0


class NodeRelay(ServerProcess):
    """The Node relay; `is_corked` makes it write once a turn to a connection."""

    def __init__(self, folder: Path, home: Path, *, is_corked: bool) -> None:
        super().__init__(folder, ["node", str(home / "relay.js"), *(["--cork"] if is_corked else [])])

    def is_ready(self) -> bool:
        line = self.log.read_bytes().partition(b"\n")
        if not line[1]:
            return False
        try:
            self.port = self.http_port = int(json.loads(line[0])["port"])
        except (ValueError, KeyError):
            raise BenchError(f"the relay did not start: {line[0][:200]!r}") from None
        return True


def install_relay() -> Path | str:
    """The folder with the relay and its library, or why there is none."""
    source = SOURCE.parent / "benches" / "ws_relay"
    if not source.is_dir():
        return "the relay is in the source repository only"
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    digest = hashlib.sha256(b"".join((source / file).read_bytes() for file in RELAY_FILES)).hexdigest()[:16]
    home = _cache() / f"ws_relay-{digest}"
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as folder:
        for file in RELAY_FILES:
            shutil.copy(source / file, folder)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S)  # noqa: PLW1510 - checked below
        except subprocess.TimeoutExpired:
            return f"`npm ci` took longer than {INSTALL_S:.0f} s"
        if done.returncode:
            return f"`npm ci` failed: {done.stderr.strip()[-200:]}"
        Path(folder).rename(home)
        Path(folder).mkdir()  # the temporary folder removes this one
    return home


def _cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "penstock"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
