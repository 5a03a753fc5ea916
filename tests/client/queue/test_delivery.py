"""A delivery: its verbs on the wire, what ends its lease, and its payload as the application's own types.

Payloads are read with msgspec and with pydantic's models.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from types import SimpleNamespace

import msgspec
import pydantic
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


def test_each_kind_of_type_is_read():
    assert reader_of(Job)(Raw(b'{"n":1,"tags":["a"]}')) == Job(1, ["a"])
    assert reader_of(Note)(Raw(b'{"text":"x"}')) == Note("x")
    assert reader_of(list[Job])(Raw(b'[{"n":1}]')) == [Job(1)]


def test_what_does_not_fit_is_an_error_that_names_the_place():
    with pytest.raises(penstock.InvalidRequest, match=r"at `\$\.n`") as caught:
        reader_of(Job)(Raw(b'{"n":"seven"}'))
    assert caught.value.code == "SchemaMismatch"
    assert "the payload is no `Job`" in caught.value.message and "`term`" in caught.value.hint


def models():
    """Real models, nested and strict: JSON has no dates, but a strict model reads them from JSON."""

    class Part(pydantic.BaseModel):
        name: str
        weight: float = pydantic.Field(gt=0)

    class Order(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(strict=True)
        n: int
        due: date | None = None
        parts: list[Part] = pydantic.Field(default_factory=list)

    return SimpleNamespace(Order=Order, Part=Part)


def test_a_pydantic_model_is_read_strict_nested_and_inside_other_types():
    kinds = models()
    read = reader_of(kinds.Order)(Raw(b'{"n":7,"due":"2026-01-02","parts":[{"name":"a","weight":1.5}]}'))
    assert read == kinds.Order(n=7, due=date(2026, 1, 2), parts=[kinds.Part(name="a", weight=1.5)])
    assert reader_of(list[kinds.Part])(Raw(b'[{"name":"a","weight":2}]')) == [kinds.Part(name="a", weight=2)]
    holder = msgspec.defstruct("Holder", [("part", kinds.Part)])
    assert reader_of(holder)(Raw(b'{"part":{"name":"b","weight":1}}')).part.name == "b"


def test_a_pydantic_model_that_does_not_fit_is_a_typed_error_of_one_line():
    kinds = models()
    for kind, body, wanted in (
        (kinds.Order, b'{"n":"seven"}', ("the payload is no `Order`: ", "valid integer at `$.n`")),
        (kinds.Order, b'{"n":1,"parts":[{"name":"a","weight":-1}]}', ("greater than 0 at `$.parts.0.weight`",)),
        (kinds.Order, b'{"n":"x","due":3}', ("at `$.n`; ", "at `$.due`")),
        (kinds.Order, b"[]", ("the payload is no `Order`",)),
        (list[kinds.Part], b'[{"name":"a"}]', ("Field required at `$.weight`", "`$[0]`")),
    ):
        with pytest.raises(penstock.InvalidRequest) as caught:
            reader_of(kind)(Raw(body))
        message = caught.value.message
        assert caught.value.code == "SchemaMismatch" and "`term`" in caught.value.hint
        assert all(part in message for part in wanted), message
        assert "\n" not in message and "http" not in message


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


def test_structs_travel_both_ways(server, stream):
    name = stream.replace("/", "-")

    async def go():
        async with penstock.connect(server.control, agent=name) as client:
            for payload in (Job(1), Job(2), {"n": 3}, Note("x")):
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
            [pulled] = await client.pull(f"agents/{name}/inbox", type=Job)
            assert pulled.payload == Job(2)
            await pulled.ack()

    run(go())


@pytest.mark.promise("SDK and command line", "`inbox(type=…)` yields payloads as msgspec structs or pydantic models")
def test_pydantic_models_travel_both_ways(server, stream):
    kinds = models()
    name = stream.replace("/", "-")

    async def go():
        async with penstock.connect(server.control, agent=name) as client:
            order = kinds.Order(n=2, due=date(2026, 1, 2), parts=[kinds.Part(name="a", weight=1.5)])
            for payload in (order, {"order": order}, {"n": "many"}):
                await client.send(name, payload)
            with pytest.raises(penstock.InvalidRequest) as caught:
                await client.send(name, kinds.Part(name="a", weight=float("inf")))
            assert caught.value.code == "InvalidJSON"
            async with client.inbox(type=kinds.Order) as inbox:
                first, second, third = [await anext(inbox) for _ in range(3)]
                assert first.payload == order
                assert (
                    kinds.Order.model_validate_json(msgspec.json.encode(second.envelope["payload"]["order"])) == order
                )
                with pytest.raises(penstock.InvalidRequest, match=r"valid integer at `\$\.n`"):
                    third.payload  # noqa: B018
                for one in (first, second, third):
                    await one.ack()

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
