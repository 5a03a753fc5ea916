"""`World(seed)`: the shipped server between simulated clients and a simulated disk, on a clock that a test moves.

The runtime, the machine and the sessions are the real ones. Clock, network, journal and entropy are replaced. All randomness comes
from the seed: the same seed gives the same bytes at the same times. An `Observer` sees everything that passes and may check it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy, default_policy
from penstock.core.rows import Row
from penstock.core.scopes import ANONYMOUS, UNAUTHENTICATED, Principal
from penstock.dialects.courier.sessions import subscribe
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery, SubscribeSession
from penstock.dialects.courier.triggers.config import Trigger
from penstock.dialects.mew.session import MewSession
from penstock.dialects.mew.settings import SpaceSettings
from penstock.server.cell import Cell
from penstock.server.engine.connections import Connection
from penstock.server.engine.machines import Machines, make_machine
from penstock.server.engine.runtime import Runtime
from penstock.server.spaces.host import Spaces
from penstock.testing.clients import LineClient, SocketClient, SpaceClient, token_of
from penstock.testing.clock import Clock, Life
from penstock.testing.disk import SimJournal
from penstock.testing.network import SimConnection

LATENCY_US = 2_000
OPERATOR_TOKEN = "operator-token"
"""Opens every space."""

TraceEntry = tuple[Any, ...]
"""When (simulated microseconds), what, and details."""


class Observer:
    """Watches a world. Override what you need; an exception that a method raises reaches the test."""

    def attached(self, world: World) -> None:
        """The observer belongs to this world, whose server is about to start for the first time."""

    def connected(self, pipe: SimConnection, principal: Principal, query: SubscribeQuery | None) -> None:
        """A client connects to the queue: over Control v1, or with the query of a subscribe socket."""

    def space_connected(self, pipe: SimConnection) -> None:
        """A client connects to the spaces."""

    def arriving(self, pipe: SimConnection, data: bytes) -> Callable[[], None] | None:
        """Bytes reach the server; the returned function is called when the server has processed them."""
        return None

    def sent(self, pipe: SimConnection, messages: list[bytes]) -> None:
        """The server wrote messages."""

    def committed(self, rows: list[Row]) -> None:
        """The journal made rows durable, in one batch."""

    def refused(self, rows: list[Row]) -> None:
        """The journal refused rows."""

    def logged(self, event: str, fields: dict[str, Any]) -> None:
        """The server logged an event."""

    def stepped(self) -> None:
        """One event happened."""

    def crashed(self) -> None:
        """The server is gone; its clients learn of it next."""

    def started(self) -> None:
        """The server has recovered its state from the journal. Its configured spaces are added next."""


class World:
    """A server and its clients in simulated time.

    >>> world = World(seed=7)
    >>> client = world.connect()
    >>> client.send_line({"type": "subscribe", "stream": "jobs", "credit": 1})
    >>> envelope = {"id": "e1", "ts": "2026-01-01T00:00:00Z", "type": "job", "payload": None}
    >>> client.send_line({"type": "enqueue", "to": "jobs", "env": envelope})
    >>> world.advance(ms=100)
    >>> [line["type"] for line in client.lines]
    ['deliver', 'ok']
    >>> world.crash()
    >>> client.closed
    (1006, 'the server is gone')
    >>> world.stats("jobs")["depth"]
    1
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        limits: Limits | None = None,
        policy_for: Callable[[str], Policy] | None = None,
        latency_us: int = LATENCY_US,
        triggers: Sequence[Trigger] = (),
        spaces: Sequence[SpaceSettings] = (),
        observers: Sequence[Observer] = (),
    ) -> None:
        self.seed = seed
        self.limits = limits or Limits()
        self.clock = Clock()
        self.pipes: list[SimConnection] = []
        """Connections that are not broken."""
        self.trace: list[TraceEntry] = []
        """What happened, in order: equal for equal seeds."""
        self.on_trace: Callable[[TraceEntry], None] | None = None
        """Called with every entry of the trace as it happens."""
        self.lives = 0
        """How often the server started."""
        self.up = False
        self.machine: QueueMachine
        self.runtime: Runtime
        self.spaces: Spaces
        self._settings = spaces
        self._policy_for = policy_for or default_policy
        self._observers = observers
        self._triggers = triggers
        self._latency_us = latency_us
        self._entropy = self.dice("entropy")
        self._network = self.dice("network")
        self._pipe_no = 0
        self._life: Life
        self.journal = SimJournal(self.clock, self.dice("disk"), self._committed, self._refused)
        for observer in observers:
            observer.attached(self)
        self.restart()

    def dice(self, name: str) -> Random:
        """A random generator of its own, so that the draws of one actor do not shift those of another."""
        return Random(f"{self.seed}/{name}")

    # Clients

    def connect(self, name: str = "client", *, principal: Principal = ANONYMOUS) -> LineClient:
        """Open a Control v1 connection; the server treats it as `principal`."""
        pipe = self._new_pipe(framed=False)
        for observer in self._observers:
            observer.connected(pipe, principal, None)
        client = LineClient(pipe, name)
        if self.up:
            session = ControlSession(self.runtime, token_needed=False)
            self._attach(pipe, self.runtime.peers.open(session, pipe, principal, name))
        else:
            pipe.cut()
        return client

    def _attach(self, pipe: SimConnection, connection: Connection | Refusal) -> None:
        if isinstance(connection, Refusal):
            pipe.cut()
        else:
            pipe.endpoint = connection

    def subscribe(
        self, stream: str, *, name: str = "socket", principal: Principal = ANONYMOUS, **options: Any
    ) -> SocketClient:
        """Open a subscribe socket on one stream; `options` are the rest of its query, as in `credit=5`."""
        pipe = self._new_pipe(framed=True)
        query = SubscribeQuery(stream, **options)
        for observer in self._observers:
            observer.connected(pipe, principal, query)
        client = SocketClient(pipe, name, stream)
        if not self.up or subscribe.check(self.runtime, principal, query) is not None:
            pipe.cut()
            return client
        session = SubscribeSession(self.runtime, query)
        connection = self.runtime.peers.open(session, pipe, principal, name)
        self._attach(pipe, connection)
        if isinstance(connection, Connection):
            session.open(self.clock.now())
            self.runtime.peers.touch(connection)
        return client

    def join(self, space: str, participant: str, token: str | None = None, *, name: str | None = None) -> SpaceClient:
        """Connect to the spaces and join one as a participant."""
        client = self.connect_space(name or participant)
        client.join(space, participant, token or token_of(participant))
        return client

    def connect_space(self, name: str) -> SpaceClient:
        """Open a WebSocket to the spaces without joining one."""
        pipe = self._new_pipe(framed=True)
        for observer in self._observers:
            observer.space_connected(pipe)
        client = SpaceClient(pipe, name)
        if self.up:
            session = MewSession(self.spaces, token=None, space=None, participant=None)
            self._attach(pipe, self.spaces.open(pipe, session, name, UNAUTHENTICATED))
        else:
            pipe.cut()
        return client

    def stats(self, stream: str) -> dict[str, Any]:
        """The counters of one stream, as the operation `stats` returns them."""
        return self.machine.stats(self.clock.now(), self.machine.channels[stream])

    # Time

    def step(self) -> bool:
        """Run the next event; false when none is left."""
        if not self.clock.step():
            return False
        for observer in self._observers:
            observer.stepped()
        return True

    def run(self, steps: int) -> None:
        """Run that many events, or as many as there are."""
        for _ in range(steps):
            if not self.step():
                return

    def advance(self, ms: int) -> None:
        """Run every event of the next `ms` milliseconds."""
        until_us = self.clock.us + ms * 1000
        while (due_us := self.clock.next_us()) is not None and due_us <= until_us:
            self.step()
        self.clock.us = until_us

    # Life and death

    def crash(self, *, restart: bool = True) -> None:
        """Kill the server as `kill -9` does; with `restart`, start it again at once."""
        self.note("crash")
        self._life.over = True
        self.up = False
        self.journal.crash()
        for observer in self._observers:
            observer.crashed()
        for pipe in list(self.pipes):
            pipe.crash()
        self.pipes.clear()
        if restart:
            self.restart()

    def restart(self) -> None:
        """Start the server on the rows that the journal holds."""
        self.lives += 1
        self._life = Life(self.clock)
        self.machine = make_machine(self.limits, self._policy_for, self._entropy.randbytes)
        now = self.clock.now()

        def open_journal(machines: Machines) -> SimJournal:
            for row in self.journal.rows:
                machines.restore(now, row)
            machines.recovered(now)
            return self.journal

        cell = Cell(
            self.machine,
            open_journal,
            self._life,
            authenticate=lambda token: ANONYMOUS,
            version="simulated",
            triggers=self._triggers,
            log=self._log,
        )
        self.runtime = cell.runtime
        self.spaces = cell.host_spaces(is_operator=lambda token: token == OPERATOR_TOKEN)
        self.runtime.apply(now)
        self.up = True
        self.note("start", self.lives, len(self.journal.rows))
        for observer in self._observers:
            observer.started()
        for each in self._settings:
            self.spaces.add(each)

    # Events

    def note(self, what: str, *more: Any) -> None:
        """Add an entry to the trace."""
        entry = (self.clock.us, what, *more)
        self.trace.append(entry)
        if self.on_trace is not None:
            self.on_trace(entry)

    def arriving(self, pipe: SimConnection, data: bytes) -> Callable[[], None] | None:
        self.note("in", pipe.no, data)
        done = [observer.arriving(pipe, data) for observer in self._observers]
        calls = [call for call in done if call is not None]

        def processed() -> None:
            for call in calls:
                call()

        return processed if calls else None

    def sent(self, pipe: SimConnection, messages: list[bytes]) -> None:
        self.note("out", pipe.no, *messages)
        for observer in self._observers:
            observer.sent(pipe, messages)

    def _committed(self, rows: list[Row]) -> None:
        self.note("committed", *[(row.event, row.channel, row.seq) for row in rows])
        for observer in self._observers:
            observer.committed(rows)

    def _refused(self, rows: list[Row]) -> None:
        self.note("refused", *[(row.event, row.channel, row.seq) for row in rows])
        for observer in self._observers:
            observer.refused(rows)

    def _log(self, event: str, **fields: Any) -> None:
        for observer in self._observers:
            observer.logged(event, fields)
        if event in {"session.failed", "backlog.failed"}:
            raise AssertionError(f"{event}: {fields['error']}")

    def _new_pipe(self, *, framed: bool) -> SimConnection:
        self._pipe_no += 1
        pipe = SimConnection(self._pipe_no, self.clock, self._network, self, framed=framed, latency_us=self._latency_us)
        self.pipes = [other for other in self.pipes if not other.broken]
        self.pipes.append(pipe)
        return pipe
