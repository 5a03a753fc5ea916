"""The connection of a participant: frames skip the session, everything else goes through the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.core.clock import Now
from penstock.core.fanout.frame_router import MARK
from penstock.core.fanout.outbox import Outbox
from penstock.dialects.mew.session import MewSession
from penstock.server.engine.connections import Connection

if TYPE_CHECKING:
    from penstock.server.spaces.host import Spaces


class Sink(Protocol):
    """A participant without a connection, such as a file."""

    def taken(self, now: Now, outbox: Outbox) -> None:
        """There is something in its outbox."""


class SpaceConnection(Connection):
    """A participant's WebSocket. Frames bypass the session's parser, because they are most of the traffic."""

    __slots__ = ("spaces",)

    session: MewSession
    spaces: Spaces

    def received(self, data: bytes) -> None:
        if self.closed:
            return
        session = self.session
        session.is_alive = True
        spaces = self.spaces
        if data and data[0] == MARK and session.publish(data):
            if not spaces.is_turn_due:
                spaces.schedule_turn()
            return
        spaces.schedule_turn()
        self._runtime.received(self, data)

    def pong_received(self) -> None:
        """The peer has answered a ping."""
        self.session.is_alive = True

    def congested(self, on: bool) -> None:
        outbox = self.session.outbox
        outbox.stuck = on
        if not on and outbox:
            self.spaces.waiting[outbox] = None
            self.spaces.schedule_turn()
        super().congested(on)

    @property
    def party(self) -> tuple[bool, str]:
        space, who = self.session.space, self.session.participant
        return super().party if space is None or who is None else (False, f"{who.party} of space {space.id}")

    def unread(self) -> int:
        return super().unread() + self.session.outbox.size

    def cut(self, size: int) -> None:
        if self.session.space is not None:
            self.session.space.slow_cut += 1
        super().cut(size)

    def gone(self, now: Now) -> None:
        self.session.left(now, "disconnected")
        self.spaces.sessions.pop(self.session, None)
        self.spaces.schedule_turn()
        if self.session.closing is not None:
            code, reason = self.session.closing
            self.spaces.log("space.ended", link=self.link.no, peer=self.peer, code=code, reason=reason)
