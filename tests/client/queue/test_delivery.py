"""A delivery: its verbs on the wire, what ends its lease, and its payload as the application's own types.

Payloads are read with msgspec and with models of pydantic's shape.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import penstock
from penstock.client.control.frames import to_plain
from penstock.client.queue.delivery import reader_of
from penstock.core.errors import LeaseLost
from tests.client.queue.test_subscription import subscribed
from tests.client.scripted_peer import peer, run


def test_the_other_verbs_say_what_they_mean():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=100)
            for seq in (1, 2, 3):
                line.deliver(seq)
            one, two, three = [await anext(subscription) for _ in range(3)]
            working = asyncio.ensure_future(one.nack(delay_ms=50, reason="busy"))
            frame = await line.read("nack")
            assert (frame["id"], frame["leaseId"], frame["delayMs"], frame["reason"]) == (
                "m1",
                "lease-1-1",
                50,
                "busy",
            )
            line.ok(frame)
            await working
            working = asyncio.ensure_future(two.release())
            line.ok(await line.read("release"))
            await working
            working = asyncio.ensure_future(three.extend(60_000))
            frame = await line.read("extend")
            assert frame["ms"] == 60_000
            line.ok(frame, id="m3", leaseExpiresAt=123)
            assert await working == 123
            working = asyncio.ensure_future(three.term("bad"))
            frame = await line.read("term")
            assert frame["reason"] == "bad"
            line.ok(frame)
            await working
            await client.close()

    run(go())


def test_an_expired_lease_is_lost_and_its_place_is_granted_again():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=1)
            line.deliver(1)
            delivery = await anext(subscription)
            line.say({"type": "expired", "id": "m1", "stream": "jobs", "subId": "s1", "leaseId": "lease-1-1"})
            assert (await line.read("grant"))["n"] == 1
            with pytest.raises(LeaseLost, match="m1"):
                await delivery.ack()
            await client.close()

    run(go())


def test_a_second_delivery_of_an_envelope_ends_the_first():
    async def go():
        async with peer() as server:
            client, line, subscription, _ = await subscribed(server, credit=10)
            line.deliver(1)
            first = await anext(subscription)
            line.deliver(1, attempt=2)
            second = await anext(subscription)
            assert second.attempt == 2 and first.is_lost
            with pytest.raises(LeaseLost):
                await first.ack()
            acking = asyncio.ensure_future(second.ack())
            assert (await line.read("ack"))["leaseId"] == "lease-1-2"
            acking.cancel()
            await client.close()

    run(go())


class Job(msgspec.Struct):
    n: int
    tags: list[str] = []


@dataclass
class Note:
    text: str


class Model:
    """A stand-in for a pydantic model: `model_validate` and `model_dump`, and a ValueError for what does not fit."""

    def __init__(self, n: int) -> None:
        self.n = n

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not isinstance(value, dict) or not isinstance(value.get("n"), int):
            raise ValueError("1 validation error for Model: n should be a valid integer")
        return cls(value["n"])

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"n": self.n, "note": None}


def envelope(payload: bytes) -> Raw:
    return Raw(b'{"id":"1","type":"t","payload":%b}' % payload)


def test_each_kind_of_type_is_read():
    assert reader_of(Job)(envelope(b'{"n":1,"tags":["a"]}')) == Job(1, ["a"])
    assert reader_of(Note)(envelope(b'{"text":"x"}')) == Note("x")
    assert reader_of(list[Job])(envelope(b'[{"n":1}]')) == [Job(1)]
    assert reader_of(Model)(envelope(b'{"n":7}')).n == 7


@pytest.mark.parametrize(("kind", "place"), [(Job, r"at `\$\.n`"), (Model, "n should be a valid integer")])
def test_what_does_not_fit_is_an_error_that_names_the_place(kind, place):
    with pytest.raises(penstock.InvalidRequest, match=place) as caught:
        reader_of(kind)(envelope(b'{"n":"seven"}'))
    assert caught.value.code == "SchemaMismatch"
    assert f"the payload is no `{kind.__name__}`" in caught.value.message and "`term`" in caught.value.hint


def test_a_type_without_json_is_rejected_before_anything_is_sent():
    with pytest.raises(TypeError):
        reader_of(
            type("Opaque", (), {"__init__": lambda self, *, x: None, "__slots__": ()})
            | int
            | bool
            | set[frozenset[int]]
            | list[int]
        )
    with pytest.raises(TypeError, match="`object` has no JSON"):
        to_plain(object())


@pytest.mark.promise("SDK and command line", "`inbox(type=…)` yields payloads as msgspec structs or pydantic models")
def test_models_travel_both_ways(server, stream):
    name = stream.replace("/", "-")

    async def go():
        async with penstock.connect(server.control, agent=name) as client:
            for payload in (Job(1), Model(2), {"n": 3}, Note("x")):
                await client.send(name, payload)
            async with client.inbox(type=Job) as inbox:
                first, second, third, fourth = [await anext(inbox) for _ in range(4)]
                assert [one.payload for one in (first, second, third)] == [Job(1), Job(2), Job(3)]
                assert first.payload is first.payload, "decoded once"
                with pytest.raises(penstock.InvalidRequest, match="missing required field `n`"):
                    fourth.payload  # noqa: B018
                assert fourth.envelope["payload"] == {"text": "x"}
                for one in (first, third, fourth):
                    await one.ack()
            [pulled] = await client.pull(f"agents/{name}/inbox", type=Model)
            assert pulled.payload.n == 2
            await pulled.ack()

    run(go())


def test_a_handler_whose_payload_does_not_fit_fails_as_any_other(server, stream):
    seen = []

    def handle(delivery):
        seen.append(delivery.payload)

    with penstock.connect_sync(server.control) as client:
        client.enqueue(
            stream, [{"id": "bad", "type": "t", "payload": "x"}, {"id": "good", "type": "t", "payload": {"n": 1}}]
        )
        with client.subscribe(stream, type=Job) as jobs:
            batch = jobs.next_batch(2)
            handle(batch[1])
            with pytest.raises(penstock.InvalidRequest):
                handle(batch[0])
            batch[0].term("unreadable")
            batch[1].ack()
        assert seen == [Job(1)] and [row.id for row in client.peek(stream, state="dead")] == ["bad"]


def test_an_answer_is_plain_in_an_inbox_of_another_type(server, stream):
    name = stream.replace("/", "-")

    async def go():
        async with (
            penstock.connect(server.control, agent=f"{name}-a") as asker,
            penstock.connect(server.control, agent=f"{name}-b") as other,
        ):

            async def answer(question):
                await question.reply({"text": "seven"})

            async with asker.inbox(type=Job), other.inbox() as inbox:
                import asyncio

                working = asyncio.create_task(inbox.work(answer))
                assert (await asker.ask(f"{name}-b", 1)).payload == {"text": "seven"}
                assert (await asker.ask(f"{name}-b", 1, reply_type=Note)).payload == Note("seven")
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)

    run(go())
