"""Channels: the way of one shard over a link, from the front to the cell and back."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.sessions.front.legs import LegHello
from penstock.server.cells.cell_requests import CellServices
from penstock.server.cells.hosted_link import HostedLink
from penstock.server.cells.messages import CellAnswer, CellRequest, FromCell, LegInput, LegOpened, LegOutput
from penstock.server.cluster.channels import (
    ChannelClosed,
    ChannelEnded,
    ChannelEnding,
    ChannelHost,
    ChannelOpened,
    ChannelReady,
    FromShard,
    Gate,
    LocalLink,
    ToNode,
    ToShard,
)
from penstock.server.config.load import Config
from tests.dialects.courier.talking import Broker

HELLO = LegHello(ANONYMOUS, "127.0.0.1", None, "-3")
PING = b'{"type":"ping","reqId":1}\n'


class Shard:
    """A shard at this node: `HostedShard`."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.is_open = True
        self.may_serve = True
        self.gates: list[Gate] = []

    def host(self, gate: Gate) -> HostedLink:
        self.gates.append(gate)
        services: Any = CellServices(Config(), self.broker.runtime, None)  # type: ignore[arg-type]  # not used here
        return HostedLink(gate.post, lambda shard: services)

    def left(self, gate: Gate) -> None:
        self.gates.remove(gate)


class Host:
    """The host's end of a link whose other end is this test."""

    def __init__(self) -> None:
        self.front, there = LocalLink.pair()
        self.shard = Shard()
        self.posted: list[Any] = []
        there.post = lambda message, size=0: self.posted.append(message)  # type: ignore[method-assign]
        self.host = ChannelHost(there, lambda shard: self.shard if shard == 3 else None)

    def say(self, *messages: ToNode) -> list[Any]:
        """What the host answers."""
        for message in messages:
            self.host.received(message)
            self.shard.broker.run()
        posted, self.posted = self.posted, []
        return posted


def test_a_leg_reaches_its_cell_in_a_channel() -> None:
    host = Host()
    assert host.say(ChannelOpened(1, 3)) == [ChannelReady(1)]
    said = host.say(ToShard(1, LegOpened(7, 3, HELLO)), ToShard(1, LegInput(7, PING)))
    assert [type(one.message) for one in said] == [LegOutput]
    assert len(host.shard.broker.runtime.peers) == 1
    assert host.say(ChannelClosed(1)) == []
    assert len(host.shard.broker.runtime.peers) == 0
    assert host.shard.gates == []
    assert host.say(ToShard(1, LegInput(7, PING))) == []


def test_a_shard_that_is_not_here_has_no_channel() -> None:
    host = Host()
    assert host.say(ChannelOpened(1, 4)) == [ChannelEnded(1)]
    host.shard.is_open = False
    assert host.say(ChannelOpened(2, 3)) == [ChannelEnded(2)]


def test_nothing_leaves_a_cell_without_its_lease() -> None:
    host = Host()
    host.say(ChannelOpened(1, 3), ToShard(1, LegOpened(7, 3, HELLO)))
    host.shard.may_serve = False
    assert host.say(ToShard(1, LegInput(7, PING))) == []
    (gate,) = host.shard.gates
    gate.flush()
    assert host.posted == []
    host.shard.may_serve = True
    gate.flush()
    assert [type(one.message) for one in host.posted] == [LegOutput]


def test_a_lost_link_ends_every_leg() -> None:
    host = Host()
    host.say(ChannelOpened(1, 3), ToShard(1, LegOpened(7, 3, HELLO)))
    host.host.close()
    assert (len(host.shard.broker.runtime.peers), host.shard.gates) == (0, [])


def test_requests_of_a_shard_that_moves_are_answered() -> None:
    async def talk() -> None:
        host = Host()
        host.say(ChannelOpened(1, 3))
        pull = CellRequest(5, 3, "pull", (), {}, "peer", ANONYMOUS, b'{"stream":"s","wait_ms":60000}', False)
        host.say(ToShard(1, pull))
        await asyncio.sleep(0)
        (gate,) = host.shard.gates
        gate.begin_end()
        late = CellRequest(6, 3, "enqueue", (), {}, "peer", ANONYMOUS, b"{}", False)
        ending, refused = host.say(ToShard(1, late))
        assert ending == ChannelEnding(1)
        assert untouched(refused) == (6, True)
        gate.end()
        waiting, ended = host.posted
        assert (untouched(waiting), ended) == ((5, True), ChannelEnded(1))

    asyncio.run(talk())


def test_a_shard_that_has_left_is_not_held() -> None:
    """A front that is refused at an end says nothing more about that channel."""

    async def talk() -> None:
        host = Host()
        for no in range(1, 6):
            assert host.say(ChannelOpened(no, 3)) == [ChannelReady(no)]
            gate = host.shard.gates.pop()
            gate.end()
            gate.hosted.close()
            assert host.posted.pop() == ChannelEnded(no)
        assert host.host._gates == {}
        assert host.say(ToShard(5, LegOpened(7, 3, HELLO)), ChannelClosed(5)) == []
        assert len(host.shard.broker.runtime.peers) == 0

    asyncio.run(talk())


def untouched(message: Any) -> tuple[int, bool]:
    assert isinstance(message, FromShard)
    answer: FromCell = message.message
    assert isinstance(answer, CellAnswer) and answer.refusal is not None
    return answer.no, answer.is_untouched


def test_messages_of_channels_can_be_sent() -> None:
    message = ToShard(1, LegInput(7, PING))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToNode) == message


def test_both_ends_of_a_local_link_keep_the_order() -> None:
    async def talk() -> None:
        one, other = LocalLink.pair()
        got: list[Any] = []
        other.received = got.append
        one.post(1)
        one.post(2)
        assert got == []
        await asyncio.sleep(0)
        assert got == [1, 2]
        one.post(3)
        one.close()
        await asyncio.sleep(0)
        assert (got, other.is_over) == ([1, 2], True)

    asyncio.run(talk())
