"""A bridge between kernel pipes and a control port: frames and lines, counts, bounds, and a server that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from penstock.client.address import Address, parse
from penstock.core.errors import PenstockError
from penstock.server.config.load import Config
from penstock.server.config.sections import AuthSection
from penstock.server.ops.kernel.bridge import HELD_MAX, Bridge
from penstock.transports.pipe_transports import PipeAddress, PipeTransport, listen
from tests.server.ops.kernel.piped import Peer, framed, run, said, serving

POLL_S = 0.005


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state that no frame announces."""
    while not condition():  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(POLL_S)


@asynccontextmanager
async def listening(bridge: Bridge, kind: str = "tcp") -> AsyncIterator[PipeAddress]:
    """Where a bridge serves pipes."""

    async def serve(channel: PipeTransport) -> None:
        await bridge.serve(channel)

    listener = await listen(PipeAddress(kind, "127.0.0.1", 0), serve, is_public=False)
    try:
        yield listener.address
    finally:
        await bridge.close()
        await listener.close()


def test_frames_are_counted_and_those_without_meaning_ignored():
    async def go():
        async with serving() as server, listening(bridge := Bridge(server.address)) as at:
            peer = await Peer.dial(at.port)
            peer.writer.write(framed("ping") + framed("close") + framed("resize", b"80x25") + framed("pong"))
            peer.say({"type": "ping", "reqId": 1}, {"type": "ping", "reqId": 2})
            assert [answer["reqId"] for answer in await peer.lines(2)] == [1, 2]
            counts = bridge.counts
            assert (counts.opened, counts.refused, counts.ignored, counts.frames_in) == (1, 0, 3, 4)
            assert counts.frames_out in (1, 2) and counts.held_most <= HELD_MAX
            await peer.close()

    run(go())


def test_a_peer_that_sends_no_frames_is_refused_and_the_next_one_served():
    async def go():
        async with serving() as server, listening(bridge := Bridge(server.address)) as at:
            bad = await Peer.dial(at.port)
            bad.writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await bad.lines(1))[0]["code"] == "TooLarge"
            await bad.ends()
            good = await Peer.dial(at.port)
            good.say({"type": "ping", "reqId": 1})
            assert await good.lines(1)
            assert (bridge.counts.opened, bridge.counts.refused, len(bridge.pipes)) == (2, 1, 1)
            await good.close()

    run(go())


def test_a_server_that_is_lost_ends_its_pipes_and_is_reported():
    async def go():
        async with serving() as server, listening(bridge := Bridge(server.address)) as at:
            peer = await Peer.dial(at.port)
            peer.say({"type": "ping", "reqId": 1})
            await peer.lines(1)
            assert not bridge.lost.done()
            server.stop()
            await peer.ends()
            assert (await bridge.lost).code == "Unreachable"
            late = await Peer.dial(at.port)
            assert (await late.lines(1))[0]["code"] == "Unreachable"
            await late.ends()

    run(go())


def test_closing_a_bridge_ends_every_pipe():
    async def go():
        async with serving() as server, listening(bridge := Bridge(server.address)) as at:
            peers = [await Peer.dial(at.port) for _ in range(2)]
            for peer in peers:
                peer.say({"type": "ping", "reqId": 1})
                await peer.lines(1)
            closing = asyncio.ensure_future(bridge.close())
            for peer in peers:
                await peer.ends()
            await closing
            assert not bridge.pipes and not bridge.lost.done()

    run(go())


@pytest.mark.promise("Stream Kernel", "a tap sends each envelope once, when it is durable, and leases nothing")
def test_a_tap_forwards_copies_and_nothing_from_its_peer():
    async def go():
        async with serving() as server, listening(bridge := Bridge(server.address, tap="jobs")) as at:
            viewer = await Peer.dial(at.port)
            await until(lambda: bool(bridge.pipes) and next(iter(bridge.pipes)).uplink is not None)  # the tap is open
            viewer.say({"type": "subscribe", "stream": "jobs", "credit": 100})
            viewer.writer.write(framed("data", b"nonsense"))
            await server.enqueue("jobs", "a", "b")
            assert [line["env"]["id"] for line in await viewer.lines(2)] == ["a", "b"]
            stats = await server.stats("jobs")
            assert (stats["inflight"], stats["consumers"], stats["depth"]) == (0, 0, 2)
            assert bridge.counts.ignored == bridge.counts.frames_in == 2
            await viewer.close()

    run(go())


