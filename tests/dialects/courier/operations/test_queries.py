"""Stats, peek, where and explain: scopes, shapes and names."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.core.scopes import ANONYMOUS, OPERATOR, Principal, require
from penstock.core.steps import Survey
from penstock.dialects.courier.operations import queries
from penstock.dialects.courier.operations.queries import STREAMS_A_TURN, MetricsSurvey, PeekRequest, WhereSurvey
from penstock.server.engine.machines import make_machine
from penstock.server.engine.runtime import Runtime
from penstock.server.engine.schedulers import HandScheduler
from tests.core.driving import purge_all
from tests.dialects.courier.operations.operation_results import code, only, value
from tests.dialects.courier.talking import Broker, envelope


class TestReads:
    def test_only_what_the_scopes_show(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="enqueue", to="a", env=envelope("1"))
        peer.say(type_="enqueue", to="b", env=envelope("1"))
        reader = only("streams:b:read")
        machine, now = broker.machine, broker.now
        (row,) = queries.metrics_of(machine, now, reader, list(machine.channels))
        assert row["id"] == "b"
        (place,) = value(broker, queries.where(machine, now, reader, "1"))["places"]
        assert place["stream"] == "b"
        assert code(queries.where(machine, now, only("streams:c:read"), "1")) == "UnknownEnvelope"
        for read in (queries.stats, queries.explain):
            assert code(read(machine, now, reader, "a")) == "Forbidden"
            assert value(broker, read(machine, now, reader, "b"))
        assert code(queries.peek(machine, now, reader, PeekRequest("a", "ready", 1))) == "Forbidden"

    def test_dead_letters_are_shown_to_those_who_may_read_their_stream(self) -> None:
        broker = Broker()
        broker.control().say(type_="enqueue", to="a", env=envelope("1"))
        machine, now = broker.machine, broker.now
        for scope in ("streams:a:read", "streams:dlq/a:read"):
            assert code(queries.peek(machine, now, only(scope), PeekRequest("a", "dead", 1))) == "Forbidden"
        both = only("streams:a:read", "streams:dlq/a:read")
        assert value(broker, queries.peek(machine, now, both, PeekRequest("a", "dead", 1))) == {"rows": []}

    @pytest.mark.parametrize(("state", "limit"), [("gone", 1), ("ready", 0), ("ready", 1_001), ("ready", -1)])
    def test_peek_is_bounded(self, state: str, limit: int) -> None:
        broker = Broker()
        assert (
            code(queries.peek(broker.machine, broker.now, ANONYMOUS, PeekRequest("a", state, limit)))
            == "InvalidRequest"
        )

    def test_a_peek_ends_at_a_number_of_bytes_with_at_least_one_envelope(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broker = Broker()
        for id_ in "123":
            broker.control().say(type_="enqueue", to="a", env=envelope(id_, payload="x" * 1_000))
        for bound, count in ((1, 1), (2_500, 2), (10_000, 3)):
            monkeypatch.setattr(queries, "PEEK_BYTES", bound)
            rows = value(broker, queries.peek(broker.machine, broker.now, ANONYMOUS, PeekRequest("a", "ready", 10)))[
                "rows"
            ]
            assert [msgspec.json.decode(row["env"])["id"] for row in rows] == list("123")[:count]

    def test_pages_follow_one_another_in_the_order_of_numbers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broker = Broker()
        ids = [f"e-{number}" for number in range(7)]
        for id_ in ids:
            broker.control().say(type_="enqueue", to="a", env=envelope(id_, payload="x" * 1_000))
        for size, bound in ((2, 1_000_000), (7, 1_000_000), (100, 2_500)):  # the last is cut by its bytes
            monkeypatch.setattr(queries, "PEEK_BYTES", bound)
            seen: list[str] = []
            after: int | None = 0
            while after is not None:
                asked = PeekRequest("a", max=size, after=after)
                page = value(broker, queries.peek(broker.machine, broker.now, ANONYMOUS, asked))
                seen += [msgspec.json.decode(row["env"])["id"] for row in page["rows"]]
                after = page["next"]
            assert seen == ids

    def test_the_last_time_is_written_for_people(self) -> None:
        broker = Broker()
        broker.subscribe("a")
        assert value(broker, queries.stats(broker.machine, broker.now, ANONYMOUS, "a"))["lastTs"] is None
        broker.control().say(type_="enqueue", to="a", env=envelope("1"))
        stats = value(broker, queries.stats(broker.machine, broker.now, ANONYMOUS, "a"))
        assert stats["lastTs"] == "2025-10-09T08:53:20.000Z"


COUNT = 2 * STREAMS_A_TURN + 7
NOW = Now(5_000_000, 5_000_000)


def many(count: int = COUNT, limits: Limits | None = None) -> QueueMachine:
    machine = make_machine(limits or Limits(), lambda _: Policy(), lambda n: b"\1" * n)
    for number in range(count):
        machine.enqueue(NOW, f"q{number}", [Record(f"e{number % 3}", "t", b"{}")])
    if count:
        machine.commit_log.take_batch()
        machine.committed(NOW, 0)
    return machine


def steps(survey: Survey) -> int:
    count = 1
    while not survey.step(NOW):
        count += 1
    return count


@pytest.mark.promise("Streams", "queries over all streams are spread over turns")
def test_a_look_at_very_many_streams_takes_several_turns_and_misses_none() -> None:
    machine = many()
    metrics = MetricsSurvey(machine, OPERATOR)
    assert steps(metrics) == 3
    rows = msgspec.json.decode(metrics.body())["streams"]
    assert [row["id"] for row in rows] == list(machine.channels)
    where = WhereSurvey(machine, OPERATOR, "e0")
    assert steps(where) == 3
    found = where.body()
    assert isinstance(found, bytes)
    assert len(msgspec.json.decode(found)["places"]) == len(range(0, COUNT, 3))


def test_only_what_the_caller_may_read_is_in_it() -> None:
    machine = many()
    reader = Principal("limited", scopes=require(["streams:q40*:read"]))
    metrics = MetricsSurvey(machine, reader)
    steps(metrics)
    names = [row["id"] for row in msgspec.json.decode(metrics.body())["streams"]]
    assert names == [name for name in machine.channels if name.startswith("q40")]


def test_no_stream_at_all_is_an_answer_too() -> None:
    metrics = MetricsSurvey(many(0), OPERATOR)
    assert steps(metrics) == 1
    assert metrics.body() == b'{"streams":[]}'


def test_a_stream_that_goes_to_sleep_meanwhile_is_still_found() -> None:
    machine = many()
    where = WhereSurvey(machine, OPERATOR, "e1")
    where.step(NOW)
    last = list(machine.channels.values())[-1]
    purge_all(machine, NOW, last)
    machine.commit_log.take_batch()
    machine.committed(NOW, COUNT)
    last.touched_us = -machine.limits.idle_unload_ms * 1000
    machine.unload(last, NOW)
    assert last.name in machine.dormant
    steps(where)
    body = where.body()
    assert isinstance(body, bytes)
    found = msgspec.json.decode(body)["places"][-1]
    assert (found["stream"], found["state"]) == (last.name, "settled")


def test_one_after_the_other_and_a_step_a_turn() -> None:
    machine = many()
    scheduler = HandScheduler(lambda: NOW)
    runtime = Runtime(machine, None, scheduler, authenticate=lambda _: None, version="t")  # type: ignore[arg-type]
    told: list[str] = []
    for name in ("first", "second"):
        runtime.survey(MetricsSurvey(machine, OPERATOR), lambda _, name=name: told.append(name))  # type: ignore[misc]
    assert told == []
    scheduler.soon(lambda: told.append("somebody else"))
    scheduler.run()
    assert told == ["somebody else", "first", "second"]


def test_on_a_control_connection_the_answer_keeps_its_place_among_the_others() -> None:
    broker = Broker()
    peer = broker.control()
    for number in range(COUNT):
        broker.machine.enqueue(broker.now, f"q{number}", [Record("1", "t", b"{}")])
    broker.runtime.apply(broker.now)
    broker.run()
    peer.send({"type": "metrics", "reqId": 1})
    peer.send({"type": "where", "id": "nowhere", "reqId": 2})
    peer.send({"type": "enqueue", "to": "q0", "env": envelope("2"), "reqId": 3})
    assert peer.heard() == []
    broker.run()
    answers = peer.heard()
    assert [(answer["type"], answer["reqId"]) for answer in answers] == [("ok", 1), ("error", 2), ("ok", 3)]
    assert len(answers[0]["result"]["streams"]) == COUNT
