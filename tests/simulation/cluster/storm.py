"""`Cluster(seed, nodes, shards)`: nodes, servers and clients in one simulated time, and a storm of faults over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from penstock.core.cluster import messages
from penstock.core.cluster.assignment import assign
from penstock.core.records import Entry
from penstock.journal.replicated.shard_log import StoredLive
from penstock.testing.clock import Clock
from tests.simulation.cluster.checks import CALM, LEASE, PURGE, LogModel
from tests.simulation.cluster.node import SimNode
from tests.simulation.cluster.servers import SERVERS, SimServers, SimStream
from tests.simulation.queue.checks import Broken

STORM_US = 45_000_000
CALM_US = 60_000_000
"""An election, a silence, a planned move of each shard, and some."""
MESSAGE_BYTES = 2_000
"""A commit takes two messages or more."""
SENDS_US = (20_000, 400_000)
FAULTS_US = (500_000, 6_000_000)


class Cluster:
    """A cluster, its servers, its clients, and what they have been promised."""

    def __init__(self, seed: int, nodes: int = 3, shards: int = 2) -> None:
        self.seed = seed
        self.shards = shards
        self.dice = Random(seed)
        self.clock = Clock()
        self.loss = self.dice.choice((0.0, 0.01, 0.05))
        """The chance that a request or an answer is lost."""
        self.lateness = self.dice.choice((0.0, 0.01, 0.03))
        """The chance that one is late by seconds."""
        self.bytes_max = self.dice.choice((1 << 40, 400_000))
        self.trace: list[tuple[Any, ...]] = []
        self.on_trace: Callable[[tuple[Any, ...]], None] = lambda entry: None
        self.servers = SimServers(self.clock, self.dice)
        self.streams = [SimStream(self.servers, f"shard-{shard}-g1", self.bytes_max) for shard in range(shards)]
        self.servers.streams = self.streams
        self.models = [LogModel(stream.name) for stream in self.streams]
        self.files: list[dict[str, tuple[StoredLive, bytes]]] = [{} for _ in range(shards)]
        for stream, model, files in zip(self.streams, self.models, self.files, strict=True):
            stream.on_commit = self._committed(model)
            stream.on_purge = self._purging(stream, files)
        self.has_lost = False
        """Whether the servers lost what they had acknowledged."""
        self.halted: set[int] = set()
        self.is_calm = False
        self.has_clients = True
        self._ids = self._requests = 0
        self.nodes = [SimNode(self, name) for name in ("a", "b", "c", "d", "e")[:nodes]]

    def note(self, *what: Any) -> None:
        entry = (self.clock.us, *what)
        self.trace.append(entry)
        self.on_trace(entry)

    def _committed(self, model: LogModel) -> Callable[[int, messages.LogMessage], None]:
        def committed(seq: int, message: messages.LogMessage) -> None:
            self.note("commit", model.stream, seq, message.header)
            model.committed(seq, message)

        return committed

    @staticmethod
    def _purging(stream: SimStream, files: dict[str, tuple[StoredLive, bytes]]) -> Callable[[int], None]:
        def purging(through: int) -> None:
            stored = max((file.end.seq for file, _ in files.values()), default=0)
            if through > stored:
                raise Broken(PURGE, f"{stream.name} is purged up to {through}, and its live file is of {stored}")

        return purging

    def refresh(self, node: SimNode) -> None:
        """A node writes its key; the others see it a little later."""
        if self.streams[0].leader(node.home) is None:
            return
        for other in self.nodes:
            if other.can_hear() and self.servers.is_up[other.home]:
                self.clock.after(other.delay(), other.guard(self._seen(other, node.name)))

    @staticmethod
    def _seen(other: SimNode, name: str) -> Callable[[], None]:
        return lambda: other.live.refreshed(other.now().us, name)

    # Time

    def run(self) -> None:
        """The storm, then the calm; every step is checked."""
        with small_messages():
            for node in self.nodes:
                self.clock.after(self.dice.randint(0, 2_000_000), node.start)
            self._later(SENDS_US, self._send)
            self._later(FAULTS_US, self._fault)
            self._later((3_000_000, 9_000_000), self._seal)
            self._until(STORM_US)
            self._heal()
            self._until(STORM_US + CALM_US)
            self._check_calm()

    def _until(self, us: int) -> None:
        while (next_us := self.clock.next_us()) is not None and next_us <= us:
            self.clock.step()
            self._check_leases()

    def _later(self, span: tuple[int, int], call: Callable[[], None]) -> None:
        self.clock.after(self.dice.randint(*span), call)

    # Clients

    def _send(self) -> None:
        self._later(SENDS_US, self._send)
        cells = [cell for node in self.nodes if node.is_up and not node.is_paused for cell in node.cells if cell.serves]
        if not cells or not self.has_clients:
            return
        cell = self.dice.choice(cells)
        live = sorted(cell.live or ())
        entries: list[Entry] = []
        self._requests += 1
        request = str(self._requests)
        for _ in range(self.dice.choice((1, 1, 2, 5))):
            if live and self.dice.random() < 0.45:
                name = live.pop(self.dice.randrange(len(live)))
                entries.append(Entry("courier", "ack", "q", id=name, corr=request, fresh=False))
            else:
                self._ids += 1
                body = b"x" * self.dice.choice((10, 10, 3_000))
                entries.append(Entry("courier", "enqueue", "q", id=f"e{self._ids}", corr=request, body=body))
        cell.send(entries)

    def _seal(self) -> None:
        self._later((3_000_000, 9_000_000), self._seal)
        for node in self.nodes:
            for cell in node.cells if node.is_up and not node.is_paused else ():
                if cell.ownership.state == "owning" and cell.live is not None and self.dice.random() < 0.5:
                    node.deliver(cell.seal)

    # Faults

    def _fault(self) -> None:
        if self.is_calm:
            return
        self._later(FAULTS_US, self._fault)
        node = self.dice.choice(self.nodes)
        stream = self.dice.choice(self.streams)
        fault = self.dice.choice(
            (
                "crash",
                "crash",
                "pause",
                "pause",
                "deaf",
                "mute",
                "cut",
                "step down",
                "kill server",
                "split",
                "power cut",
            )
        )
        self.note("fault", fault, node.name)
        match fault:
            case "crash":
                node.crash()
                self._later((500_000, 15_000_000), node.start)
            case "pause":
                node.pause()
                self._later((500_000, 20_000_000), node.resume)
            case "deaf" | "mute" | "cut":
                node.is_deaf = fault != "mute"
                node.is_mute = fault != "deaf"
                self._later((1_000_000, 15_000_000), lambda: self._reconnect(node))
            case "step down":
                stream.step_down()
            case "kill server":
                up = list(self.servers.is_up)
                up[self.dice.randrange(SERVERS)] = False
                self.servers.change(up, self.servers.apart)
                self._later((2_000_000, 12_000_000), self._restore_servers)
            case "split":
                self.servers.change(self.servers.is_up, {self.dice.randrange(SERVERS)})
                self._later((2_000_000, 15_000_000), self._restore_servers)
            case "power cut":
                for other in self.nodes:
                    other.crash()
                    self._later((2_000_000, 5_000_000), other.start)
                self.servers.change([False] * SERVERS, set())
                self._later((1_000_000, 3_000_000), self._restore_servers)
            case _:
                raise ValueError(fault)

    def _restore_servers(self) -> None:
        self.servers.change([True] * SERVERS, set())

    @staticmethod
    def _reconnect(node: SimNode) -> None:
        node.is_deaf = node.is_mute = False

    def _heal(self) -> None:
        self.note("calm")
        self.is_calm = True
        self.loss = self.lateness = 0.0
        self._restore_servers()
        for node in self.nodes:
            node.is_deaf = node.is_mute = False
            node.resume()
            node.start()

    # Checks

    def _check_leases(self) -> None:
        for shard in range(self.shards):
            serving = [
                node.name
                for node in self.nodes
                if node.is_up and not node.is_paused and node.cells and node.cells[shard].serves
            ]
            if len(serving) > 1:
                raise Broken(LEASE, f"shard {shard} is served by {' and '.join(serving)}")

    def _check_calm(self) -> None:
        wanted = assign([node.name for node in self.nodes], self.shards)
        for shard in range(self.shards):
            if shard in self.halted:
                continue
            owners = {
                node.name: (cell.ownership.state, cell.ownership.reader.end.owner)
                for node in self.nodes
                for cell in node.cells[shard : shard + 1]
            }
            serving = [node.name for node in self.nodes if node.cells[shard].serves]
            seen = {owner for _, owner in owners.values()}
            if serving != [wanted[shard]] or seen != {wanted[shard]}:
                raise Broken(CALM, f"shard {shard} belongs to {wanted[shard]}, and is served by {serving}: {owners}")


@contextmanager
def small_messages() -> Iterator[None]:
    """Messages so small that most commits need several."""
    before, messages.MESSAGE_MAX = messages.MESSAGE_MAX, MESSAGE_BYTES
    try:
        yield
    finally:
        messages.MESSAGE_MAX = before
