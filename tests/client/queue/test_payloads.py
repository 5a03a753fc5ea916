"""Payloads as the application's own types, with msgspec and with models of pydantic's shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import penstock
from penstock.client.control.frames import to_plain
from penstock.client.queue.payloads import reader_of
from tests.client.scripted_peer import run


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
