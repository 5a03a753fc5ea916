"""The peers of one runtime: who is connected, what is written to each at the end of a turn, and who is closed or cut off.

A connection that got something to say is due for a write. A peer that reads slowly is first not read from, then gets no more deliveries,
then is cut off. The runtime decides when a turn ends. `transports.transport` has the real wires and `schedulers.py` the real
schedulers; the simulator brings its own of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import ABSENT, Link, Session, agent_refusal
from penstock.core.queue.deliver import end_pull
from penstock.core.scopes import Principal
from penstock.server.engine.outboxes import Outboxes
from penstock.server.files.addresses import is_ip, payer_address
from penstock.transports.exchanges import SMALL
from penstock.transports.transport import Upload

if TYPE_CHECKING:
    from penstock.server.engine.runtime import Runtime


FAILED = (1011, "Internal")
"""How a session ends after a bug of the server."""
PEER_CLOSED = (1000, "closed by the peer")
"""The code and the reason in the log where the server did not end the connection."""

Log = Callable[..., None]
"""`log(event, **fields)`."""


class TurnListener(Protocol):
    """Machines of another protocol that share the turns and the commit log of a runtime."""

    def turn(self) -> None:
        """A turn ends: add facts to the commit log, and hand over what is to be written."""

    def decided(self, now: Now, no: int, fresh: Refusal | None, whole: Refusal | None) -> None:
        """Batch `no` has its outcome."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """The loop, as far as the runtime needs one."""

    def now(self) -> Now: ...

    def soon(self, call: Callable[[], None]) -> object:
        """Call on the next turn."""

    def at(self, us: int, call: Callable[[], None]) -> Timer:
        """Call when the monotonic clock shows `us`."""


class Wire(Protocol):
    """One connection's way out."""

    def send(self, messages: list[bytes]) -> None: ...

    @property
    def buffered(self) -> int: ...

    def hold(self, on: bool) -> None: ...

    def close(self, code: int, reason: str) -> None: ...

    def abort(self) -> None: ...


@dataclass(slots=True, eq=False)
class Connection:
    """One peer: its session, its link in the machine, and its wire."""

    _runtime: Runtime
    session: Session
    link: Link
    wire: Wire
    peer: str
    opened_us: int = 0
    is_brief: bool = False
    stuck: bool = False
    """The transport buffer is full: nothing new is handed to it."""
    held: bool = False
    """We do not read from the peer."""
    closed: bool = False
    unread_bytes: int = 0
    sent: int = 0
    """Messages handed to the wire."""
    collected: int = 0
    """Bytes of a message that is not complete."""
    upload: Upload | None = None
    """What the peer has sent that waits, if that is worth counting."""
    shares: ClassVar[int] = 1
    """Among how many connections of one reader its room is divided."""

    @property
    def reader_name(self) -> str:
        return self.link.name()

    @property
    def party(self) -> tuple[bool, str]:
        return self.link.principal.party(self.link.address)

    @property
    def is_paused(self) -> bool:
        return self.link.stalled

    def unread(self) -> int:
        """Bytes that the peer has not read."""
        return self.wire.buffered if self.stuck or self.closed else 0

    def cut(self, size: int) -> None:
        """All peers together hold too much, and this one holds most."""
        self._runtime.peers.cut(self, size, "outbox_total_max")

    def received(self, data: bytes) -> None:
        self._runtime.received(self, data)

    def collecting(self, size: int) -> None:
        """A message arrives in parts; 0 when it is complete."""
        self.collected = size
        self._runtime.peers.touch(self)

    def adopt(self, principal: Principal) -> bool:
        """Apply these rights to the peer's followers; False when they do not allow one of them."""
        return self._runtime.live.adopt(self.session, principal)

    def lost(self) -> None:
        self._runtime.peers.lost(self)

    def gone(self, now: Now) -> None:
        """The runtime has removed the connection."""

    def congested(self, on: bool) -> None:
        self._runtime.peers.congested(self, on)


class NoWire:
    """The wire of a session without a peer: a request that gets a reply, or a worker of the server."""

    buffered = 0

    def send(self, messages: list[bytes]) -> None: ...

    def hold(self, on: bool) -> None: ...

    def close(self, code: int, reason: str) -> None: ...

    def abort(self) -> None: ...


