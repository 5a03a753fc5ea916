"""The front's way to the owner of each shard: channels follow the map, and requests wait, are asked again or say that they are unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.core.errors import Refusal
from penstock.core.scopes import ANONYMOUS
from penstock.server.cells import remote_legs
from penstock.server.cells.messages import CellAnswer, CellRequest
from penstock.server.cluster.channels import (
    ChannelClosed,
    ChannelEnded,
    ChannelEnding,
    ChannelOpened,
    ChannelReady,
    FromShard,
    LocalLink,
    ToShard,
)
from penstock.server.cluster.routes import Routes


def request() -> CellRequest:
    return CellRequest(0, 1, "stats", (), {}, "peer", ANONYMOUS, b"", False)


class Peer:
    """A node at the other end of a link, which this test plays."""

    def __init__(self, routes: Routes, name: str) -> None:
        here, self.link = LocalLink.pair()
        self.got: asyncio.Queue[Any] = asyncio.Queue()
        self.link.received = self.got.put_nowait
        routes.attach(name, here)
        self.here = here

    async def next(self, kind: type[Any]) -> Any:
        async with asyncio.timeout(30):
            message = await self.got.get()
        assert isinstance(message, kind), message
        return message


def run(work: Any) -> None:
    asyncio.run(work())


def test_channels_follow_the_map() -> None:
    async def talk() -> None:
        wanted: list[str] = []
        routes = Routes(2, wanted.append)
        a, b = Peer(routes, "a"), Peer(routes, "b")
        routes.own([None, "a"])
        opened = await a.next(ChannelOpened)
        assert opened.shard == 1
        a.link.post(ChannelReady(opened.no))
        legs = routes.legs[1]
        asking = asyncio.create_task(legs.ask(request()))
        asked = await a.next(ToShard)
        a.link.post(FromShard(opened.no, CellAnswer(asked.message.no, b"1")))
        assert await asking == b"1"
        under_way = asyncio.create_task(legs.ask(request()))
        await a.next(ToShard)
        routes.own([None, "b"])
        assert (await a.next(ChannelClosed)).no == opened.no
        said = await under_way
        assert isinstance(said, Refusal) and "not known" in said.message
        again = await b.next(ChannelOpened)
        b.link.post(ChannelReady(again.no))
        asking = asyncio.create_task(legs.ask(request()))
        asked = await b.next(ToShard)
        b.link.post(FromShard(again.no, CellAnswer(asked.message.no, b"", Refusal("UnknownStream", "no"))))
        assert (await asking).code == "UnknownStream"  # type: ignore[union-attr]
        routes.own([None, "c"])
        assert wanted[:1] == ["c"]
        routes.close()

    run(talk)


def test_a_request_of_a_shard_that_moves_is_asked_again() -> None:
    async def talk() -> None:
        routes = Routes(2, lambda node: None)
        a, b = Peer(routes, "a"), Peer(routes, "b")
        routes.own([None, "a"])
        one = await a.next(ChannelOpened)
        a.link.post(ChannelReady(one.no))
        asking = asyncio.create_task(routes.legs[1].ask(request()))
        asked = await a.next(ToShard)
        a.link.post(ChannelEnding(one.no))
        a.link.post(FromShard(one.no, CellAnswer(asked.message.no, b"", Refusal("Unreachable", "moves"), True)))
        a.link.post(ChannelEnded(one.no))
        await asyncio.sleep(0)
        routes.own([None, "b"])
        other = await b.next(ChannelOpened)
        b.link.post(ChannelReady(other.no))
        asked = await b.next(ToShard)
        b.link.post(FromShard(other.no, CellAnswer(asked.message.no, b"2")))
        assert await asking == b"2"
        routes.close()

    run(talk)


def test_a_node_that_has_not_the_shard_is_asked_again() -> None:
    async def talk() -> None:
        routes = Routes(2, lambda node: None)
        a = Peer(routes, "a")
        routes.own([None, "a"])
        a.link.post(ChannelEnded((await a.next(ChannelOpened)).no))
        assert (await a.next(ChannelOpened)).shard == 1
        a.here.lost()
        assert (await a.next(ChannelOpened)).shard == 1
        routes.close()

    run(talk)


def test_without_an_owner_a_request_is_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_legs, "DOWN_MAX_S", 0.01)

    async def talk() -> None:
        routes = Routes(2, lambda node: None)
        said = await routes.legs[1].ask(request())
        assert isinstance(said, Refusal)
        assert (said.code, said.retry_after_ms) == ("Unreachable", 1_000)

    run(talk)
