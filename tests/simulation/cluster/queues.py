"""Cells with the shipped queue machine and runtime, and clients that enqueue, take and settle through the gates of a node.

A client reaches a shard as the front of another node does: over a link between nodes, in a channel, as a leg. The link keeps the order of
its messages. Where it loses one, it is over, and both ends learn that when nothing has come for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.core.rows import Row
from penstock.core.scopes import ANONYMOUS, Principal
from penstock.dialects.courier.sessions.front.legs import LegHello
from penstock.server.cell import Cell
from penstock.server.cells.cell_requests import CellServices
from penstock.server.cells.hosted_link import HostedLink
from penstock.server.cells.messages import LegEnded, LegInput, LegOpened, LegOutput, LegRead
from penstock.server.cluster.channels import (
    ChannelEnded,
    ChannelEnding,
    ChannelHost,
    ChannelOpened,
    ChannelReady,
    FromNode,
    FromShard,
    Gate,
    ToNode,
    ToShard,
)
from penstock.server.engine.connections import Timer
from penstock.server.engine.machines import Machines, make_machine
from penstock.testing.clients import Frame
from tests.simulation.cluster.cell import SimCell
from tests.simulation.cluster.checks import DURABLE, TRUE
from tests.simulation.queue.checks import Broken

if TYPE_CHECKING:
    from tests.simulation.cluster.node import SimNode
    from tests.simulation.cluster.storm import Cluster

LIMITS = Limits(lease_min_ms=50)
CUT_US = 5_000_000
"""How long clients of a suspended shard wait before they are cut off."""
SILENCE_US = 5_000_000
"""After this long without a message, a link between nodes is over."""
ACTS_US = (30_000, 500_000)
RECENT = 20
"""How many envelopes a client may send again, although it knows that they are there."""
TS = "2026-01-01T00:00:00Z"
CHANNEL = LEG = 1


def stream_of(shard: int) -> str:
    return f"jobs/{shard}"


def ids_of(machine: QueueMachine) -> set[str]:
    return {record.id for channel in machine.channels.values() for record in channel.live.values()}


class CellClock:
    """The scheduler of one cell: what it has scheduled ends with it."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.is_over = False
        self.now: Callable[[], Now] = node.now

    def soon(self, call: Callable[[], None]) -> object:
        self._node.soon(lambda: None if self.is_over else call())
        return None

    def at(self, us: int, call: Callable[[], None]) -> Timer:
        return self._node.at(us, lambda: None if self.is_over else call())


