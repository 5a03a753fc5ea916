"""Requests and their answers: `ask`, the inbox it uses, and its timeout."""

from __future__ import annotations

import asyncio

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
            assert (await asker.stats(f"agents/{name}-a/inbox"))["depth"] == 0

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
