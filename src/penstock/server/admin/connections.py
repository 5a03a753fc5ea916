"""`/v1/connections`: who is connected, from where, how far behind, and closing a connection; `/v1/relay/topics`: the token streams.

Topics are listed by the hashes of their names, never by name.
"""

from __future__ import annotations

from heapq import nlargest
from typing import Annotated, Any, Literal

import msgspec

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.scopes import UNAUTHENTICATED, Principal
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.dialects.courier.sessions.live import LiveSession
from penstock.dialects.courier.sessions.pull import PullSession
from penstock.dialects.courier.sessions.subscribe import SubscribeSession
from penstock.dialects.mew.session import MewSession
from penstock.server.admin.journal import Count
from penstock.server.engine.connections import Connection
from penstock.server.engine.runtime import Runtime
from penstock.server.logging import logs
from penstock.server.relay.supervisor import RelaySupervisor
from penstock.server.relay.websocket_hub import RelaySession

ROWS_MAX = 500
"""Connections of one answer; `more` counts the rest."""
STREAMS_MAX = 10
"""Streams that a row names; `subscriptions` counts all."""
CLOSED = Refusal("ConnectionClosed", "the operator closed this connection")

Door = Literal["control", "subscribe", "live", "space", "token stream", "pull"]
_DOORS: dict[type, Door] = {
    ControlSession: "control", SubscribeSession: "subscribe", LiveSession: "live", MewSession: "space",
    RelaySession: "token stream", PullSession: "pull",
}  # fmt: skip
"""Doors by session. Other sessions are workers of the server, which are not listed."""


class ConnectionsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `/v1/connections`."""

    text: str = ""
    """Only connections whose agent, token or peer contains it."""


class ConnectionRow(msgspec.Struct, rename="camel"):
    """One connection."""

    link: Count
    agent: str
    """The agent: the one of its token, the one it says it is, or the name of its token."""
    token: str
    peer: str
    door: Door
    open_ms: Count
    streams: list[str]
    subscriptions: Count
    delivered: Count
    """Envelopes that its present subscriptions have received; messages at the doors without subscriptions."""
    inflight: Count
    credit: Count
    lag: Annotated[int, msgspec.Meta(ge=0, description="Envelopes that are ready in its streams")]
    unread_bytes: Count
    slow: Annotated[bool, msgspec.Meta(description="Whether the peer does not read what it is sent")]


class ConnectionsReply(msgspec.Struct):
    """The connections, slow readers first, then those that have received most."""

    connections: list[ConnectionRow]
    more: Count


class ClosedReply(msgspec.Struct):
    """A connection that is being closed."""

    link: Count


def list_connections(runtime: Runtime, now: Now, query: ConnectionsQuery) -> ConnectionsReply:
    """Connections with this text in their agent, token or peer."""
    found = [one for one in _peers(runtime) if query.text in f"{one.link.who}\n{one.link.principal.name}\n{one.peer}"]
    first = nlargest(ROWS_MAX, found, key=lambda one: (one.unread(), _delivered(one)))
    return ConnectionsReply([_row(one, now) for one in first], len(found) - len(first))


def close(runtime: Runtime, principal: Principal, link: str) -> ClosedReply | Refusal:
    """Close a connection; its leases return to their streams. A peer that does not read gets no reason."""
    found = next((one for one in _peers(runtime) if str(one.link.no) == link), None)
    if found is None:
        return Refusal("UnknownConnection", f"there is no connection `{link[:20]}`", ref=link[:20])
    logs.event("conn.closed_by", link=found.link.no, peer=found.peer, who=found.link.who, by=principal.name)
    if found.stuck:
        found.wire.abort()
        runtime.peers.lost(found, (1008, CLOSED.code))
    else:
        runtime.peers.dismiss(found, CLOSED)
    return ClosedReply(found.link.no)


def _peers(runtime: Runtime) -> list[Connection]:
    return [one for one in runtime.peers.all() if isinstance(one.session, tuple(_DOORS))]


def _delivered(connection: Connection) -> int:
    if isinstance(connection.session, MewSession | RelaySession | LiveSession):
        return connection.sent
    return sum(consumer.delivered for consumer in connection.link.consumers)


def _row(connection: Connection, now: Now) -> ConnectionRow:
    link, consumers = connection.link, connection.link.consumers
    channels = {consumer.channel.name: consumer.channel for consumer in consumers}
    return ConnectionRow(
        link=link.no,
        agent=link.who,
        token="" if link.principal is UNAUTHENTICATED else link.principal.name,
        peer=connection.peer,
        door=next(door for kind, door in _DOORS.items() if isinstance(connection.session, kind)),
        open_ms=(now.us - connection.opened_us) // 1_000,
        streams=[*channels][:STREAMS_MAX],
        subscriptions=len(consumers),
        delivered=_delivered(connection),
        inflight=sum(len(consumer.leases) for consumer in consumers),
        credit=sum(consumer.credit for consumer in consumers),
        lag=sum(channel.depth for channel in channels.values()),
        unread_bytes=connection.unread(),
        slow=connection.stuck,
    )


TOPICS_MAX = 500
"""Topics of one answer; `more` counts the rest."""


class RelayTopic(msgspec.Struct):
    """Figures of one topic."""

    topic: Annotated[str, msgspec.Meta(description="The hash of its name")]
    messages: Count
    bytes: Count
    subscribers: Count
    waiting: Count
    held: Count


class RelayTopicsReply(msgspec.Struct):
    """The busiest topics, and the sums of all."""

    running: bool
    topics: list[RelayTopic]
    more: Count
    totals: dict[str, Count]


def list_topics(relay: RelaySupervisor | None) -> RelayTopicsReply:
    """Topics, those with most messages first, and the sums of all."""
    if relay is None:
        return RelayTopicsReply(running=False, topics=[], more=0, totals={})
    busiest = nlargest(TOPICS_MAX, relay.topics.items(), key=lambda item: item[1].messages)
    figures = relay.figures
    totals: dict[str, Any] = {}
    if figures is not None:
        totals = {**msgspec.structs.asdict(figures.totals), "topics": figures.topics, "held_bytes": figures.bytes}
    return RelayTopicsReply(
        running=relay.is_up,
        topics=[RelayTopic(topic, **msgspec.structs.asdict(each)) for topic, each in busiest],
        more=len(relay.topics) - len(busiest),
        totals=totals,
    )
