"""A cluster of real processes: three NATS servers and nodes of `penstock up --join`, each with a data directory of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.cluster.assignment import assign
from penstock.core.placement import SHARDS
from penstock.journal.replicated.cluster_keys import create
from tests.cluster_node import until
from tests.integration.serving import Answer, Http
from tests.journal.replicated.conftest import connected
from tests.nats_servers import NatsServers, start_child
from tests.server_process import environment

WAIT_S = 120.0
"""How long anything may take that a cluster does by itself, on a busy machine."""
LOOK_S = 0.05
CLUSTER = "test"
BYTES_MAX = 14 * 1024 * 1024
"""Of a stream: all of them fit into the stores of the servers."""


def eventually(what: str, is_true: Callable[[], Any], within_s: float = WAIT_S) -> Any:
    """The first result that is true."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            if found := is_true():
                return found
        except (OSError, HTTPException):  # a node that is gone, or not there yet
            pass
        assert time.monotonic() < until_s, f"{what} does not happen"
        time.sleep(LOOK_S)


AGAIN = {"Unreachable", "JournalUnavailable", "Draining"}
"""How a shard without a lease refuses a request, which may then be repeated: a machine that is too busy for a lease costs one."""


def answered(ask: Callable[[], Answer]) -> Answer:
    """The answer of a request that may be repeated."""
    answers: list[Answer] = []

    def is_served() -> bool:
        answers.append(ask())
        return answers[-1].status == 200 or answers[-1].code not in AGAIN

    eventually("an answer", is_served)
    return answers[-1]


class Node:
    """One node."""

    def __init__(self, name: str, folder: Path, servers: NatsServers, *words: str) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(exist_ok=True)
        self.data = self.folder / "data"
        (self.folder / "system").write_text("sys:sys\n")
        self._words = ["--join", ",".join(servers.urls), "--cluster", CLUSTER, "--node", name, "--data", str(self.data)]
        self._words += ["--http", "127.0.0.1:0", "--control", "127.0.0.1:0", "--no-relay", "--no-pipeline"]
        self._words += ["--nats-system-creds", str(self.folder / "system"), *words]
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        self._endpoints.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-m", "penstock.cli", "up", *self._words]
            self.process = start_child(command, cwd=self.folder, env=environment(), stdout=log, stderr=log)

    @property
    def _endpoints(self) -> Path:
        return self.data / "run" / "endpoints.json"

    def wait(self) -> None:
        """Until its doors are open."""

        def is_up() -> bool:
            assert self.process.poll() is None, f"node {self.name} ended:\n{self.log()}"
            return self._endpoints.exists()

        eventually(f"start of node {self.name}", is_up)

    def _url(self, door: str) -> str:
        return str(msgspec.json.decode(self._endpoints.read_bytes())[door])

    @property
    def http(self) -> Http:
        return Http(self._url("http"))

    @property
    def control(self) -> str:
        return self._url("control")

    @property
    def operator(self) -> Http:
        return Http(self._url("http"), (self.data / "run" / "operator.token").read_text().strip())

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def revive(self) -> None:
        """Have it run again, whether it has ended or was stopped."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
        else:
            self.start()
        self.wait()


class ClusterProcesses(AbstractContextManager["ClusterProcesses"]):
    """Servers and nodes."""

    def __init__(self, folder: Path, names: str = "abc") -> None:
        self.folder = folder
        self._stack = ExitStack()
        self.nodes: dict[str, Node] = {}
        (folder / "nats").mkdir()
        self.servers = NatsServers(folder / "nats")
        self._stack.callback(self.servers.close)
        try:
            asyncio.run(asyncio.wait_for(self._create(), WAIT_S))
            for name in names:
                self.add(name)
            for node in self.nodes.values():
                node.wait()
        except BaseException:
            self._stack.close()
            raise

    async def _create(self) -> None:
        async with connected(self.servers) as client:
            await until(lambda: create(client, CLUSTER, bytes_max=BYTES_MAX))

    def add(self, name: str) -> Node:
        node = self.nodes[name] = Node(name, self.folder, self.servers)
        self._stack.callback(node.kill)
        return node

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def disturbed(self) -> Iterator[None]:
        """A test that ends nodes and servers: all run again for the next one, also after a failure."""
        try:
            yield
        finally:
            self.servers.revive()
            for node in self.nodes.values():
                node.revive()

    def status(self, node: str) -> dict[str, Any]:
        """What a node says of the cluster."""
        answer = self.nodes[node].operator.get("/v1/cluster")
        if answer.status != 200:
            raise OSError(f"node {node} answers {answer}")
        return dict(answer.json)

    def owner(self, node: str, shard: int) -> str | None:
        """Who owns a shard, as this node says."""
        row = self.status(node)["shards"][shard]
        return row["owner"] if row["state"] == "owning" else None

    def calm(self, *nodes: str) -> dict[int, str]:
        """The owners, when every shard has one and these nodes agree."""

        def owners() -> list[dict[int, str]] | None:
            maps = [
                {row["shard"]: row["owner"] for row in self.status(node)["shards"] if row["state"] == "owning"}
                for node in nodes
            ]
            return maps if len(maps[0]) == SHARDS and all(one == maps[0] for one in maps) else None

        return dict(eventually("one map of owners", owners)[0])

    def balanced(self, *nodes: str) -> dict[int, str]:
        """The owners, when each shard is where it belongs: after a start, shards may move for a while."""
        wanted = dict(enumerate(assign(nodes, SHARDS)))
        eventually("a balance", lambda: self.calm(*nodes) == wanted)
        return wanted
