"""The design document's in-process interface, with a clock that the test controls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock import PenstockError, QueueCore
from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.server.embedded import Delivered

ENVELOPE = {
    "id": "e-91a",
    "ts": "2025-10-18T19:55:00Z",
    "from": "architect",
    "to": "agents/Jen/inbox",
    "type": "sprint.assign",
    "payload": {"wave": "B"},
}
JEN = "agents/Jen/inbox"


class Clock:
    def __init__(self) -> None:
        self.us = 10**9

    def __call__(self) -> Now:
        return Now(self.us, 1_760_000_000_000_000 + self.us)


def env(id_: str, **more: Any) -> dict[str, Any]:
    return {**ENVELOPE, "id": id_, **more}


def code(call: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(PenstockError) as caught:
        call(*args, **kwargs)
    return caught.value.code


@pytest.mark.promise("Queue protocols", "`penstock.QueueCore` runs the queue in process")
def test_the_seeds_calls_in_the_seeds_order() -> None:
    core = QueueCore(clock=Clock())
    assert core.enqueue(JEN, ENVELOPE) == {"id": "e-91a", "seq": 1}
    subscriber = core.subscribe(JEN)
    assert list(subscriber.deliveries) == []
    core.grant_credit(subscriber.id, 10)
    (delivery,) = subscriber.deliveries
    assert delivery.envelope == ENVELOPE
    assert (delivery.seq, delivery.attempt, delivery.stream) == (1, 1, JEN)
    assert core.stats(JEN)["inflight"] == 1
    assert (subscriber.stream, subscriber.credit, subscriber.in_flight) == (JEN, 9, ["e-91a"])
    core.ack(subscriber.id, "e-91a")
    assert (subscriber.credit, subscriber.in_flight) == (9, [])
    stats = core.stats(JEN)
    assert (stats["depth"], stats["inflight"]) == (0, 0)
    assert set(stats) >= {"depth", "inflight", "rateIn", "rateOut", "latP50", "latP95", "lastTs"}
    core.enqueue(JEN, env("2"))
    core.nack(subscriber.id, "2")
    assert [(d.envelope["id"], d.attempt) for d in subscriber.deliveries][1:] == [("2", 1), ("2", 2)]


class TestRefusals:
    def test_every_one_is_an_exception_with_its_code(self) -> None:
        core = QueueCore(policy=Policy(max_depth=1), clock=Clock())
        subscriber = core.subscribe("a")
        assert code(core.enqueue, "a", {"id": "1"}) == "InvalidEnvelope"
        assert code(core.enqueue, "a", env("1")) == "AddressMismatch"
        assert code(core.enqueue, "a", b"nonsense") == "InvalidJSON"
        assert code(core.enqueue, "a", b'{"id":"1","id":"1"}') == "InvalidJSON"
        assert code(core.enqueue, "a:b", env("1", to="a:b")) == "InvalidRequest"
        core.enqueue("a", env("1", to="a"))
        assert code(core.enqueue, "a", env("2", to="a")) == "StreamFull"
        assert code(core.enqueue, "a", env("1", to="a", payload=0)) == "IdConflict"
        assert code(core.ack, subscriber.id, "1") == "NotLeaseHolder"
        assert code(core.ack, subscriber.id, "9") == "UnknownEnvelope"
        assert code(core.ack, "nobody", "1") == "InvalidRequest"
        assert code(core.stats, "nowhere") == "UnknownStream"
        assert code(core.subscribe, "") == "InvalidRequest"
        assert code(core.subscribe, "a", lease_ms=1) == "InvalidRequest"
        assert code(core.where, "9") == "UnknownEnvelope"

    @pytest.mark.parametrize("n", [0, -1, 100_001, 1.5, "1", None])
    def test_credit_is_a_whole_number_that_fits(self, n: Any) -> None:
        core = QueueCore(clock=Clock())
        subscriber = core.subscribe("a")
        assert code(core.grant_credit, subscriber.id, n) == "InvalidCredit"
        core.enqueue("a", env("1", to="a"))
        assert not subscriber.deliveries

    def test_a_subscription_with_impossible_credit_is_not_left_behind(self) -> None:
        core = QueueCore(clock=Clock())
        assert code(core.subscribe, "a", credit=100_001) == "InvalidCredit"
        assert core.runtime.machine.consumers == {}


class TestTime:
    def test_a_lease_ends_by_the_clock_that_was_given(self) -> None:
        clock = Clock()
        core = QueueCore(clock=clock, policy=Policy(lease_us=5_000_000))
        subscriber = core.subscribe("a", credit=2)
        core.enqueue("a", env("1", to="a"))
        clock.us += 4_999_999
        core.tick()
        assert len(subscriber.deliveries) == 1
        clock.us += 1
        core.tick()
        assert [delivery.attempt for delivery in subscriber.deliveries] == [1, 2]
        assert subscriber.deliveries[0].lease_id != subscriber.deliveries[1].lease_id

    def test_a_settle_after_the_end_is_late_without_any_tick(self) -> None:
        clock = Clock()
        core = QueueCore(clock=clock, policy=Policy(lease_us=5_000_000))
        subscriber = core.subscribe("a", credit=1)
        core.enqueue("a", env("1", to="a"))
        clock.us += 5_000_000
        assert code(core.ack, subscriber.id, "1") == "LeaseExpired"

    def test_delays_and_extensions(self) -> None:
        clock = Clock()
        core = QueueCore(clock=clock, policy=Policy(lease_us=5_000_000))
        subscriber = core.subscribe("a", credit=9)
        core.enqueue("a", env("1", to="a"), delay_ms=1_000)
        assert not subscriber.deliveries
        clock.us += 1_000_000
        core.tick()
        core.extend(subscriber.id, "1", ms=60_000)
        clock.us += 59_000_000
        core.nack(subscriber.id, "1", delay_ms=500, reason="boom")
        assert core.peek("a", state="delayed")[0]["lastError"] == "boom"
        clock.us += 500_000
        core.tick()
        assert [delivery.attempt for delivery in subscriber.deliveries] == [1, 2]


class TestVerbs:
    def test_release_term_redrive_and_looks(self) -> None:
        core = QueueCore(clock=Clock())
        subscriber = core.subscribe("a", credit=2)
        core.enqueue("a", env("1", to="a"))
        core.release(subscriber.id, "1")
        core.term(subscriber.id, "1", reason="never")
        assert {row["stream"]: row["state"] for row in core.where("1")} == {"dlq/a": "ready", "a": "settled"}
        assert core.peek("a", state="dead")[0]["env"]["headers"]["x-courier"]["lastError"] == "never"
        assert core.redrive("a")["moved"] == 1
        assert core.explain("a")["reasons"][0]["code"] == "no_credit"

    def test_unsubscribe_gives_back(self) -> None:
        core = QueueCore(clock=Clock())
        first = core.subscribe("a", credit=1)
        core.enqueue("a", env("1", to="a"))
        core.unsubscribe(first.id)
        assert code(core.grant_credit, first.id, 1) == "InvalidRequest"
        second = core.subscribe("a", credit=1)
        assert [delivery.attempt for delivery in second.deliveries] == [2]

    def test_bytes_pass_as_they_are(self) -> None:
        core = QueueCore(clock=Clock())
        raw = msgspec.json.encode(env("1", to="a")).replace(b'"B"', b'"B" , "n": 1e400').replace(b"1e400", b"1.10")
        subscriber = core.subscribe("a", credit=1)
        core.enqueue("a", raw)
        assert subscriber.deliveries[0].body == raw

    def test_more_than_a_link_has_room_for_is_still_delivered(self) -> None:
        core = QueueCore(clock=Clock(), limits=Limits(outbox_max=1_000))
        for n in range(50):
            core.enqueue("a", env(str(n), to="a"))
        subscriber = core.subscribe("a", credit=50)
        assert len(subscriber.deliveries) == 50


class TestCallbacks:
    def test_get_deliveries_instead_of_the_queue(self) -> None:
        core = QueueCore(clock=Clock())
        got: list[Delivered] = []
        subscriber = core.subscribe("a", got.append, credit=5)
        core.enqueue("a", env("1", to="a"))
        assert [delivery.envelope["id"] for delivery in got] == ["1"]
        assert not subscriber.deliveries

    def test_may_call_us(self) -> None:
        core = QueueCore(clock=Clock())
        done: list[str] = []

        def work(delivery: Delivered) -> None:
            id_ = delivery.envelope["id"]
            done.append(id_)
            if len(id_) < 5:
                core.enqueue("a", env(id_ + "x", to="a"))
            core.ack(delivery.subscriber, id_)
            core.grant_credit(delivery.subscriber, 1)

        core.subscribe("a", work, credit=1)
        core.enqueue("a", env("x", to="a"))
        assert done == ["x", "xx", "xxx", "xxxx", "xxxxx"]
        assert core.stats("a")["inflight"] == 0


class TestThreads:
    def test_other_threads_get_futures(self) -> None:
        core = QueueCore()
        results: list[object] = []

        def worker(facade: Any, loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> None:
            subscriber = facade.subscribe("a", credit=10).result(timeout=30)
            results.append(facade.enqueue("a", env("1", to="a")).result(timeout=30))
            results.append([d.envelope["id"] for d in subscriber.deliveries])
            facade.ack(subscriber.id, "1").result(timeout=30)
            results.append(facade.stats("a").result(timeout=30)["inflight"])
            error = facade.ack(subscriber.id, "1").exception(timeout=30)
            results.append(error.code if isinstance(error, PenstockError) else error)
            loop.call_soon_threadsafe(over.set)

        async def main() -> None:
            loop = asyncio.get_running_loop()
            over = asyncio.Event()
            thread = threading.Thread(target=worker, args=(core.threadsafe(loop), loop, over))
            thread.start()
            async with asyncio.timeout(60):
                await over.wait()
            thread.join()

        asyncio.run(main())
        assert results == [{"id": "1", "seq": 1}, ["1"], 0, "AlreadyAcked"]

    def test_only_the_calls_of_the_queue_are_there(self) -> None:
        core = QueueCore(clock=Clock())
        loop = asyncio.new_event_loop()
        try:
            with pytest.raises(AttributeError):
                core.threadsafe(loop).tick  # noqa: B018  # looking it up is the test
        finally:
            loop.close()


@pytest.mark.promise("SDK and command line", "NaN and infinities are refused, never stored as null")
def test_a_number_that_json_cannot_express_is_refused() -> None:
    core = QueueCore()
    with pytest.raises(PenstockError, match=r"`payload\.mean` is nan"):
        core.enqueue(JEN, {**ENVELOPE, "payload": {"mean": float("nan")}})
    assert core.enqueue(JEN, {**ENVELOPE, "payload": {"mean": None}})["seq"] == 1


def test_the_defaults_are_those_of_the_server() -> None:
    core = QueueCore()
    worker = core.subscribe("jobs", credit=100)
    core.enqueue("jobs", {**ENVELOPE, "to": "jobs"})
    for _ in range(20):
        core.nack(worker.id, "e-91a", delay_ms=0)
    assert core.peek("jobs", state="dead")
