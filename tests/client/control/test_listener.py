"""What a subscription and a followed view share, at the level of frames."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client.address import parse
from penstock.client.control.connection import ControlConnection
from penstock.client.control.frames import head
from penstock.client.control.listener import FrameListener, reject
from penstock.core.errors import PenstockError, Refusal
from tests.client.scripted_peer import peer, run, until

GONE = PenstockError(Refusal("Unreachable", "gone"))


class Listener(FrameListener):
    """Subscribes to `jobs`, and notes what happens."""

    def __init__(self, connection):
        super().__init__(connection, "s1")
        self.events = []

    @property
    def is_live(self):
        return self._is_live

    async def open(self):
        self._opened = self._connection.loop.create_future()
        self._connection.attach(self)
        await asyncio.shield(self._opened)
        return self

    async def close(self):
        if self._is_live:
            await self._unsubscribe()
        self._connection.detach(self)

    def _resume(self):
        self.events.append("resume")
        self._subscribe(head("subscribe", stream="jobs", subId=self._sub_id, credit=1))

    def _disconnected(self, reason):
        self.events.append("disconnected")

    def _arrived(self, frame):
        self.events.append(frame.seq)

    def _failed(self, error):
        self.events.append(error.code)
        self._failure = error
        reject(self._opened, error)


async def linked(server, **options):
    connection = ControlConnection(parse(server.url), **options)
    _, line = await asyncio.gather(connection.open(), server.accept())
    return connection, line


def test_a_block_subscribes_and_unsubscribes():
    async def go():
        async with peer() as server:
            connection, line = await linked(server)
            listener = Listener(connection)
            assert not listener.is_live
            opening = asyncio.ensure_future(listener.__aenter__())
            await line.agree()
            assert await opening is listener and listener.is_live
            line.deliver(1)
            await until(lambda: listener.events == ["resume", 1])
            closing = asyncio.ensure_future(listener.__aexit__(None, None, None))
            frame = await line.read("unsubscribe")
            assert frame["subId"] == "s1"
            line.ok(frame)
            await closing
            line.deliver(2)
            await connection.close()
            assert listener.events == ["resume", 1], "it is detached"

    run(go())


def test_a_refused_subscription_fails_its_opening_and_is_not_tried_again():
    async def go():
        async with peer() as server:
            connection, line = await linked(server)
            listener = Listener(connection)
            opening = asyncio.ensure_future(listener.open())
            line.refuse(await line.read("subscribe"), "Forbidden")
            with pytest.raises(PenstockError) as caught:
                await opening
            assert caught.value.code == "Forbidden" and not listener.is_live
            await line.cut()
            line = await server.accept()
            await until(lambda: connection.reconnects == 1)
            await listener.close()  # sends nothing: the server has no such subscription
            await connection.close()
            assert listener.events == ["resume", "Forbidden"]
            assert await line.reader.read() == b""

    run(go())


def test_a_subscription_whose_answer_was_lost_is_opened_by_the_next_connection():
    async def go():
        async with peer() as server:
            connection, line = await linked(server)
            listener = Listener(connection)
            opening = asyncio.ensure_future(listener.open())
            await line.read("subscribe")
            await line.cut()
            line = await server.accept()
            assert not opening.done()
            await line.agree()
            await opening
            assert listener.events == ["resume", "disconnected", "resume"]
            await connection.close()
            assert listener.events[3:] == ["Unreachable"] and not listener.is_live

    run(go())


def test_an_unsubscribe_that_cannot_be_sent_is_no_error():
    async def go():
        async with peer() as server:
            connection, line = await linked(server, reconnect=False)
            listener = Listener(connection)
            await asyncio.gather(listener.open(), line.agree())
            closing = asyncio.ensure_future(listener.close())
            await line.read("unsubscribe")
            await line.cut()
            await closing
            await connection.close()

    run(go())


def test_a_frame_without_a_caller_that_fails_is_ignored():
    """The filters of the test run turn an exception that is never retrieved into a failure."""

    async def go():
        async with peer() as server:
            connection, line = await linked(server, reconnect=False)
            listener = Listener(connection)
            listener._submit(head("grant", n=1, subId="s1"))
            line.refuse(await line.read("grant"), "UnknownSubscription")
            listener._submit(head("grant", n=1, subId="s1"))
            await line.read("grant")
            await line.cut()
            await until(lambda: connection._failure)
            await connection.close()

    run(go())


def test_reject_fails_only_a_future_that_waits():
    async def go():
        loop = asyncio.get_running_loop()
        waiting, done = loop.create_future(), loop.create_future()
        done.set_result(None)
        reject(None, GONE)
        reject(done, GONE)
        assert done.result() is None
        reject(waiting, GONE)
        assert waiting.exception() is GONE

    run(go())
