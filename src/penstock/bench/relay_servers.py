"""The servers of a relay run: the process that `penstock up` starts for its relay, and libzmq's own proxy in C.

The relay is given its task as by a server, and what it tells goes to a file, where its counts are read back.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from penstock.bench.processes import STOP_S, BenchError, Server, Stage
from penstock.bench.relay_messages import SIGNERS
from penstock.core.relay.limits import RelayLimits
from penstock.server.relay.process import Task
from penstock.server.relay.reports import Figures, Ready, Told, Unable, decode


def place(folder: Path, transport: str, name: str) -> str:
    """An endpoint in a folder, or on a free port."""
    return f"ipc://{folder / name}" if transport == "ipc" else "tcp://127.0.0.1:*"


class RelayServer(Server):
    """The relay's process."""

    def __init__(self, folder: Path, transport: str, profile: Path | None) -> None:
        entry = ["-m", "penstock.server.relay.process"]
        if profile is not None:
            entry = ["-m", "penstock.bench.roles", "relay", str(profile)]
        super().__init__(folder, [sys.executable, *entry], is_told=True)
        task = Task(
            pub=place(folder, transport, "pub"),
            pull=place(folder, transport, "pull"),
            also_pub=None,
            limits=RelayLimits(),
            signers=SIGNERS,
            curve=None,
            journal="metadata",
            check_links=False,
            remembered=[],
        )
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(task) + b"\n")
        self.process.stdin.flush()
        self.pub = self.pull = ""

    def told(self) -> list[Told]:
        """What it has told so far."""
        data = (self.folder / "log").read_bytes()
        found: list[Told] = []
        at = 0
        while at + 4 <= len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            found += decode(data[at + 4 : end])
            at = end
        return found

    def is_ready(self) -> bool:
        for told in self.told():
            if isinstance(told, Unable):
                raise BenchError(told.reason)
            if isinstance(told, Ready):
                self.pub, self.pull = told.pub, told.pull
                return True
        return False

    def check_registered(self, count: int) -> None:
        """So many topics were registered since it began, and none was refused."""
        deadline = time.monotonic() + STOP_S
        while True:
            figures = [told for told in self.told() if isinstance(told, Figures)]
            totals = figures[-1].totals
            if totals.registered == count and not figures[-1].refused:
                return
            if time.monotonic() > deadline:
                said = (
                    f"{totals.registered} of {count} registrations were taken; refused: {figures[-1].refused}"
                )
                raise BenchError(said)
            time.sleep(0.05)


class Proxy(Server):
    """libzmq's proxy between the same kinds of sockets: what a relay without memory or rules could do at best."""

    def __init__(self, folder: Path, transport: str) -> None:
        ends = [place(folder, transport, "pub"), place(folder, transport, "pull")]
        super().__init__(folder, [sys.executable, "-m", "penstock.bench.roles", "proxy", *ends])
        self.pub = self.pull = ""

    def is_ready(self) -> bool:
        line = (self.folder / "log").read_bytes().partition(b"\n")
        if not line[1]:
            return False
        try:
            self.pub, self.pull = json.loads(line[0])
        except ValueError:
            raise BenchError(f"the proxy did not start: {line[0][:200]!r}") from None
        return True


class RelayStage(Stage):
    """A stage with relays and proxies on it."""

    def relay(self, transport: str, profile: Path | None = None) -> RelayServer:
        server = RelayServer(self.folder / f"server-{len(self._servers)}", transport, profile)
        self._servers.append(server)
        server.wait()
        return server

    def proxy(self, transport: str) -> Proxy:
        server = Proxy(self.folder / f"server-{len(self._servers)}", transport)
        self._servers.append(server)
        server.wait()
        return server


def run_proxy(pub: str, pull: str) -> int:
    """Forward until the process is ended."""
    import zmq

    from penstock.bench.relay_loads import HWM

    context: zmq.Context[Any] = zmq.Context()
    front, back = context.socket(zmq.PULL), context.socket(zmq.XPUB)
    front.rcvhwm = back.sndhwm = HWM
    front.bind(pull)
    back.bind(pub)
    print(
        json.dumps([socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0") for socket in (back, front)]),
        flush=True,
    )
    zmq.proxy(front, back)
    return 0
