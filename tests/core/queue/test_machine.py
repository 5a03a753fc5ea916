"""Settings that change while the machine runs: nothing is lost, and waiting records move."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.links import Consumer, Link
from penstock.core.queue.machine import WAKE_MAX
from penstock.core.queue.policy import Policy
from penstock.core.rate_limits import Rate, Rates
from penstock.core.records import Record
from penstock.core.scopes import OPERATOR
from penstock.core.tenants import Quota
from penstock.server.engine.machines import make_machine
from tests.core.driving import counting_entropy, record_of
from tests.dialects.courier.talking import Broker, envelope, filled


def turn(broker: Broker, policy: Policy, *, limits: Limits | None = None, rates: Rates | None = None) -> None:
    find: Callable[[str], Policy] = lambda _: policy  # noqa: E731
    broker.machine.reconfigure(
        broker.now,
        limits=limits or Limits(),
        policy_for=find,
        auto_create=True,
        quota_for=lambda name: Quota(),
        rates=rates,
    )
    broker.runtime.apply(broker.now)
    broker.run()


@pytest.mark.promise("Limits, reload and HTTP details", "a lowered bound drops nothing; a new policy applies at once")
def test_a_lowered_depth_refuses_what_is_new_and_drops_nothing() -> None:
    broker = Broker(Policy(max_depth=10))
    filled(broker, "s", *"abcdef")
    turn(broker, Policy(max_depth=2, overflow="reject"))
    producer = broker.control()
    (answer,) = producer.say(type_="enqueue", to="s", env=envelope("g"))
    assert (answer["type"], answer["code"]) == ("error", "StreamFull")
    assert broker.counts("s")["q.depth"] == 6 and broker.counts("s")["q.drop"] == 0
    consumer = broker.subscribe("s", credit=5)
    got = [frame["deliver"]["id"] for frame in consumer.heard()]
    for id_ in got:
        consumer.say(ack=id_)
    assert got == list("abcde")
    (answer,) = producer.say(type_="enqueue", to="s", env=envelope("g"))
    assert answer["type"] == "ok"


@pytest.mark.promise("Limits, reload and HTTP details", "a lowered bound drops nothing; a new policy applies at once")
def test_more_leases_at_once_are_given_at_once() -> None:
    broker = Broker(Policy(max_inflight=1))
    filled(broker, "s", "a", "b", "c")
    consumer = broker.subscribe("s", credit=9)
    assert len(consumer.heard()) == 1
    turn(broker, Policy(max_inflight=2))
    assert [frame["deliver"]["id"] for frame in consumer.heard()] == ["b"]
    turn(broker, Policy())
    assert [frame["deliver"]["id"] for frame in consumer.heard()] == ["c"]


@pytest.mark.promise("Limits, reload and HTTP details", "a lowered bound drops nothing; a new policy applies at once")
@pytest.mark.parametrize(("before", "after"), [("tail", "head"), ("head", "tail")])
def test_another_order_of_redelivery_keeps_everything_that_waits(before: str, after: str) -> None:
    broker = Broker(Policy(redelivery=before))
    filled(broker, "s", "a", "b", "c")
    consumer = broker.subscribe("s", credit=1)
    consumer.heard()
    consumer.say(nack="a")
    turn(broker, Policy(redelivery=after))
    expected = ["a", "b", "c"] if "head" in (before, after) else ["b", "c", "a"]
    other = broker.subscribe("s", credit=3)
    assert [frame["deliver"]["id"] for frame in other.heard()] == expected
    other.say(nack=expected[0])
    other.say(credit=3)
    broker.run()
    assert broker.counts("s")["q.if"] == 3


def test_limits_and_rates_count_at_once() -> None:
    broker = Broker()
    producer = broker.control()
    turn(
        broker,
        Policy(),
        limits=Limits(id_max=3),
        rates=Rates(address=Rate(1, 1_000_000, 1)),
    )
    (answer,) = producer.say(type_="enqueue", to="s", env=envelope("long"))
    assert answer["code"] == "InvalidEnvelope"
    assert producer.say(type_="enqueue", to="s", env=envelope("a"))[0]["type"] == "ok"
    assert producer.say(type_="enqueue", to="s", env=envelope("b"))[0]["code"] == "RateLimited"
    turn(broker, Policy())
    assert producer.say(type_="enqueue", to="s", env=envelope("long"))[0]["type"] == "ok"


def test_streams_are_no_longer_made_where_that_is_switched_off() -> None:
    broker = Broker()
    broker.machine.reconfigure(
        broker.now,
        limits=Limits(),
        policy_for=lambda _: Policy(),
        auto_create=False,
        quota_for=lambda name: Quota(),
        rates=None,
    )
    assert isinstance(broker.machine.open_channel("new"), Refusal)


def test_many_timers_that_are_due_together_take_several_turns() -> None:
    broker = Broker()
    records = [
        Record(f"e{number}", "t", b"{}", due_wall_us=broker.now.wall_us + 1_000) for number in range(WAKE_MAX + 5)
    ]
    broker.machine.enqueue(broker.now, "q", records)
    broker.runtime.schedule_turn()
    broker.run()
    broker.us += 2_000
    broker.machine.wake(broker.now)
    assert broker.machine.channels["q"].delayed == 5
    broker.run()
    assert len(broker.machine.channels["q"].ready) == len(records), "the runtime goes on by itself"


@pytest.mark.promise(
    "Benchmarks and robustness", "a subscribed stream leaves the garbage collector three objects at most"
)
def test_a_stream_with_traffic_leaves_the_garbage_collector_little_to_visit() -> None:
    streams, policy = 200, Policy()
    machine = make_machine(Limits(), lambda name: policy, counting_entropy())
    link = machine.connect(OPERATOR, None)
    assert isinstance(link, Link)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(streams):
        now, name = Now(number, number), f"agents/{number}/inbox"
        consumer = machine.subscribe(now, link, name)
        assert isinstance(consumer, Consumer)
        machine.grant(now, consumer, 10)
        for no in range(2):
            machine.enqueue(now, name, [record_of(f"{number}-{no}")])
            machine.commit_log.take_batch()
            machine.committed(now, 2 * number + no)
            machine.take_effects()
        machine.ack(now, consumer, [f"{number}-0"])  # the other one stays leased
        machine.commit_log.take_batch()
        machine.committed(now, 2 * number)
    gc.collect()  # which also finds out what need not be tracked
    assert link.consumers[0].leases
    assert len(gc.get_objects()) - before <= 3 * streams + 50
