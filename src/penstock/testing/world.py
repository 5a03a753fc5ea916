"""`World(seed)`: the shipped server between simulated clients and a simulated disk, on a clock that a test moves.

The runtime, the machine and the sessions are the real ones. Clock, network, journal and entropy are replaced, and all chance
comes from the seed: the same seed gives the same bytes at the same times, every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.links import Session
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.core.scopes import ANONYMOUS, NOBODY, Principal
from penstock.dialects.courier.sessions import subscribe
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery, SubscribeSession
from penstock.dialects.courier.triggers.config import Trigger
from penstock.dialects.mew.session import MewSession
from penstock.dialects.mew.space_settings import SpaceSettings
from penstock.dialects.mew.space_state import DOOR, SpaceMemory
from penstock.server.engine.machines import Machines, install_rules, make_machine
from penstock.server.engine.runtime import Runtime
from penstock.server.spaces.host import Spaces
from penstock.testing import checks, space_checks
from penstock.testing.checks import Broken
from penstock.testing.clients import LineClient, SocketClient
from penstock.testing.clock import Clock, Life
from penstock.testing.consequences import Consequences
from penstock.testing.copies import Copy
from penstock.testing.disk import SimJournal
from penstock.testing.history import History
from penstock.testing.network import Pipe
from penstock.testing.space_witness import SpaceWitness
from penstock.testing.spaces import SpaceClient, token_of
from penstock.testing.talks import Talk
from penstock.testing.witness import Witness

DEEP_EVERY = 16
"""Steps between two looks at every record."""
LATENCY_US = 2_000
OPERATOR_TOKEN = "operator-token"
"""What lets its holder into every space."""

Trace = list[tuple[Any, ...]]


class World:
    """A server, its clients, and the weather.

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
        checked: bool = True,
        triggers: Sequence[Trigger] = (),
        spaces: Sequence[SpaceSettings] = (),
    ) -> None:
        self.seed = seed
        self.limits = limits or Limits()
        self.clock = Clock()
        self.history = History()
        self._policy_for = policy_for or (lambda name: Policy())
        self.witness = Witness(self.history, self._policy_for)
        self.witness.probe = self._probe
        self.consequences = Consequences(self.history, self.limits)
        self.listeners = SpaceWitness(self.clock, spaces)
        """Who holds the spaces to what they say."""
        self.pipes: list[Pipe] = []
        """Connections that are not broken."""
        self.copies: list[Copy] = []
        """What followers of `latestPerAgent` made of what they heard."""
        self.trace: Trace = []
        """What happened, in compact tuples: equal for equal seeds."""
        self.tell: Callable[[tuple[Any, ...]], None] | None = None
        """Called with every entry of the trace as it happens."""
        self.lives = 0
        self.chunk_requests_max = 250
        """Requests that may be in the very chunk with which a connection passes `answers_max`."""
        self.in_flight_max = 0
        """Facts that were with the journal at once, at most."""
        self.up = False
        self.is_calm = False
        """Nobody acts any more: what is under way comes to its end."""
        self.machine: QueueMachine
        self.runtime: Runtime
        self.spaces: Spaces
        self._settings = spaces
        self._triggers = triggers
        self._latency_us = latency_us
        self._checked = checked
        self._entropy = self.dice("entropy")
        self._network = self.dice("network")
        self._pipe_no = 0
        self._steps = 0
        self._life: Life
        self.journal = SimJournal(self.clock, self.dice("disk"), self._kept, self._refused)
        self.restart()

    def dice(self, name: str) -> Random:
        """A source of chance of its own, so that one actor's draws do not shift another's."""
        return Random(f"{self.seed}/{name}")

    # Clients

    def connect(
        self, name: str = "client", *, principal: Principal | None = None, vandal: bool = False
    ) -> LineClient:
        """A Control v1 connection; `principal` is who the server takes it for."""
        pipe = self._pipe(Talk((principal or ANONYMOUS).name, None, vandal=vandal), framed=False)
        client = LineClient(pipe, name)
        if not self.up:
            pipe.cut()
            return client
        session = ControlSession(self.runtime, token_needed=False)
        connection = self.runtime.open(session, pipe, principal or ANONYMOUS, name)
        if isinstance(connection, Refusal):
            pipe.cut()
        else:
            pipe.endpoint = connection
        return client

    def subscribe(
        self, stream: str, *, name: str = "socket", principal: Principal | None = None, **query: Any
    ) -> SocketClient:
        """A subscribe socket on one stream; the rest is its query, as in `credit=5`."""
        who = principal or ANONYMOUS
        talk = Talk(who.name, stream, vandal=False)
        talk.granted = query.get("credit", 0)
        talk.automatic = bool(query.get("auto"))
        pipe = self._pipe(talk, framed=True)
        client = SocketClient(pipe, name, stream)
        wanted = SubscribeQuery(stream, **query)
        if not self.up or subscribe.check(self.runtime, who, wanted) is not None:
            pipe.cut()
            return client
        session = SubscribeSession(self.runtime, wanted)
        connection = self.runtime.open(session, pipe, who, name)
        if isinstance(connection, Refusal):
            pipe.cut()
            return client
        pipe.endpoint = connection
        session.open(self.clock.now())
        self.runtime.touch(connection)
        return client

    def join(
        self, space: str, participant: str, token: str | None = None, *, name: str | None = None
    ) -> SpaceClient:
        """A participant of a space, who joins at once."""
        client = self.knock(name or participant)
        client.join(space, participant, token or token_of(participant))
        return client

    def knock(self, name: str) -> SpaceClient:
        """A WebSocket at the door of the spaces, on which nobody has said anything yet."""
        pipe = self._new_pipe(framed=True)
        self.listeners.connected(pipe)
        client = SpaceClient(pipe, name)
        if not self.up:
            pipe.cut()
            return client
        session = MewSession(self.spaces, token=None, space=None, participant=None)
        connection = self.spaces.open(pipe, session, name, NOBODY)
        if isinstance(connection, Refusal):
            pipe.cut()
        else:
            pipe.endpoint = connection
        return client

    def stats(self, stream: str) -> dict[str, Any]:
        """The numbers of one stream, as `stats` gives them."""
        return self.machine.stats(self.clock.now(), self.machine.channels[stream])

    # Time

    def step(self) -> bool:
        """Let one thing happen, then check that every invariant holds."""
        if not self.clock.step():
            return False
        self._steps += 1
        if self._checked and self.up:
            checks.every_step(self)
            if self._settings:
                space_checks.every_step(self)
            if self._steps % DEEP_EVERY == 0:
                checks.now_and_then(self)
        return True

    def run(self, steps: int) -> None:
        """Let so many things happen, or all that will."""
        for _ in range(steps):
            if not self.step():
                return

    def advance(self, ms: int) -> None:
        """Let time pass."""
        until_us = self.clock.us + ms * 1000
        while (due_us := self.clock.next_us()) is not None and due_us <= until_us:
            self.step()
        self.clock.us = until_us

    # Life and death

    def crash(self, *, restart: bool = True) -> None:
        """Kill the server as with `kill -9`; with `restart`, it is up again at once."""
        self.note("crash")
        self._life.over = True
        self.up = False
        self.journal.crash()
        self.listeners.crashed()
        for pipe in list(self.pipes):
            pipe.crash()
        self.pipes.clear()
        if restart:
            self.restart()

    def restart(self) -> None:
        """Start the server on what the journal holds."""
        self.lives += 1
        self._life = Life(self.clock)
        if self.lives > 1:
            self.consequences.died(self.machine)
        self.machine = make_machine(self.limits, self._policy_for, self._entropy.randbytes)
        now = self.clock.now()
        machines = Machines(self.machine, SpaceMemory())
        for row in self.journal.live(0):
            machines.restore(now, row)
        machines.recovered(now)
        install_rules(self.machine, self._triggers)
        self.runtime = Runtime(
            self.machine,
            self.journal,
            self._life,
            authenticate=lambda token: ANONYMOUS,
            version="simulated",
            log=self._log,
        )
        self.spaces = Spaces(self.runtime, machines.memory, is_operator=lambda token: token == OPERATOR_TOKEN)
        self.runtime.apply(now)
        self.up = True
        self.witness.restarted()
        self.note("start", self.lives, len(self.journal.rows))
        if self._checked:
            checks.promises_survived(self)
            checks.every_step(self)
            checks.now_and_then(self)
            space_checks.after_restart(self)
        for each in self._settings:
            self.spaces.add(each)

    # What passes

    def note(self, what: str, *more: Any) -> None:
        """Add to the trace."""
        entry = (self.clock.us, what, *more)
        self.trace.append(entry)
        if self.tell is not None:
            self.tell(entry)

    def arriving(self, pipe: Pipe, data: bytes) -> Callable[[], None] | None:
        self.note("in", pipe.no, data)
        if pipe.no in self.listeners.talks:
            self.listeners.arriving(pipe, data)
            return None
        return self.witness.arriving(pipe, data)

    def sent(self, pipe: Pipe, messages: list[bytes]) -> None:
        self.note("out", pipe.no, *messages)
        if pipe.no in self.listeners.talks:
            self.listeners.sent(pipe, messages)
            return
        self.witness.sent(pipe, messages)

    def _kept(self, rows: list[Any]) -> None:
        self.note("kept", *[(row.event, row.channel, row.seq) for row in rows])
        if self._checked and self._triggers:
            self.consequences.kept(rows, self.machine)
        self.witness.kept([row for row in rows if row.door != DOOR])
        self.listeners.kept([row for row in rows if row.door == DOOR])

    def _refused(self, rows: list[Any]) -> None:
        self.note("refused", *[(row.event, row.channel, row.seq) for row in rows])
        self.witness.refused([row for row in rows if row.door != DOOR])
        self.listeners.refused([row for row in rows if row.door == DOOR])

    def _pipe(self, talk: Talk, *, framed: bool) -> Pipe:
        pipe = self._new_pipe(framed=framed)
        self.witness.talks[pipe.no] = talk
        return pipe

    def _new_pipe(self, *, framed: bool) -> Pipe:
        self._pipe_no += 1
        pipe = Pipe(
            self._pipe_no, self.clock, self._network, self, framed=framed, latency_us=self._latency_us
        )
        self.pipes = [other for other in self.pipes if not other.broken]
        self.pipes.append(pipe)
        return pipe

    def _probe(self, pipe: Pipe) -> tuple[object, int | None]:
        state = checks.digest(self.machine)
        session: Session | None = getattr(pipe.endpoint, "session", None)
        if session is None or session.closing is not None:
            return state, None
        return state, len(session.out) + len(session.answers)

    def _log(self, event: str, **fields: Any) -> None:
        if event == "session.failed":
            raise Broken(checks.BAD_INPUT, f"a session failed: {fields['error']}")