class QueueCell(SimCell):
    """A shard at a node, with its queue."""

    def _open_cell(self, rows: list[tuple[bool, Row]]) -> None:
        machine = self._machine(rows)
        there = ids_of(machine)
        if there != self.model.state_at(self.journal.offset):
            raise Broken(
                TRUE, f"{self.model.stream}: {self.node.name} recovers {len(there)} records, not those of the log"
            )
        self._clock = CellClock(self.node)
        self.cell = Cell(
            machine, lambda machines: self.journal, self._clock, authenticate=lambda token: None, version="simulated"
        )
        self._services = CellServices(cast(Any, None), self.cell.runtime, cast(Any, None))
        self._gates: list[Gate] = []
        self._suspended_us: int | None = None
        self.cell.runtime.schedule_turn()

    def records(self) -> set[str]:
        return ids_of(self.cell.machine)

    def _machine(self, rows: list[tuple[bool, Row]]) -> QueueMachine:
        machine = make_machine(LIMITS, lambda name: self.node.cluster.policy, self.node.dice.randbytes)
        machines, now = Machines(machine), self.node.now()
        for is_state, row in rows:
            (machines.resume if is_state else machines.restore)(now, row)
        machines.recovered(now)
        return machine

    def close_cell(self) -> None:
        if self.is_ready:
            self._clock.is_over = True
            self._cut()
        super().close_cell()

    def _cut(self) -> None:
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.end()
            gate.hosted.close()

    def look(self) -> None:
        """Let out what has waited for the lease; without it for long, cut the clients off."""
        if not self.is_ready:
            return
        now_us = self.node.now().us
        if self.may_serve:
            self._suspended_us = None
            for gate in list(self._gates):
                gate.flush()
        elif self._suspended_us is None:
            self._suspended_us = now_us
        elif now_us - self._suspended_us >= CUT_US:
            self._cut()

    def _flush(self) -> None:
        for gate in self._gates:
            gate.begin_end()
        journal = self.journal

        def flushed() -> None:
            if self.is_moving and journal is self.journal:
                self._is_flushed = True
                journal.release()

        self.cell.runtime.flushed(flushed)

    def _stay(self) -> None:
        if self.is_moving and not self._is_flushed:
            self._cut()
        super()._stay()

    def host(self, gate: Gate) -> HostedLink:
        self._gates.append(gate)
        return HostedLink(gate.post, lambda shard: self._services)

    def left(self, gate: Gate) -> None:
        if gate in self._gates:
            self._gates.remove(gate)

    def _state_rows(self, offset: int, rows: list[tuple[bool, Row]] | None) -> Iterator[Row]:
        found = self.journal.rows() if rows is None else rows
        rows = [(is_state, row) for is_state, row in found if is_state or row.offset < offset]
        last_us = max((row.recorded_at for _, row in rows), default=0)
        machine = make_machine(LIMITS, lambda name: self.node.cluster.policy, self.node.dice.randbytes)
        machines, now = Machines(machine), Now(last_us, last_us)
        for is_state, row in rows:
            (machines.resume if is_state else machines.restore)(now, row)
        machines.wake(now)
        return machines.snapshot(now)


class NodeEnd:
    """The node's end of a link."""

    def __init__(self, link: ClientLink) -> None:
        self._link = link
        self.received: Callable[[ToNode], None] = lambda message: None
        self.lost: Callable[[], None] = lambda: None
        self.congested: Callable[[bool], None] = lambda on: None
        self.is_over = False

    def post(self, message: FromNode, size: int = 0) -> None:
        if not self.is_over:
            self._link.client.passed(message)
            self._link.node.write(lambda: self._link.up(message))

    def close(self) -> None:
        self.is_over = True


