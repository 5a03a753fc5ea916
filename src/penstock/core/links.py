"""Who is connected, and what they take: a link is a connection, a consumer one subscription or pull on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.scopes import Principal

if TYPE_CHECKING:
    from penstock.core.queue.channel import Channel
    from penstock.core.queue.taps import Tap
    from penstock.core.records import Record


class Link:
    """One peer's connection, as far as a machine is concerned."""

    __slots__ = ("address", "consumers", "no", "open", "principal", "room", "session", "stalled", "taps")

    def __init__(self, no: int, principal: Principal, session: Any, room: int) -> None:
        self.no = no
        self.principal = principal
        """Who speaks; replaced when a hello brings a token."""
        self.session = session
        """The dialect's object for this connection: opaque here."""
        self.room = room
        """Bytes that may still be handed over before the peer must read."""
        self.stalled = False
        """A consumer wanted more than there was room for."""
        self.open = True
        self.address = ""
        """Where the peer is, as far as rates are concerned."""
        self.consumers: list[Consumer] = []
        self.taps: dict[str, Tap] = {}
        """The channels it only looks at, by name."""


class Consumer:
    """A subscription or a pull: its credit, and the leases it holds."""

    __slots__ = (
        "auto",
        "batch",
        "channel",
        "credit",
        "delivered",
        "expiry_wanted",
        "granted",
        "label",
        "lease_us",
        "leases",
        "link",
        "no",
        "pull",
        "ringed",
        "tag",
        "ticket",
    )

    def __init__(self, no: int, channel: Channel, link: Link, lease_us: int) -> None:
        self.no = no
        self.channel = channel
        self.link = link
        self.lease_us = lease_us
        self.label = ""
        """The client's name for it, in its own protocol."""
        self.tag: Any = None
        """What the dialect wants to keep with it."""
        self.credit = 0
        self.granted = 0
        self.delivered = 0
        self.auto = 0
        """Credit that the server keeps up by itself; 0 leaves it to the client."""
        self.batch = 1
        self.expiry_wanted = False
        self.pull = False
        """Ends with its first delivery; its leases outlive the connection."""
        self.ringed = False
        """In its channel's ring of consumers that can take more."""
        self.ticket = 0
        self.leases: dict[int, Record] = {}

    @property
    def holder_name(self) -> str:
        """Who holds its leases, for people: the agent or token, and which connection."""
        who = self.link.principal
        kind = "pull" if self.pull else "link"
        return f"{who.agent or who.name} ({kind} {self.link.no})"