class ConnectionTable:
    """The connections of one runtime."""

    def __init__(self, runtime: Runtime, log: Log) -> None:
        self._runtime = runtime
        self._machine = runtime.machine
        self._scheduler = runtime.scheduler
        self._log = log
        self._connections: dict[int, Connection] = {}
        self._by_address: dict[str, int] = {}
        """Connections by the address of their peers."""
        self._due: dict[Connection, None] = {}
        """Connections that are written to at the end of the turn."""
        self._held: dict[Connection, None] = {}
        """Connections that are not read for now."""
        self.outboxes = Outboxes(lambda: self._machine.limits.outbox_total_max, self._scheduler.soon, log)
        self.inputs = Outboxes(lambda: self._machine.limits.input_total_max, self._scheduler.soon, log, "sender")
        """What peers have sent and what waits."""
        self.slow_cut = 0
        """Peers cut off because they did not read."""
        self.last_cut: tuple[int, str] | None = None
        """When the last one was cut off, and which."""

    def __len__(self) -> int:
        return len(self._connections)

    def open(
        self,
        session: Session,
        wire: Wire,
        principal: Principal,
        peer: str,
        *,
        is_brief: bool = False,
        make: type[Connection] = Connection,
        agent: str | None = None,
    ) -> Connection | Refusal:
        """A peer has connected, and may say which agent it is. A brief connection is a single request and is not logged."""
        foreign = None if agent is None else agent_refusal(principal, agent, self._runtime.is_agent_taken)
        if foreign is not None:
            return foreign
        address = payer_address(peer)
        here = self._by_address.get(address, 0)
        most = self._machine.limits.connections_per_address_max
        if here >= most and is_ip(peer):
            return Refusal(
                "QuotaExceeded",
                f"`{address}` has {here} connections and `limits.connections_per_address_max` allows no more",
                retry_after_ms=1_000,
            )
        link = self._machine.connect(principal, session)
        if isinstance(link, Refusal):
            return link
        self._by_address[address] = here + 1
        link.address, link.peer, link.agent = address, peer, agent
        session.link = link
        connection = make(self._runtime, session, link, wire, peer, self._scheduler.now().us, is_brief)
        self._connections[link.no] = connection
        if not is_brief:
            self._log("conn.open", link=link.no, peer=peer, who=link.who)
            if self._runtime.events is not None:
                self._runtime.events.opened(self._scheduler.now(), link, peer)
        return connection

    def lost(self, connection: Connection, why: tuple[int, str] = PEER_CLOSED) -> None:
        """A connection is lost or was closed, for this reason unless its session gave one."""
        link = connection.link
        if connection.unread_bytes:
            self.outboxes.note(connection, 0)
        if connection.upload is not None:
            self._note_input(connection, 0)
        if self._connections.pop(link.no, None) is None:
            return
        connection.closed = True
        self._by_address[link.address] -= 1
        if not self._by_address[link.address]:
            del self._by_address[link.address]
        self._due.pop(connection, None)
        self._held.pop(connection, None)
        self._runtime.left(connection.session)
        now = self._scheduler.now()
        self._machine.disconnect(now, link)
        connection.gone(now)
        self._runtime.apply(now)
        link.session = ABSENT
        connection.session.release()
        self._runtime.schedule_turn()
        if connection.is_brief:
            return
        code, reason = connection.session.closing or why
        peer, who, opened_us = connection.peer, link.who, connection.opened_us
        if self._runtime.events is not None:
            self._runtime.events.closed(now, link, peer, opened_us, code, reason)
        duration_ms = (now.us - opened_us) // 1000
        self._log("conn.close", link=link.no, peer=peer, who=who, durMs=duration_ms, code=code, reason=reason)

    def congested(self, connection: Connection, on: bool) -> None:
        """A transport's buffer is full, or has room again."""
        connection.stuck = on
        if not on and not connection.closed:
            self.touch(connection)
            self._runtime.live.wake(self._scheduler.now())

    def find(self, session: Session) -> Connection | None:
        """The open connection of a session."""
        return self._connections.get(session.link.no)

    def touch(self, connection: Connection) -> None:
        """Write to this peer at the end of the turn."""
        self._due[connection] = None
        self._runtime.schedule_turn()

    def mark(self, link: Link) -> Connection | None:
        """Write to this peer at the end of the turn, if it is still connected."""
        connection = self._connections.get(link.no)
        if connection is not None:
            self._due[connection] = None
        return connection

    def touch_session(self, session: Session) -> None:
        """The same, outside of a turn."""
        if self.mark(session.link) is not None:
            self._runtime.schedule_turn()

    def mark_held(self) -> None:
        """Look again at the connections that are not read: the journal has caught up."""
        self._due.update(self._held)

    def flush(self) -> None:
        """Write to the connections that are due, and close, hold or cut off those that must be."""
        dirty, self._due = self._due, {}
        limits = self._machine.limits
        for connection in dirty:
            if connection.closed:
                continue
            session, wire = connection.session, connection.wire
            if (waiting := session.input_bytes + connection.collected) > SMALL or connection.upload is not None:
                self._note_input(connection, waiting)
            if session.closing is not None and connection.link.open:
                self._hang_up(connection)
            if session.out:
                out = session.out
                session.out = []
                connection.sent += len(out)
                wire.send(out)
            backlog = wire.buffered if connection.stuck else 0
            if backlog or connection.unread_bytes:
                self.outboxes.note(connection, connection.unread())
            if backlog > limits.outbox_hard_max:
                self.cut(connection, backlog, "outbox_hard_max")
                continue
            if session.closing is not None:
                if not session.answers or session.closing == FAILED:  # what was asked before is answered first
                    self._close(connection, session.closing)
                continue
            hold = (
                backlog > limits.outbox_max
                or len(session.answers) > limits.answers_max
                or self._runtime.commit_log.undecided > limits.undecided_max
                or self._runtime.is_behind
            )
            if hold != connection.held:
                connection.held = hold
                wire.hold(hold)
                if hold:
                    self._held[connection] = None
                else:
                    self._held.pop(connection, None)
            if not connection.stuck:
                link = connection.link
                link.room = limits.outbox_max // connection.shares
                if link.stalled:
                    now = self._scheduler.now()
                    self._machine.writable(now, link)
                    self._runtime.apply(now)

    def _note_input(self, connection: Connection, size: int) -> None:
        """What a peer has sent that waits."""
        upload = connection.upload
        if upload is None:
            abort = partial(self._cut_sender, connection)
            upload = connection.upload = Upload(connection.reader_name, connection.party, abort)
        upload.size = size if size > SMALL else 0
        self.inputs.note(upload, upload.size)
        if not upload.size:
            connection.upload = None

    def _cut_sender(self, connection: Connection) -> None:
        """All peers together have sent too much, and this one sent most."""
        connection.wire.abort()
        self.lost(connection, (1008, "QuotaExceeded: `limits.input_total_max`"))

    def _close(self, connection: Connection, why: tuple[int, str]) -> None:
        """Close a connection. What its peer has not read counts until the wire is empty."""
        if (size := connection.wire.buffered) > self._machine.limits.outbox_max:
            self.cut(connection, size, "outbox_max")
            return
        connection.wire.close(*why)
        self.lost(connection)
        self.outboxes.note(connection, connection.unread())

    def cut(self, connection: Connection, size: int, bound: str) -> None:
        """Disconnect a peer that does not read; nothing that it holds is kept."""
        self.slow_cut += 1
        now = self._scheduler.now()
        self.last_cut = (now.wall_us, f"slow reader {connection.reader_name} was cut off with {size} bytes unread")
        self._machine.note_cut(now, connection.link, size, bound)
        connection.wire.abort()
        self.lost(connection, (1008, f"SlowReader: {size} bytes unread"))
        self._log("conn.slow", link=connection.link.no, peer=connection.peer, bytes=size, bound=f"limits.{bound}")

    def _hang_up(self, connection: Connection) -> None:
        """A connection is about to close: stop its deliveries and end its pulls."""
        now = self._scheduler.now()
        link = connection.link
        for consumer in [consumer for consumer in link.consumers if consumer.pull]:
            end_pull(self._machine, now, consumer)
        self._machine.disconnect(now, link)
        self._runtime.apply(now)

    def all(self) -> list[Connection]:
        """Every peer, as of now."""
        return list(self._connections.values())

    def dismiss(self, connection: Connection, refusal: Refusal) -> None:
        """Close a connection with a reason, after answers that are still due."""
        connection.session.drain(refusal)
        self.touch(connection)

    def drain(self, refusal: Refusal) -> None:
        """Close every connection with a reason, after answers that are still due."""
        for connection in self.all():
            connection.session.drain(refusal)
            self._due[connection] = None
        self.flush()