class ClientLink:
    """A link between a client's front and a node."""

    def __init__(self, client: QueueClient, node: SimNode, shard: int) -> None:
        self.client, self.node = client, node
        self._clock, self._dice = client.cluster.clock, client.dice
        self._life = node.life
        self._down_us = self._up_us = 0
        self.is_broken = self.is_over = False
        self._end = NodeEnd(self)
        ChannelHost(self._end, lambda number: cast(QueueCell, node.cells[number]) if node.cells else None)
        self.down(ChannelOpened(CHANNEL, shard))

    def _passes(self) -> bool:
        """Whether the servers carry a message now; if not, the link has a gap."""
        node, servers = self.node, self.client.cluster.servers
        is_way = node.is_up and node.life == self._life and self.client.home in servers.peers(node.home)
        if not is_way or self._dice.random() < self.client.cluster.loss:
            self._break()
        return not self.is_broken

    def _break(self) -> None:
        if not self.is_broken:
            self.is_broken = True
            self._clock.after(SILENCE_US, self._lose)

    def _lose(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.client.lost(self)
            if self.node.life == self._life:
                self.node.deliver(self._lose_there)

    def _lose_there(self) -> None:
        self._end.is_over = True
        self._end.lost()

    def close(self) -> None:
        """The client's front leaves."""
        self._break()
        self.is_over = True
        if self.node.life == self._life:
            self._clock.after(SILENCE_US, lambda: self.node.deliver(self._lose_there))

    def down(self, message: ToNode) -> None:
        if self._passes() and self.node.hears(self.node.home):
            self._down_us = max(self._down_us, self._clock.us + self._dice.randint(200, 20_000))
            guarded = self.node.guard(lambda: None if self._end.is_over else self._end.received(message))
            self._clock.at(self._down_us, guarded)
        else:
            self._break()

    def up(self, message: FromNode) -> None:
        if self._passes() and self.node.speaks(self.node.home):
            self._up_us = max(self._up_us, self._clock.us + self._dice.randint(200, 20_000))
            self._clock.at(self._up_us, lambda: None if self.is_over else self.client.received(self, message))
        else:
            self._break()


class QueueClient:
    """Works on one stream, wherever its shard is, and knows what it was promised."""

    def __init__(self, cluster: Cluster, name: str, shard: int) -> None:
        self.cluster = cluster
        self.name, self.shard = name, shard
        self.dice = Random(f"{cluster.seed}/{name}")
        self.home = self.dice.randrange(3)
        self.model = cluster.models[shard]
        self.link: ClientLink | None = None
        self._is_open = False
        self._heard_us = 0
        self._count = self._requests = 0
        self._asked: dict[int, tuple[str, list[str]]] = {}
        """Requests without an answer: what they want, and the ids they are about."""
        self._unsure: list[str] = []
        """Envelopes that may be in the stream, or not: they are sent again."""
        self._held: list[tuple[str, str]] = []
        self._bodies: dict[str, str] = {}
        cluster.later(ACTS_US, self._next)

    def _next(self) -> None:
        self.cluster.later(ACTS_US, self._next)
        if self.link is None:
            self._connect()
        elif (not self._is_open or self._asked) and self.cluster.clock.us - self._heard_us > SILENCE_US:
            self.link.close()
            self.lost(self.link)
        elif self._is_open and self.cluster.has_clients:
            self._act(self.link)

    def _connect(self) -> None:
        """To the owner that some node names, or to any node: a wrong one says so."""
        nodes = [node for node in self.cluster.nodes if node.is_up and not node.is_paused and node.cells]
        if not nodes:
            return
        names = {node.name: node for node in nodes}
        owner = self.dice.choice(nodes).owners.map[self.shard]
        self._heard_us = self.cluster.clock.us
        self.home = self.dice.randrange(3)
        self.link = ClientLink(self, names.get(owner or "", self.dice.choice(nodes)), self.shard)

    def lost(self, link: ClientLink) -> None:
        """What was under way is unknown."""
        if link is self.link:
            self.link, self._is_open = None, False
            for what, ids in self._asked.values():
                if what == "enqueue":
                    self._unsure += ids
            self._asked.clear()
            self._held.clear()

    # Requests

    def _act(self, link: ClientLink) -> None:
        stream = stream_of(self.shard)
        if self._unsure:
            again, self._unsure = self._unsure[:5], self._unsure[5:]
            self._enqueue(link, again)
            return
        match self.dice.randint(0, 9):
            case 0 if self._count:
                recent = self._count - self.dice.randint(1, min(self._count, RECENT))
                self._enqueue(link, [f"{self.name}-{recent}"])
            case 0 | 1 | 2:
                count = self.dice.choice((1, 1, 2, 5))
                self._enqueue(link, [f"{self.name}-{self._count + number}" for number in range(count)])
                self._count += count
            case 3 | 4 | 5:
                wait_ms, count = self.dice.choice((0, 300)), self.dice.randint(1, 5)
                self._ask(link, "pull", [], stream=stream, max=count, waitMs=wait_ms)
            case 6 if not any(what == "subscribe" for what, _ in self._asked.values()):
                self._ask(link, "subscribe", [], stream=stream, credit=self.dice.randint(1, 3))
            case _:
                for _ in range(min(len(self._held), 6)):
                    name, lease = self._held.pop(self.dice.randrange(len(self._held)))
                    op = self.dice.choice(("ack", "ack", "ack", "nack", "release"))
                    self._ask(link, "settle", [name] if op == "ack" else [], id=name, op=op, leaseId=lease)

    def _enqueue(self, link: ClientLink, ids: list[str]) -> None:
        stream = stream_of(self.shard)
        body = "x" * self.dice.choice((10, 10, 2_500))
        envs = [{"id": name, "ts": TS, "to": stream, "type": "t", "payload": self._payload(name, body)} for name in ids]
        self._ask(link, "enqueue", ids, to=stream, env=envs if len(envs) > 1 else envs[0])

    def _payload(self, name: str, fresh: str) -> str:
        """The same for the same id, whenever it is sent."""
        return self._bodies.setdefault(name, fresh)

    def _ask(self, link: ClientLink, what: str, ids: list[str], **fields: Any) -> None:
        self._requests += 1
        if not self._asked:
            self._heard_us = self.cluster.clock.us
        self._asked[self._requests] = what, ids
        line = msgspec.json.encode({"type": what, "reqId": self._requests, **fields}) + b"\n"
        link.down(ToShard(CHANNEL, LegInput(LEG, line)))

    # What comes back

    @staticmethod
    def _lines(message: FromNode) -> list[Frame]:
        if isinstance(message, FromShard) and isinstance(message.message, LegOutput):
            return [msgspec.json.decode(line) for line in b"".join(message.message.messages).splitlines()]
        return []

    def passed(self, message: FromNode) -> None:
        """A node that holds the lease is about to say this: it must be true everywhere, from now on."""
        for line in self._lines(message):
            for name, _ in deliveries(line):
                if name in self.model.confirmed or name in self.model.settled:
                    raise Broken(DURABLE, f"{self.model.stream}: {name} is settled, and is delivered to {self.name}")
            what, ids = self._asked.get(line.get("reqId", 0), ("", []))
            if line["type"] != "ok" or not ids:
                continue
            known = self.model.kept if what == "enqueue" else self.model.settled
            if not known.issuperset(ids):
                raise Broken(DURABLE, f"{self.model.stream}: {what} of {ids} is confirmed, and is not in the log")
            (self.model.acknowledged if what == "enqueue" else self.model.confirmed).update(ids)

    def received(self, link: ClientLink, message: FromNode) -> None:
        if link is not self.link:
            return
        self._heard_us = self.cluster.clock.us
        if isinstance(message, ChannelReady):
            hello = LegHello(Principal(self.name, scopes=ANONYMOUS.scopes), self.name, None, "")
            link.down(ToShard(CHANNEL, LegOpened(LEG, self.shard, hello)))
            self._is_open = True
        elif isinstance(message, ChannelEnding):
            self._is_open = False
        elif isinstance(message, ChannelEnded) or isinstance(message.message, LegEnded):
            link.close()
            self.lost(link)
        elif isinstance(message.message, LegOutput):
            for line in self._lines(message):
                self._heard(line)
            link.down(ToShard(CHANNEL, LegRead(LEG, sum(map(len, message.message.messages)))))

    def _heard(self, line: Frame) -> None:
        self._held += deliveries(line)
        if line["type"] in ("ok", "error"):
            what, ids = self._asked.pop(line.get("reqId", 0), ("", []))
            if what == "enqueue" and line["type"] == "error":
                self._unsure += ids


def deliveries(line: Frame) -> list[tuple[str, str]]:
    """The ids and leases that a line hands out."""
    if line["type"] == "deliver":
        envs, leases = line["env"], line["leaseId"]
        pairs = zip(envs, leases, strict=True) if isinstance(envs, list) else [(envs, leases)]
        return [(env["id"], lease) for env, lease in pairs]
    result = line.get("result")
    found = result.get("deliveries", []) if isinstance(result, dict) else []
    return [(one["deliver"]["id"], one["leaseId"]) for one in found]


def draw_policy(dice: Random) -> Policy:
    """Records end only when a client settles them."""
    return Policy(
        lease_us=dice.choice((2_000_000, 10_000_000)),
        max_deliveries=0,
        max_abandoned=0,
        on_disconnect=dice.choice(("release", "hold")),
        redelivery=dice.choice(("tail", "head")),
        retry=None,
    )
