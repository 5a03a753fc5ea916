"""The links of a node: frames are published in their order, and dropped when the servers do not take them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from nats.errors import OutboundBufferLimitError

from penstock.journal.replicated.cluster_keys import ClusterSettings
from penstock.server.cluster.channels import ChannelEnded, ChannelOpened
from penstock.server.cluster.join import Joined
from penstock.server.cluster.node_links import OUTBOX_MAX, NodeLinks
from penstock.server.cluster.routes import Routes


class Bus:
    """What NATS is to links: subjects with one subscriber each."""

    def __init__(self) -> None:
        self.subscribers: dict[str, Callable[[Any], Coroutine[Any, Any, None]]] = {}
        self.is_full = False

    async def subscribe(self, subject: str, cb: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        self.subscribers[subject] = cb

    async def publish(self, subject: str, data: bytes) -> None:
        if self.is_full:
            raise OutboundBufferLimitError
        message = type("Message", (), {"data": data})
        await self.subscribers[subject](message)


def links(bus: Any, name: str) -> tuple[NodeLinks, Routes]:
    found: list[NodeLinks] = []

    def connect(node: str) -> None:
        found[0].connect(node)

    routes = Routes(2, connect)
    joined = Joined(bus, None, ClusterSettings("00" * 32, ""), None, None)  # type: ignore[arg-type]  # not used here
    found.append(NodeLinks("shop", name, joined, routes, lambda shard: None))
    return found[0], routes


def test_nodes_find_each_other_over_their_subjects() -> None:
    async def talk() -> None:
        bus = Bus()
        a, routes = links(bus, "a")
        b, _ = links(bus, "b")
        for one in (a, b):
            await one.start()
        tasks = [asyncio.create_task(one.send()) for one in (a, b)]
        routes.own(["b", "a"])
        async with asyncio.timeout(30):
            while "b" not in routes._peers:  # noqa: ASYNC110  # a few turns
                await asyncio.sleep(0)
        peer = routes._peers["b"]
        got: asyncio.Queue[Any] = asyncio.Queue()
        received = peer.link.received
        peer.link.received = lambda message: (got.put_nowait(message), received(message))[1]
        peer.link.post(ChannelOpened(99, 1))
        async with asyncio.timeout(30):
            while await got.get() != ChannelEnded(99):
                pass
        assert set(bus.subscribers) == {"pen.shop.node.a", "pen.shop.node.b"}
        routes.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(talk())


def test_frames_that_cannot_be_published_are_counted() -> None:
    async def talk() -> None:
        bus = Bus()
        bus.is_full = True
        a, _ = links(bus, "a")
        for _ in range(OUTBOX_MAX + 3):
            a._publish("pen.shop.node.b", b"x")
        assert a.frames_dropped == 3
        task = asyncio.create_task(a.send())
        async with asyncio.timeout(30):
            while a.frames_dropped < OUTBOX_MAX + 3:  # noqa: ASYNC110  # a few turns
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(talk())


def test_a_node_that_ends_says_so_to_the_others() -> None:
    async def talk() -> None:
        bus = Bus()
        (a, routes), (b, _) = links(bus, "a"), links(bus, "b")
        for one in (a, b):
            await one.start()
        tasks = [asyncio.create_task(one.send()) for one in (a, b)]
        routes.own(["b", "b"])
        async with asyncio.timeout(30):
            while "b" not in routes._peers or not b.pipes._pipes:  # noqa: ASYNC110  # a few turns
                await asyncio.sleep(0)
        [(_, there)] = b.pipes._pipes.values()
        tasks[0].cancel()  # as the node does before
        await asyncio.gather(tasks[0], return_exceptions=True)
        routes.close()
        assert not there.is_over
        await a.close()
        assert there.is_over
        assert a._outbox.empty()
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(talk())
