"""Actors: small scripted clients that send valid and invalid requests at random times.

Each has its own random numbers, its own connection and its own name, and reconnects after a loss. Actors check nothing: the witness and
the checks see everything they cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.scopes import ANONYMOUS, OPERATOR, Principal
from penstock.core.steps import Steps
from penstock.dialects.courier.operations import queries
from penstock.dialects.courier.operations.outcomes import Result
from penstock.dialects.courier.operations.redrive_and_purge import StreamRequest, purge_steps
from penstock.testing.clients import Frame, LineClient

if TYPE_CHECKING:
    from tests.simulation.world import CheckedWorld

TS = "2026-01-01T00:00:00Z"
KINDS = ("t", "t", "t", "t", "moved", "copied", "enriched")
"""Types of what producers send; storms have rules for some of them."""
LANES: list[Frame] = [
    {},
    {"partitionKey": "k1"},
    {"partitionKey": "k2", "headers": {"partitionKey": "k1", "priority": "low"}},
    {"headers": {"partitionKey": "k1", "priority": "high"}},
    {"headers": {"partitionKey": "k3", "priority": 9}},
    {"headers": {"priority": "0"}},
]
"""What envelopes say about where they wait, for streams that ask."""
RECENT = 30
"""How many envelopes a producer can repeat."""


def named(name: str) -> Principal:
    """A client with the rights of an anonymous peer and its own name."""
    return Principal(name, scopes=ANONYMOUS.scopes)


class Actor:
    """A client that acts at random times."""

    pace_ms = 60

    def __init__(self, world: CheckedWorld, name: str, streams: list[str]) -> None:
        self.world = world
        self.name = name
        self.streams = streams
        self.dice = world.dice(name)
        self._wait()

    def act(self) -> None:
        """Do one thing."""

    def _wait(self) -> None:
        self.world.clock.after(self.dice.randint(1, 2 * self.pace_ms * 1000), self._next)

    def _next(self) -> None:
        if self.world.is_calm:
            return
        if self.world.up:
            self.act()
        self._wait()

    def stream(self) -> str:
        return self.dice.choice(self.streams)


class Caller(Actor):
    """An actor with a Control v1 connection."""

    vandal = False

    def __init__(self, world: CheckedWorld, name: str, streams: list[str]) -> None:
        super().__init__(world, name, streams)
        self.client: LineClient | None = None

    def line(self) -> LineClient:
        """The connection, made anew when it was lost."""
        if self.client is None or self.client.closed is not None:
            self.client = self.world.connect(self.name, principal=named(self.name))
            self.world.witness.conversations[self.client.pipe.no].vandal = self.vandal
            self.client.on_line = self.heard
            self.connected(self.client)
        return self.client

    def connected(self, client: LineClient) -> None:
        """A new connection is there."""

    def heard(self, line: Frame) -> None:
        """The server said something."""

    def maybe_cut(self, share: float) -> bool:
        if self.client is not None and self.dice.random() < share:
            self.client.pipe.cut()
            return True
        return False


class Producer(Caller):
    """Enqueues: one by one, many in a chunk, arrays, delayed; the same again, and the same id with other content."""

    pace_ms = 40

    def __init__(self, world: CheckedWorld, name: str, streams: list[str]) -> None:
        super().__init__(world, name, streams)
        self.recent: list[tuple[str, Frame]] = []
        self._no = 0

    def envelope(self, stream: str) -> Frame:
        self._no += 1
        text = "x" * self.dice.choice((1, 10, 60, 300))
        kind = self.dice.choice(KINDS)
        payload = {"text": text} if kind == "enriched" else text
        env = {"id": f"{self.name}-{self._no}", "ts": TS, "to": stream, "type": kind, "payload": payload}
        env |= self.dice.choice(LANES)
        self.recent = [*self.recent[-RECENT:], (stream, env)]
        return env

    def act(self) -> None:
        if self.maybe_cut(0.01):
            return
        line = self.line()
        stream = self.stream()
        match self.dice.randint(0, 9):
            case 0 | 1 | 2:
                line.request("enqueue", to=stream, env=self.envelope(stream))
            case 3 | 4:
                count = self.dice.randint(2, 8)
                line.send_line(*[line.frame("enqueue", to=stream, env=self.one(stream)) for _ in range(count)])
            case 5:
                env = [self.one(stream) for _ in range(self.dice.randint(1, 5))]
                line.request("enqueue", to=stream, env=env)
            case 6:
                line.request("enqueue", to=stream, env=self.envelope(stream), delayMs=self.dice.randint(0, 600))
            case 7 if self.recent:
                to, env_ = self.dice.choice(self.recent)
                line.request("enqueue", to=to, env=env_)
            case 8 if self.recent:
                to, env_ = self.dice.choice(self.recent)
                line.request("enqueue", to=to, env={**env_, "payload": "something else"})
            case _:
                line.request("send", to=stream, kind="note", payload={"n": 1})

    def one(self, stream: str) -> Frame:
        """A new envelope, or one that was sent before."""
        before = [env for to, env in self.recent if to == stream]
        return self.dice.choice(before) if before and self.dice.random() < 0.2 else self.envelope(stream)


class Puller(Caller):
    """Pulls, waits, settles by lease or by name, and enqueues behind a pull that still waits."""

    pace_ms = 60

    def connected(self, client: LineClient) -> None:
        self.held: list[Frame] = []
        self._no = client.pipe.no * 1000

    def heard(self, line: Frame) -> None:
        if line["type"] == "ok":
            self.held += line["result"].get("deliveries", [])

    def act(self) -> None:
        if self.maybe_cut(0.02):
            return
        line = self.line()
        match self.dice.randint(0, 5):
            case 0 | 1:
                line.request(
                    "pull",
                    stream=self.stream(),
                    max=self.dice.randint(1, 5),
                    waitMs=self.dice.choice((0, 0, 100, 800)),
                    leaseMs=self.dice.choice((None, 200)),
                )
            case 2:
                self._no += 1
                env = {"id": f"{self.name}-{self._no}", "ts": TS, "type": "t", "payload": None}
                line.request("enqueue", to=self.stream(), env=env)
            case _ if self.held:
                one = self.held.pop()
                op = self.dice.choice(("ack", "ack", "ack", "nack", "release", "term", "extend"))
                by = {"leaseId": one["leaseId"]} if self.dice.random() < 0.7 else {"stream": one["stream"]}
                line.request("settle", id=one["deliver"]["id"], op=op, **by)


class Operator(Caller):
    """Looks at everything, sends dead letters home, and sometimes purges."""

    pace_ms = 150

    def act(self) -> None:
        line = self.line()
        stream = self.stream()
        match self.dice.randint(0, 6):
            case 0 | 1:
                line.request("redrive", stream=stream, max=self.dice.randint(1, 10))
            case 2:
                line.request("peek", stream=stream, state=self.dice.choice(queries.PEEK_STATES))
            case 3:
                line.request("metrics")
            case 4:
                line.request("explain", stream=stream)
            case 5:
                line.request("where", id=f"p1-{self.dice.randint(1, 40)}")
            case _ if self.dice.random() < 0.3:
                self.purge(stream)

    def purge(self, stream: str) -> None:
        """As the HTTP route does it: only an operator may."""
        world = self.world
        now = world.clock.now()
        outcome = Steps(purge_steps(world.machine, now, OPERATOR, StreamRequest(stream))).all(now)
        if isinstance(outcome, Result):
            world.runtime.when(outcome.gate, False, lambda refusal: world.note("purged", str(refusal)))
        world.runtime.apply(now)