@pytest.mark.promise("Stream Kernel", "only authorised clients may open a pipe")
def test_a_server_that_refuses_the_token_refuses_the_bridge():
    async def go():
        async with serving(Config(auth=AuthSection(allow_anonymous=False))) as server:
            with pytest.raises(PenstockError) as caught:
                await Bridge(server.address, "wrong").check()
            assert caught.value.code == "Unauthorized"
            bridge = Bridge(server.address, "wrong")
            async with listening(bridge) as at:
                peer = await Peer.dial(at.port)
                assert (await peer.lines(1))[0]["code"] == "Unauthorized"
                await peer.ends()
            assert not bridge.lost.done(), "the server is there"

    run(go())


@pytest.mark.promise("Stream Kernel", "a pipe never buffers without bound")
@pytest.mark.parametrize("kind", ["tcp", "ws"])
def test_a_peer_that_does_not_read_is_waited_for_with_a_bounded_buffer(kind):
    """The bridge reads nothing from the server for a peer that does not read, however much waits there."""
    size, count = 64_000, 600

    async def go():
        async with serving() as server:
            for start in range(0, count, 100):
                await server.enqueue("jobs", *map(str, range(start, start + 100)), payload="x" * size)
            bridge = Bridge(server.address)
            listener = await listen(PipeAddress(kind, "127.0.0.1", 0), bridge.serve, is_public=False)
            if kind == "tcp":
                _, writer = await asyncio.open_connection("127.0.0.1", listener.address.port, limit=1024)
            else:
                session = aiohttp.ClientSession()
                ws = await session.ws_connect(str(listener.address))
            ask = said({"type": "subscribe", "stream": "jobs", "credit": 100_000, "batch": 10})
            if kind == "tcp":
                writer.write(ask)
            else:
                await ws.send_bytes(ask)
            looks: list[tuple[bool, int]] = [(False, 0)]
            # At rest: the server waits for the bridge, the bridge waits for the peer, and nothing moves between two looks.
            while not looks[-1][0] or looks[-1] != looks[-2]:
                await asyncio.sleep(POLL_S)
                _, answer = await server.ask("GET", "/v1/streams/jobs/explain")
                reasons = [reason["code"] for reason in answer["reasons"]]
                assert "all_leased" not in reasons, "the server gave away everything"
                (pipe,) = bridge.pipes
                is_held = pipe.uplink is not None and pipe.uplink.is_held
                delivered = sum(consumer["delivered"] for consumer in answer["consumers"])
                looks.append((is_held and "slow_consumer" in reasons, delivered))
            assert 0 < looks[-1][1] < count
            assert bridge.counts.held_most <= HELD_MAX
            assert pipe.held < 8 * 1024 * 1024, "far below the worst case: no line is long here"
            if kind == "tcp":
                writer.close()
                await writer.wait_closed()
            else:
                ws._response.close()
                await session.close()
            await pipe.over.wait()
            await listener.close()
            machine = server.service.runtime.machine
            await until(lambda: machine.leased == 0)  # what it held goes back

    run(go())


@pytest.mark.promise("Stream Kernel", "a pipe never buffers without bound")
def test_pipes_above_the_limit_are_refused():
    async def go():
        async with serving() as server, listening(bridge := Bridge(server.address, pipes_max=1)) as at:
            first = await Peer.dial(at.port)
            first.say({"type": "ping", "reqId": 1})
            assert (await first.lines(1))[0]["reqId"] == 1
            second = await Peer.dial(at.port)
            (error,) = await second.lines(1)
            assert error["code"] == "QuotaExceeded" and error["retryable"]
            await second.ends()
            assert (bridge.counts.opened, bridge.counts.refused) == (1, 1)
            await first.close()

    run(go())


def test_without_a_server_a_bridge_is_refused_at_once():
    async def go(address: Address):
        with pytest.raises(PenstockError) as caught:
            await Bridge(address).check()
        assert caught.value.code == "Unreachable"

    run(go(parse("tcp://127.0.0.1:1")))
