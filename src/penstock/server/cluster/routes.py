"""The front of a node: for each shard the way to its owner, by the map of owners.

Legs and requests of a shard without an owner, or whose owner cannot be reached, wait as they do for a process of cells that is down. A
request that was under way when its shard moved is asked again where that is safe; else its client learns that the outcome is not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.core.errors import Refusal
from penstock.server.cells.messages import CellAnswer, CellRequest
from penstock.server.cells.remote_legs import DOWN_MAX_S, ProcessLegs
from penstock.server.cluster.channels import (
    ChannelClosed,
    ChannelEnded,
    ChannelEnding,
    ChannelOpened,
    ChannelReady,
    FromNode,
    FromShard,
    NodeLink,
    ShardChannel,
)

RETRY_S = 0.1
"""Pause before a node is asked again for a shard that it did not have."""


class ShardLegs(ProcessLegs):
    """The legs and requests at one shard, wherever it is."""

    lost = (1012, "Moved")

    def __init__(self, shard: int) -> None:
        super().__init__(shard, (shard,))
        self.shard = shard

    def down(self, shard: int) -> Refusal:
        return Refusal("Unreachable", f"shard {shard} has no owner that can be reached", retry_after_ms=1_000)

    def unknown(self) -> Refusal:
        message = f"shard {self.shard} has moved, and what became of the request is not known"
        return Refusal("Unreachable", message, retry_after_ms=1_000)

    async def ask(self, asked: CellRequest) -> bytes | Refusal:
        """Have the owner carry out a request; while the shard moves, its next owner."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + DOWN_MAX_S
        while True:
            answer = await self.ask_once(asked)
            if isinstance(answer, CellAnswer) and answer.is_untouched and loop.time() < until_s:
                await asyncio.sleep(RETRY_S)
                continue
            if isinstance(answer, Refusal):
                return answer
            return answer.body if answer.refusal is None else answer.refusal


class PeerRoute:
    """The channels to one node."""

    def __init__(self, node: str, link: NodeLink, changed: Callable[[], None]) -> None:
        self.node = node
        self.link = link
        self._changed = changed
        self._no = 0
        self.channels: dict[int, ShardChannel] = {}
        """By number."""
        link.received, link.lost, link.congested = self._received, self._lost, self._congested

    def open(self, shard: int) -> ShardChannel:
        self._no += 1
        channel = self.channels[self._no] = ShardChannel(self.link, self._no, shard, self.node)
        self.link.post(ChannelOpened(self._no, shard))
        return channel

    def leave(self, channel: ShardChannel) -> None:
        """The shard is elsewhere."""
        if self.channels.pop(channel.no, None) is not None:
            self.link.post(ChannelClosed(channel.no))
            channel.lost()

    def _received(self, message: FromNode) -> None:
        channel = self.channels.get(message.no)
        if channel is None:
            return
        if isinstance(message, FromShard):
            channel.received(message.message)
        elif isinstance(message, ChannelReady):
            channel.ready()
        elif isinstance(message, ChannelEnding):
            channel.ending()
        else:
            assert isinstance(message, ChannelEnded)
            del self.channels[message.no]
            channel.lost()
            self._changed()

    def _lost(self) -> None:
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.lost()
        self._changed()

    def _congested(self, on: bool) -> None:
        for channel in list(self.channels.values()):
            channel.congested(on)


class Routes:
    """Attaches the legs of each shard to a channel at its owner."""

    def __init__(self, shards: int, connect: Callable[[str], None]) -> None:
        """`connect` begins a pipe to a node; `attach` gets its link."""
        self.legs = [ShardLegs(shard) for shard in range(shards)]
        self._owners: list[str | None] = [None] * shards
        self._connect = connect
        self._peers: dict[str, PeerRoute] = {}
        self._channels: dict[int, ShardChannel] = {}
        """By shard."""
        self._retry: asyncio.TimerHandle | None = None
        self.is_closed = False

    def attach(self, node: str, link: NodeLink) -> None:
        """There is a link to a node."""
        before = self._peers.pop(node, None)
        self._peers[node] = PeerRoute(node, link, self._again)
        if before is not None:
            before.link.close()
        self.route()

    def own(self, owners: list[str | None]) -> None:
        """The map of owners, as far as they serve."""
        self._owners = owners
        self.route()

    def _again(self) -> None:
        if self._retry is None and not self.is_closed:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._route_again)

    def _route_again(self) -> None:
        self._retry = None
        self.route()

    def route(self) -> None:
        """Bring every shard to its owner."""
        for shard, owner in enumerate(self._owners):
            channel = self._channels.get(shard)
            if channel is not None and channel.node != owner and owner is not None:
                self._peers[channel.node].leave(channel)
                channel = None
            if channel is None and owner is not None:
                self._reach(shard, owner)

    def _reach(self, shard: int, owner: str) -> None:
        peer = self._peers.get(owner)
        if peer is None or peer.link.is_over:
            self._peers.pop(owner, None)
            self._connect(owner)
            self._again()
            return
        legs = self.legs[shard]
        channel = self._channels[shard] = peer.open(shard)

        def forget() -> None:
            if self._channels.get(shard) is channel:
                del self._channels[shard]

        def ready() -> None:
            link: Any = channel  # it has what the legs use of a link
            legs.attach(link, 0)
            end_legs = channel.lost

            def lost() -> None:
                forget()
                end_legs()

            channel.lost = lost

        channel.lost = forget
        channel.ready = ready
        channel.ending = legs.is_up.clear

    def close(self) -> None:
        self.is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        for peer in self._peers.values():
            peer.link.close()
