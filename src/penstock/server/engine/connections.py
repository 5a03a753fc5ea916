"""Ports of the runtime: the scheduler, connections and their wires.

`transports.transport` has the real wires and `schedulers.py` the real schedulers; the simulator brings its own of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.links import Link, Session
from penstock.core.scopes import Principal

if TYPE_CHECKING:
    from penstock.server.engine.runtime import Runtime


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
        self._runtime.cut(self, size, "outbox_total_max")

    def received(self, data: bytes) -> None:
        self._runtime.received(self, data)

    def adopt(self, principal: Principal) -> bool:
        """Apply these rights to the peer's followers; False when they do not allow one of them."""
        return self._runtime.live.adopt(self.session, principal)

    def lost(self) -> None:
        self._runtime.lost(self)

    def gone(self, now: Now) -> None:
        """The runtime has removed the connection."""

    def congested(self, on: bool) -> None:
        self._runtime.congested(self, on)


class NoWire:
    """The wire of a session without a peer: a request that gets a reply, or a worker of the server."""

    buffered = 0

    def send(self, messages: list[bytes]) -> None: ...

    def hold(self, on: bool) -> None: ...

    def close(self, code: int, reason: str) -> None: ...

    def abort(self) -> None: ...
