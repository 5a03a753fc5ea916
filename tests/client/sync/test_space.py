"""A space without async."""

from __future__ import annotations

import asyncio

import penstock
from penstock.client.space.messages import Frame
from tests.client.scripted_gateway import gateway
from tests.client.scripted_peer import run


class TestWithoutAsync:
    def test_the_sync_twin_says_writes_and_reads(self):
        def visit(url):
            with penstock.SyncSpace(url, space="demo", participant="sam", token="secret") as space:
                feed = space.envelopes("chat")
                sent = space.chat("hello")
                first = feed.next()
                assert first is not None and first.id == sent
                stream = space.open_stream("agg")
                assert (stream.target, repr(stream)) == (("agg",), "<SpaceStream stream-1 to agg>")
                with space.frames() as frames:
                    stream.write(b"ping")
                    assert next(frames) == Frame("stream-1", b"pong")
                stream.close()
                assert (space.id, space.active_streams, space.dropped) == ("sam", {}, 0)
                feed.close()
                assert list(feed) == []

        async def go():
            async with gateway() as server:
                visiting = asyncio.ensure_future(asyncio.to_thread(visit, server.url))
                seat = await server.accept()
                await seat.echo(await seat.read("chat"))
                await seat.open(target=["agg"])
                assert await seat.read_frame() == b"#stream-1#ping"
                await seat.frame("stream-1", b"pong")
                await seat.echo(await seat.read("stream/close"))
                await visiting

        run(go())
