"""The links of a node to the others, over pipes of NATS, and to itself, and what hosts the shards at their ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from penstock.journal.replicated.jetstream import FAILURES
from penstock.server.cells.link import CellLink
from penstock.server.cluster.channels import ChannelHost, FromNode, HostedShard, LocalLink, ToNode
from penstock.server.cluster.join import Joined
from penstock.server.cluster.pipes import NodePipe, Pipes
from penstock.server.cluster.routes import Routes

OUTBOX_MAX = 4_096
"""Frames for other nodes that wait to be published; more ends the pipes they belong to."""


CLOSE_S = 1.0
"""How long a node that ends may take to publish its last frames."""


class NodeLinks:
    """The links of one node."""

    def __init__(
        self, cluster: str, node: str, joined: Joined, routes: Routes, shards: Callable[[int], HostedShard | None]
    ) -> None:
        self._node = node
        self._client = joined.client
        self._routes = routes
        self._shards = shards
        secret = bytes.fromhex(joined.settings.secret)
        self.pipes = Pipes(
            cluster, node, secret, self._publish, entropy=os.urandom, opened=self._opened, accepted=self._accepted
        )
        self._outbox: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(OUTBOX_MAX)
        self.frames_dropped = 0
        """Frames that could not be published; the numbers of their pipes then have a gap."""

    async def start(self) -> None:
        """Listen for other nodes, and link this node with itself."""

        async def received(message: Any) -> None:
            self.pipes.received(message.data)

        await self._client.subscribe(self.pipes.subject(self._node), cb=received)
        here, there = LocalLink.pair()
        ChannelHost(there, self._shards)
        self._routes.attach(self._node, here)

    def _publish(self, subject: str, data: bytes) -> None:
        try:
            self._outbox.put_nowait((subject, data))
        except asyncio.QueueFull:
            self.frames_dropped += 1

    async def send(self) -> None:
        """Publish frames in their order, until it is cancelled."""
        while True:
            await self._send(*await self._outbox.get())

    async def _send(self, subject: str, data: bytes) -> None:
        try:
            await self._client.publish(subject, data)
        except FAILURES:
            self.frames_dropped += 1

    async def close(self) -> None:
        """End every pipe, behind the end of `send`, and publish what is left, so that the other nodes do not wait for a pipe that is silent."""
        self.pipes.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                while not self._outbox.empty():
                    await self._send(*self._outbox.get_nowait())
        except TimeoutError:
            self.frames_dropped += self._outbox.qsize()

    def connect(self, node: str) -> None:
        """Begin a pipe to another node."""
        if node != self._node:
            self.pipes.open(node)

    def _opened(self, node: str, pipe: NodePipe) -> None:
        link: CellLink[FromNode] = CellLink(FromNode)
        _carry(link, pipe)
        self._routes.attach(node, link)

    def _accepted(self, node: str, pipe: NodePipe) -> None:
        link: CellLink[ToNode] = CellLink(ToNode)
        _carry(link, pipe)
        ChannelHost(link, self._shards)  # the link holds it


def _carry(link: CellLink[Any], pipe: NodePipe) -> None:
    transport: Any = pipe  # it has what a link uses of a transport
    pipe.link = link
    link.connection_made(transport)
