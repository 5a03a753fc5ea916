"""The WebSocket to a gateway: its address, the join, and the reason of its end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

import penstock
from penstock.client.space.connection import TAKEN_OVER, join, socket_url
from penstock.client.space.messages import Frame, SpaceEnvelope
from penstock.core.errors import PenstockError
from tests.client.scripted_gateway import gateway
from tests.client.scripted_peer import run


@asynccontextmanager
async def joined():
    """A joined transport, its welcome, and the gateway's end."""
    async with gateway() as server:
        url = socket_url(server.url)
        joining = join(url, "demo", "sam", "secret", timeout_s=10)
        (transport, welcome), seat = await asyncio.gather(joining, server.accept())
        try:
            yield transport, welcome, seat
        finally:
            await transport.close()


@pytest.mark.parametrize(
    ("url", "socket"),
    [
        ("http://host:8787", "ws://host:8787/ws"),
        ("http://host:8787/", "ws://host:8787/ws"),
        ("https://host", "wss://host/ws"),
        ("ws://host/gateway?space=demo#top", "ws://host/gateway?space=demo"),
        ("wss://host/ws", "wss://host/ws"),
    ],
)
def test_the_address_of_a_gateway(url, socket):
    assert socket_url(url) == socket


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:9787", "unix:/run/penstock", "http:///ws", "host:8787"])
def test_another_address_is_refused_with_a_hint(url):
    with pytest.raises(PenstockError, match="not the URL of a gateway") as caught:
        socket_url(url)
    assert caught.value.code == "InvalidRequest" and "http://host:port" in (caught.value.refusal.hint or "")


def test_a_missing_gateway_is_unreachable():
    async def go():
        async with gateway() as server:
            url = server.url
        with pytest.raises(PenstockError) as caught:
            await penstock.Space(url, participant="sam").open()
        assert caught.value.code == "Unreachable"

    run(go())


def test_a_control_address_is_recognised():
    async def go():
        with pytest.raises(PenstockError, match="not the URL of a gateway"):
            penstock.Space("tcp://127.0.0.1:9787", participant="sam")

    run(go())


def test_a_gateway_that_says_nothing_is_not_waited_for_forever():
    async def go():
        async with gateway() as server:
            space = penstock.Space(server.url, participant="sam", connect_timeout=0.05)
            with pytest.raises(PenstockError, match="did not answer in time"):
                await space.open()

    run(go())


def test_messages_of_both_kinds_arrive_and_others_are_counted():
    async def go():
        async with joined() as (transport, welcome, seat):
            assert (welcome.kind, welcome.sender) == ("system/welcome", "system:gateway")
            await seat.socket.send_str("not JSON")
            await seat.say("chat", {"text": "hello"})
            await seat.frame("stream-1", b"21.5")
            chat = await transport.receive()
            assert isinstance(chat, SpaceEnvelope) and chat.kind == "chat"
            frame = await transport.receive()
            assert isinstance(frame, Frame) and (frame.stream_id, frame.data) == ("stream-1", b"21.5")
            assert transport.unread == 1
            await transport.send("text")
            await transport.send(b"bytes")
            assert [await seat.arrived.get() for _ in range(2)] == ["text", b"bytes"]

    run(go())


def test_what_comes_before_the_welcome_is_skipped():
    async def go():
        async with gateway() as server:
            joining = asyncio.ensure_future(join(socket_url(server.url), None, "sam", None, timeout_s=10))
            seat = await server.accept(welcome=False)
            assert server.joins == [{"type": "join", "participantId": "sam"}]
            await seat.frame("stream-1", b"early")
            await seat.say("system/presence", {})
            await seat.welcome({"participantId": "sam"})
            transport, welcome = await joining
            assert welcome.kind == "system/welcome"
            await transport.close()
            await seat.over()

    run(go())


def test_the_reason_of_the_end_is_kept():
    async def go():
        async with joined() as (transport, _, seat):
            await seat.socket.close(code=TAKEN_OVER, message=b"joined again")
            assert await transport.receive() is None
            assert transport.is_taken_over
            assert transport.reason == "the gateway closed it: joined again"
        async with joined() as (transport, _, seat):
            await seat.cut()
            assert await transport.receive() is None
            assert not transport.is_taken_over
            assert transport.reason == "the WebSocket was closed with code 1006"
            with pytest.raises(OSError, match="closing"):
                await transport.send("late")

    run(go())


def test_a_gateway_that_closes_before_its_welcome_is_unreachable():
    async def go():
        async with gateway() as server:
            joining = asyncio.ensure_future(join(socket_url(server.url), None, "sam", None, timeout_s=10))
            seat = await server.accept(welcome=False)
            await seat.socket.close(message=b"not today")
            with pytest.raises(PenstockError, match=r"before a welcome: the gateway closed it: not today") as caught:
                await joining
            assert caught.value.code == "Unreachable"

    run(go())


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (404, "UnknownRoute"),
        (418, "Unsupported"),
        (429, "RateLimited"),
        (500, "Unreachable"),
        (503, "Draining"),
    ],
)
def test_a_refused_upgrade_is_an_error_by_its_status(status, code):
    async def go():
        async def refuse(request):
            return web.Response(status=status)

        runner = web.ServerRunner(web.Server(refuse))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            with pytest.raises(PenstockError, match=f"status {status}") as caught:
                await join(f"ws://127.0.0.1:{runner.addresses[0][1]}/ws", None, "sam", None, timeout_s=10)
            assert caught.value.code == code
            assert ("section `spaces`" in (caught.value.refusal.hint or "")) == (status == 404)
        finally:
            await runner.cleanup()

    run(go())
