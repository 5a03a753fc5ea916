"""`Cluster(seed, nodes, shards)`: nodes, servers and clients in one simulated time, and a storm of faults over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from penstock.core.cluster import messages
from penstock.core.cluster.assignment import assign
from penstock.journal.replicated.cluster_keys import Decisions
from penstock.testing.clock import Clock
from tests.simulation.cluster.buckets import SimBuckets
from tests.simulation.cluster.cell import SimCell
from tests.simulation.cluster.checks import CALM, HALT, LEASE, OWNED, PURGE, TRUE, LogModel
from tests.simulation.cluster.node import SimNode
from tests.simulation.cluster.queues import QueueCell, QueueClient, draw_policy
from tests.simulation.cluster.servers import SimServers, SimStream
from tests.simulation.cluster.ways import LiveFileStore
from tests.simulation.cluster.weather import RESTART_US, Weather
from tests.simulation.queue.checks import Broken

STORM_US = 45_000_000
CALM_MAX_US = 60_000_000
"""An election, a silence, a planned move of each shard, and some."""
STEADY_US = 3_000_000
"""How long it must stay as it should be."""
OWNERLESS_MAX_US = 25_000_000
"""The longest time without an owner when all is in order: a leader that is not sure, an election, a silence, and a retry or two."""
REWIND_US = 10_000_000
HALT_US = 60_000_000
"""Until a stream that ends too early counts as damaged, at every node that may take the shard."""
IDLE_US = 8_000_000
LOST_MAX = 20
"""Messages with rows that the servers lose, of those that every node has read."""
UNREAD_US = 3_000_000
"""What was committed within this time may be new to a node."""
MESSAGE_BYTES = 2_000
"""A commit takes two messages or more."""
SENDS_US = (20_000, 400_000)
SEALS_US = (3_000_000, 9_000_000)
NAMES = ("a", "b", "c", "d", "e")


class Cluster:
    """A cluster, its servers, its clients, and what they have been promised."""

    def __init__(self, seed: int, nodes: int = 3, shards: int = 2, *, has_queues: bool = False) -> None:
        """With queues, cells are the shipped ones and clients settle what they were given; else there is nothing but rows."""
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
        self.buckets = SimBuckets(self.servers, self.clock)
        self.models = [LogModel(f"shard-{shard}-g1") for shard in range(shards)]
        self.generations: list[dict[int, tuple[SimStream, LiveFileStore]]] = [{} for _ in range(shards)]
        """The streams and the live files of each shard."""
        for shard in range(shards):
            self.add_generation(shard, 1)
        self.has_lost = False
        """Whether the servers lost what they had acknowledged."""
        self.halted: set[int] = set()
        self.is_calm = False
        self.has_clients = self.has_seals = True
        self._ids = self._requests = 0
        self.serving: list[set[SimCell]] = [set() for _ in range(shards)]
        """The cells that own each shard, as far as they know."""
        self.has_queues = has_queues
        self.policy = draw_policy(Random(f"{seed}/policy"))
        self.make_cell: Callable[[SimNode, int], SimCell] = QueueCell if has_queues else SimCell
        self.nodes = [SimNode(self, name) for name in NAMES[:nodes]]
        self.weather = Weather(self)

    def note(self, *what: Any) -> None:
        entry = (self.clock.us, *what)
        self.trace.append(entry)
        self.on_trace(entry)

    @property
    def streams(self) -> list[SimStream]:
        """The newest stream of each shard."""
        return [streams[max(streams)][0] for streams in self.generations]

    def add_generation(self, shard: int, generation: int) -> tuple[SimStream, LiveFileStore]:
        stream, files = SimStream(self.servers, f"shard-{shard}-g{generation}", self.bytes_max), LiveFileStore()
        stream.on_commit = self._committed(self.models[shard])
        stream.on_purge = self._purging(stream, files)
        self.servers.streams.append(stream)
        self.generations[shard][generation] = stream, files
        return stream, files

    def _committed(self, model: LogModel) -> Callable[[int, messages.LogMessage], None]:
        def committed(seq: int, message: messages.LogMessage) -> None:
            self.note("commit", model.stream, seq, message.header)
            model.committed(seq, message)

        return committed

    @staticmethod
    def _purging(stream: SimStream, files: LiveFileStore) -> Callable[[int], None]:
        def purging(through: int) -> None:
            stored = max((file.end.seq for file, _ in files.values()), default=0)
            if through > stored:
                raise Broken(PURGE, f"{stream.name} is purged up to {through}, and its live file is of {stored}")

        return purging

    # Time

    def run(self) -> None:
        """The storm, then the calm; every step is checked."""
        with small_messages():
            self._begin()
            self.weather.begin()
            self.until(STORM_US)
            self.note("calm")
            self.is_calm = True
            self.loss = self.lateness = 0.0
            self.weather.clear()
            self._await_calm()
            self.has_clients = False
            self.until(self.clock.us + STEADY_US)
            self._check_end()

    def _begin(self) -> None:
        for node in self.nodes:
            self.clock.after(self.dice.randint(0, 2_000_000), node.start)
        if self.has_queues:
            names = [(f"c{shard}{number}", shard) for shard in range(self.shards) for number in range(2)]
            self.clients = [QueueClient(self, name, shard) for name, shard in names]
        else:
            self.later(SENDS_US, self._send)
        self.later(SEALS_US, self._seal)
        self._end_keys()

    def run_rewound(self) -> None:
        """The servers lose what they acknowledged last. The shard halts until a node writes a new stream from its spool."""
        with small_messages():
            self._begin()
            self.loss = self.lateness = 0.0
            self.until(REWIND_US)
            self.has_seals = False  # so that the stream has rows to lose
            self.until(self.clock.us + IDLE_US)
            self.has_clients = False
            self.until(self.clock.us + IDLE_US)  # every node has read every row
            self.has_lost = self.is_calm = True
            idle = next(n for n, message in enumerate(reversed(self.streams[0].truth)) if message.kind == "rows")
            name, unread_us = self.streams[0].name, self.clock.us - UNREAD_US
            unread = sum(entry[1:3] == ("commit", name) and entry[0] > unread_us for entry in self.trace)
            self.streams[0].lose_tail(max(idle, unread) + self.dice.randint(1, LOST_MAX))
            self.until(self.clock.us + HALT_US)
            states = [[node.cells[shard].report.state for node in self.nodes] for shard in range(self.shards)]
            if set(states[0]) != {"halted"} or "owning" not in states[1]:
                raise Broken(HALT, f"the servers have lost messages of shard 0, and the nodes are {states}")
            for _ in range(self.dice.randint(0, 2)):
                self._repair(dies=True)
            self._repair(dies=False)
            self.has_lost = False
            self.halted.clear()
            self.has_clients = self.has_seals = True
            self._await_calm()
            self.has_clients = False
            self.until(self.clock.us + STEADY_US)
            self._check_end()

    def _repair(self, *, dies: bool) -> None:
        """An operator names the node that has most. It may crash on the way; then it is halted again when it is back."""
        halted = [node for node in self.nodes if node.cells[0].report.state == "halted"]
        if not halted:
            return
        node = max(halted, key=lambda node: node.cells[0].report.offset)
        node.dies_at_beginning = dies
        node.deliver(node.cells[0].repair)
        node.dies_at_beginning = False
        self.until(self.clock.us + HALT_US)

    def until(self, us: int) -> None:
        clock, serving = self.clock, self.serving
        while (next_us := clock.next_us()) is not None and next_us <= us:
            clock.step()
            for shard, cells in enumerate(serving):
                if len(cells) > 1:
                    self._check_lease(shard)

    def later(self, span: tuple[int, int], call: Callable[[], None]) -> None:
        self.clock.after(self.dice.randint(*span), call)

    def restart_later(self, node: SimNode) -> None:
        self.later(RESTART_US, node.start)

    def _end_keys(self) -> None:
        self.clock.after(1_000_000, self._end_keys)
        self.buckets.end_keys()

    # Clients

    def _send(self) -> None:
        self.later(SENDS_US, self._send)
        cells = [cell for cells in self.serving for cell in cells if not cell.node.is_paused and cell.is_open]
        if not cells or not self.has_clients:
            return
        cell = self.dice.choice(sorted(cells, key=lambda cell: (cell.shard, cell.node.name)))
        self._requests += 1
        fresh: list[tuple[str, bytes]] = []
        settles = 0
        for _ in range(self.dice.choice((1, 1, 2, 5))):
            if self.dice.random() < 0.45:
                settles += 1
            else:
                self._ids += 1
                fresh.append((f"e{self._ids}", b"x" * self.dice.choice((10, 10, 3_000))))
        cell.send(str(self._requests), fresh, settles)

    def _seal(self) -> None:
        self.later(SEALS_US, self._seal)
        for node in self.nodes:
            for cell in node.cells if node.is_up and not node.is_paused else ():
                if self.has_seals and self.dice.random() < (0.5 if cell.is_ready else 0.25):
                    node.deliver(cell.seal)

    # Checks

    def _check_lease(self, shard: int) -> None:
        serving = [cell.node.name for cell in self.serving[shard] if not cell.node.is_paused and cell.may_serve]
        if len(serving) > 1:
            raise Broken(LEASE, f"shard {shard} is served by {' and '.join(sorted(serving))}")

    def _await_calm(self) -> None:
        """Until each shard is where it belongs and stays there; on the way, none is without an owner for long."""
        begun_us = steady_us = self.clock.us
        owned_us = dict.fromkeys(range(self.shards), begun_us)
        while self.clock.us - steady_us < STEADY_US:
            self.until(self.clock.us + 500_000)
            now_us = self.clock.us
            for shard, cells in enumerate(self.serving):
                if shard in self.halted or any(cell.may_serve for cell in cells):
                    owned_us[shard] = now_us
                elif now_us - owned_us[shard] > OWNERLESS_MAX_US:
                    raise Broken(OWNED, f"shard {shard} has no owner since {owned_us[shard]}")
            trouble = self._trouble()
            if trouble is not None:
                steady_us = now_us
                if now_us - begun_us > CALM_MAX_US:
                    raise Broken(CALM, trouble)

    def _check_end(self) -> None:
        """Nothing is under way any more: each owner has the records of its log."""
        for shard, cells in enumerate(self.serving):
            for cell in cells:
                if cell.records() != self.models[shard].live:
                    raise Broken(
                        TRUE, f"shard {shard}: {cell.node.name} has {len(cell.records())} records, not those of the log"
                    )

    def wanted(self) -> list[str]:
        """Who should own each shard when every node lives."""
        decisions = Decisions()
        for key in self.buckets.revisions:
            decisions.note(key, self.buckets.value(key))
        return assign([node.name for node in self.nodes], self.shards, decisions.moves, decisions.drains)

    def _trouble(self) -> str | None:
        """What is not as it should be in the end."""
        wanted = self.wanted()
        if not all(node.is_up and node.cells for node in self.nodes):
            return "a node is on its way"
        for shard in set(range(self.shards)) - self.halted:
            serving = [cell.node.name for cell in self.serving[shard] if cell.may_serve]
            if serving != [wanted[shard]]:
                return f"shard {shard} belongs to {wanted[shard]}, and is served by {serving}"
            for node in self.nodes:
                seen = node.cells[shard].ownership.reader.end.owner, node.owners.map[shard]
                if set(seen) != {wanted[shard]}:
                    return f"shard {shard} belongs to {wanted[shard]}; {node.name} sees {seen}"
        return None


@contextmanager
def small_messages() -> Iterator[None]:
    """Messages so small that most commits need several."""
    before, messages.MESSAGE_MAX = messages.MESSAGE_MAX, MESSAGE_BYTES
    try:
        yield
    finally:
        messages.MESSAGE_MAX = before
