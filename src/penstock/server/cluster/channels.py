"""Channels: the part of a link between two nodes that is about one shard, each like a link of its own.

The front opens a channel at the node that it thinks owns a shard. The owner says `ready`, and from then on the legs and requests of that
shard travel in it; when the shard leaves the node, the channel has ended, and all in it is lost as with a process that is gone. So what is
sent to a node that does not own a shard reaches no cell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

from penstock.server.cells.hosted_link import HostedLink
from penstock.server.cells.messages import CellRequest, FromCell, ToCell


class ChannelOpened(msgspec.Struct, tag="channel", array_like=True):
    """The front wants to reach a shard."""

    no: int
    shard: int


class ChannelClosed(msgspec.Struct, tag="leave", array_like=True):
    """The front has found another owner."""

    no: int


class ToShard(msgspec.Struct, tag="to", array_like=True):
    no: int
    message: ToCell


class ChannelReady(msgspec.Struct, tag="ready", array_like=True):
    no: int


class ChannelEnding(msgspec.Struct, tag="ending", array_like=True):
    """The shard is about to leave this node: new requests wait for its next owner."""

    no: int


class ChannelEnded(msgspec.Struct, tag="gone", array_like=True):
    """The shard is not at this node, or not any more."""

    no: int


class FromShard(msgspec.Struct, tag="from", array_like=True):
    no: int
    message: FromCell


ToNode: TypeAlias = ChannelOpened | ChannelClosed | ToShard
FromNode: TypeAlias = ChannelReady | ChannelEnding | ChannelEnded | FromShard


class NodeLink(Protocol):
    """A link between two nodes: `CellLink` over a pipe, or `LocalLink`."""

    received: Callable[[Any], None]
    lost: Callable[[], None]
    congested: Callable[[bool], None]
    is_over: bool

    def post(self, message: Any, size: int = 0) -> None: ...

    def close(self) -> None: ...


class LocalLink:
    """One end of a link within a process: messages are passed as they are, in order, on the next turn."""

    def __init__(self) -> None:
        self.received: Callable[[Any], None] = lambda message: None
        self.lost: Callable[[], None] = lambda: None
        self.congested: Callable[[bool], None] = lambda on: None
        self.is_over = False
        self.other: LocalLink

    @staticmethod
    def pair() -> tuple[LocalLink, LocalLink]:
        one, other = LocalLink(), LocalLink()
        one.other, other.other = other, one
        return one, other

    def post(self, message: Any, size: int = 0) -> None:
        asyncio.get_running_loop().call_soon(self.other._arrived, message)

    def _arrived(self, message: Any) -> None:
        if not self.is_over:
            self.received(message)

    def close(self) -> None:
        self.is_over = self.other.is_over = True


class ShardChannel:
    """The front's end of a channel: what `ProcessLegs` takes for a link."""

    def __init__(self, link: NodeLink, no: int, shard: int, node: str) -> None:
        self._link = link
        self.no = no
        self.shard = shard
        self.node = node
        self.ready: Callable[[], None] = lambda: None
        self.ending: Callable[[], None] = lambda: None
        self.received: Callable[[Any], None] = lambda message: None
        self.lost: Callable[[], None] = lambda: None
        self.congested: Callable[[bool], None] = lambda on: None

    def post(self, message: Any, size: int = 0) -> None:
        self._link.post(ToShard(self.no, message), size)

    def close(self) -> None:
        self._link.post(ChannelClosed(self.no))


class HostedShard(Protocol):
    """A shard that may be at this node."""

    @property
    def is_open(self) -> bool:
        """Whether it lets fronts in."""

    @property
    def may_serve(self) -> bool:
        """Whether its lease is held."""

    def host(self, gate: Gate) -> HostedLink:
        """The legs and requests of one front."""

    def left(self, gate: Gate) -> None:
        """A front has gone."""


class Gate:
    """The way out of a cell to one front: nothing passes without a lease, and what has waited passes when the lease is held again.

    While it waits no other node can own the shard, or the lease would not come back: then all of it is dropped.
    """

    def __init__(self, link: NodeLink, no: int, shard: HostedShard, ended: Callable[[], object]) -> None:
        """`ended` is called when the shard leaves: what holds the gate then lets go of it, and of the cell behind it."""
        self._link = link
        self.no = no
        self._shard = shard
        self._ended = ended
        self._held: list[tuple[Any, int]] = []
        self.hosted = shard.host(self)
        self._is_ending = False
        """Whether the shard takes nothing new, because it moves."""
        self._is_over = False

    def post(self, message: FromCell, size: int) -> None:
        if not self._is_over:
            self._held.append((message, size))
            self.flush()

    def flush(self) -> None:
        if not self._held or not self._shard.may_serve:
            return
        held, self._held = self._held, []
        for message, size in held:
            self._link.post(FromShard(self.no, message), size)

    def received(self, message: ToCell) -> None:
        if not self._is_ending:
            self.hosted.received(message)
        elif isinstance(message, CellRequest) and not self._is_over:
            self.hosted.refuse(message)

    def begin_end(self) -> None:
        """The shard moves: it takes nothing new."""
        self._is_ending = True
        self._link.post(ChannelEnding(self.no))

    def end(self) -> None:
        """The shard is not here any more: requests get an answer, and legs end with the channel."""
        self._is_ending = self._is_over = True
        self._held.clear()
        for answer in self.hosted.end_requests():
            self._link.post(FromShard(self.no, answer))
        self._link.post(ChannelEnded(self.no))
        self._ended()


class ChannelHost:
    """The host's end of a link: its channels."""

    def __init__(self, link: NodeLink, shards: Callable[[int], HostedShard | None]) -> None:
        self._link = link
        self._shards = shards
        self._gates: dict[int, tuple[HostedShard, Gate]] = {}
        link.received, link.lost = self.received, self.close

    def received(self, message: ToNode) -> None:
        if isinstance(message, ToShard):
            found = self._gates.get(message.no)
            if found is not None:
                found[1].received(message.message)
        elif isinstance(message, ChannelOpened):
            self._open(message)
        elif (found := self._gates.pop(message.no, None)) is not None:
            found[1].hosted.close()
            found[0].left(found[1])

    def _open(self, asked: ChannelOpened) -> None:
        shard = self._shards(asked.shard)
        if shard is None or not shard.is_open or asked.no in self._gates:
            self._link.post(ChannelEnded(asked.no))
            return
        gate = Gate(self._link, asked.no, shard, lambda: self._gates.pop(asked.no, None))
        self._gates[asked.no] = (shard, gate)
        self._link.post(ChannelReady(asked.no))

    def close(self) -> None:
        """The front is gone."""
        gates, self._gates = self._gates, {}
        for shard, gate in gates.values():
            gate.hosted.close()
            shard.left(gate)
