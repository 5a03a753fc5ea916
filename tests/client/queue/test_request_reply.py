"""Requests and their answers: `ask`, the inbox it uses, and its timeout."""

from __future__ import annotations

import asyncio
import threading

import pytest

import penstock
from penstock.core.errors import PenstockError
from tests.client.scripted_peer import run


def test_ask_and_reply(server, stream):
    async def go():
        name = stream.replace("/", "-")
        async with (
            penstock.connect(server.control, agent=f"{name}-a") as asker,
            penstock.connect(server.control, agent=f"{name}-b") as other,
        ):

            async def answer():
                async with other.inbox() as inbox:
                    async for question in inbox:
                        await question.reply({"double": question.payload * 2})
                        await question.ack()

            answering = asyncio.ensure_future(answer())
            await asker.send(f"{name}-a", "unrelated", type="note")
            answers = await asyncio.gather(*(asker.ask(f"{name}-b", n, timeout=10) for n in range(5)))
            assert [found.payload for found in answers] == [{"double": 2 * n} for n in range(5)]
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            [note] = await asker.pull(f"agents/{name}-a/inbox", wait_ms=5000)
            assert note.payload == "unrelated"
            await note.ack()
            assert (await asker.stats(f"agents/{name}-a/inbox")).depth == 0

    run(go())


def test_ask_uses_the_inbox_the_application_reads(server, stream):
    async def go():
        name = stream.replace("/", "-")
        async with (
            penstock.connect(server.control, agent=f"{name}-a") as asker,
            penstock.connect(server.control, agent=f"{name}-b") as other,
            asker.inbox() as mine,
            other.inbox() as theirs,
        ):
            asking = asyncio.ensure_future(asker.ask(f"{name}-b", "?", timeout=10))
            question = await anext(theirs)
            await asker.send(f"{name}-a", "note")
            await question.reply("!")
            await question.ack()
            assert (await asking).payload == "!"
            assert (await anext(mine)).payload == "note"

    run(go())


def test_an_ask_without_an_answer_is_a_timeout(server, stream):
    async def go():
        async with penstock.connect(server.control, agent="lonely") as client:
            with pytest.raises(PenstockError) as caught:
                await client.ask(stream, "?", timeout=0.2)
            assert caught.value.code == "Timeout"

    run(go())


@pytest.mark.promise(
    "SDK and command line", "an asker gets a typed error as soon as the handler of its question raises"
)
def test_a_handler_that_raises_answers_its_asker_at_once(server, stream):
    name = stream.replace("/", "-")

    async def handler(question):
        if question.payload == "late":
            await question.reply("in time")
        raise ValueError("no such number")

    async def go():
        async with (
            penstock.connect(server.control, agent=f"{name}-a") as asker,
            penstock.connect(server.control, agent=f"{name}-b") as other,
        ):
            work = asyncio.create_task(other.inbox().work(handler))
            with pytest.raises(PenstockError) as caught:
                await asker.ask(f"{name}-b", "?", timeout=30)
            assert caught.value.code == "HandlerFailed"
            assert caught.value.refusal.message == f"`{name}-b` failed: ValueError: no such number"
            assert (await asker.ask(f"{name}-b", "late", timeout=30)).payload == "in time"
            await asker.send(f"{name}-b", "nobody asks", type="note")
            mailbox = f"agents/{name}-b/inbox"
            while len(await asker.peek(mailbox, state="delayed")) < 2:
                pass  # each round asks the server
            [dead] = await asker.peek(mailbox, state="dead")
            assert dead.envelope["headers"]["x-courier"]["lastError"] == "ValueError: no such number"
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    run(go())


def test_the_synchronous_asker_gets_it_too(server, stream):
    name = stream.replace("/", "-")

    def handler(question):
        raise ValueError("no")

    with (
        penstock.connect_sync(server.control, agent=f"{name}-a") as asker,
        penstock.connect_sync(server.control, agent=f"{name}-b") as other,
    ):
        inbox = other.inbox()
        working = threading.Thread(target=inbox.work, args=[handler])
        working.start()
        with pytest.raises(PenstockError, match="HandlerFailed"):
            asker.ask(f"{name}-b", "?", timeout=30)
        inbox.close()
        working.join()
