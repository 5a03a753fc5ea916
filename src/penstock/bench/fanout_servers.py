"""The servers of a fan-out: `penstock up` with one space on its default journal, and the small Node relay of `benches/ws_relay`.

The relay's one dependency is installed on demand, by its lock file, into a folder of the user's cache; where there is no Node, or no
way to install it, the bench goes on without a peer and says why.
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

import penstock
from penstock.bench.fanout_crowd import name, token
from penstock.bench.processes import BenchError, Server, Stage

SPACE = "bench"
RELAY_FILES = ("package.json", "package-lock.json", "relay.js")
INSTALL_S = 120.0


def config(participants: int) -> str:
    """A config with one space that knows so many participants, all of whom may do anything."""
    members = {
        name(number): {"tokens": [token(number)], "capabilities": [{"kind": "*"}]}
        for number in range(participants)
    }
    # JSON is YAML, and quicker to read.
    return json.dumps({"spaces": [{"space": {"id": SPACE, "name": SPACE}, "participants": members}]})


class Relay(Server):
    """The Node relay; `is_corked` makes it write once a turn to a connection."""

    def __init__(self, folder: Path, home: Path, *, is_corked: bool) -> None:
        words = ["--cork"] if is_corked else []
        super().__init__(folder, ["node", str(home / "relay.js"), *words])
        self.port = self.http_port = 0

    def is_ready(self) -> bool:
        line = (self.folder / "log").read_bytes().partition(b"\n")
        if not line[1]:
            return False
        try:
            self.port = self.http_port = int(json.loads(line[0])["port"])
        except (ValueError, KeyError):
            raise BenchError(f"the relay did not start: {line[0][:200]!r}") from None
        return True


class FanStage(Stage):
    """A stage whose servers write to disk, with relays on it too."""

    def __init__(self) -> None:
        super().__init__(durable=True)

    def relay(self, home: Path, *, is_corked: bool) -> Relay:
        server = Relay(self.folder / f"server-{len(self._servers)}", home, is_corked=is_corked)
        self._servers.append(server)
        server.wait()
        return server


def install_relay() -> Path | str:
    """The folder with the relay and its library, or why there is none."""
    source = Path(penstock.__file__).parents[2] / "benches" / "ws_relay"
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
        words = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            done = subprocess.run(
                words, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"`npm ci` took longer than {INSTALL_S:.0f} s"
        if done.returncode:
            return f"`npm ci` failed: {done.stderr.strip()[-200:]}"
        Path(folder).rename(home)
        Path(folder).mkdir()  # What the temporary folder will remove.
    return home


def _cache() -> Path:
    """Where programs of this user keep what can be had again."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "penstock"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
