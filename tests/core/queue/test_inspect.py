"""Inspecting a queue: the numbers are right and nothing changes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.limits import Limits
from penstock.core.queue.inspect import overview
from penstock.core.queue.policy import Policy
from tests.core.driving import START_WALL_US, QueueDriver, record_of


def stats(bench: QueueDriver, name: str = "a") -> dict[str, Any]:
    return bench.machine.stats(bench.now, bench.channel(name))


def metrics(bench: QueueDriver, name: str = "a") -> dict[str, Any]:
    return bench.machine.metrics(bench.now, bench.channel(name))


def reasons(bench: QueueDriver) -> list[str]:
    explained = bench.machine.explain(bench.now, bench.channel("a"))
    return [reason["code"] for reason in explained["reasons"]]


class TestStats:
    def test_depth_is_what_is_ready(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 2)
        bench.put("a", "1", "2", "3", "4")
        bench.nack(consumer, "1", 1_000)
        row = stats(bench)
        assert (row["depth"], row["inflight"], row["delayed"]) == (2, 1, 1)
        assert (row["seq"], row["consumers"], row["credit"]) == (4, 1, 0)
        assert row["bytes"] == bench.channel("a").bytes > 0

    def test_latency_is_from_acceptance_to_first_delivery_by_our_clock(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a")
        bench.put("a", "1")
        bench.advance(250)
        bench.grant(consumer, 2)
        bench.advance(5_000)
        bench.nack(consumer, "1")
        row = stats(bench)
        assert row["latP50"] == row["latP99"] == pytest.approx(250, rel=0.125)

    def test_rates_are_per_second_over_a_window(self) -> None:
        bench = QueueDriver()
        bench.subscribe("a", 100)
        bench.put("a", *(str(n) for n in range(20)))
        bench.advance(1_000)
        assert (stats(bench)["rateIn"], stats(bench)["rateOut"]) == (2.0, 2.0)
        bench.advance(60_000)
        assert (stats(bench)["rateIn"], stats(bench)["rateOut"]) == (0.0, pytest.approx(2.0))

    def test_the_last_time_is_ours_and_duplicates_do_not_move_it(self) -> None:
        bench = QueueDriver()
        bench.advance(1_000)
        bench.put("a", "1")
        bench.advance(1_000)
        bench.put("a", "1")
        assert stats(bench)["lastTs"] == START_WALL_US + 1_000_000

    def test_the_oldest_record_has_its_age(self) -> None:
        bench = QueueDriver()
        assert bench.subscribe("a") and stats(bench)["oldestMs"] == 0
        bench.put("a", "1")
        bench.advance(1_500)
        assert stats(bench)["oldestMs"] == 1_500

    def test_what_is_not_yet_durable_has_none(self) -> None:
        bench = QueueDriver()
        bench.offer("a", record_of("1"))
        bench.us += 700_000
        assert stats(bench)["oldestMs"] == 0


def test_metrics_count_by_the_seeds_names() -> None:
    bench = QueueDriver(Policy(lease_us=1_000_000, max_depth=4))
    consumer = bench.subscribe("a", 4)
    bench.put("a", "1", "2", "3", "4")
    bench.put("a", "1")
    bench.refusal("a", record_of("5"))
    bench.ack(consumer, "1")
    bench.nack(consumer, "2")
    bench.release(consumer, "3")
    bench.advance(1_000)
    bench.grant(consumer, 1)
    bench.term(consumer, "3")
    assert metrics(bench) == {
        "q.in": 4, "q.out": 5, "q.ack": 1, "q.nack": 1, "q.re": 1, "q.release": 1, "q.timeout": 1, "q.dup": 1,
        "q.drop": 0, "q.dead": 1, "q.purged": 0, "q.moved": 0, "q.reject": 1, "q.depth": 2, "q.if": 0,
        "q.delayed": 0,
    }  # fmt: skip


class TestPeek:
    def bench(self) -> QueueDriver:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 3)
        bench.put("a", "1", "2", "3", "4", "5")
        bench.nack(consumer, "2", 1_000)
        bench.term(consumer, "3")
        bench.offer("a", record_of("6"))
        return bench

    @pytest.mark.parametrize(
        ("state", "ids"),
        [("ready", ["4", "5"]), ("inflight", ["1"]), ("delayed", ["2"]), ("dead", ["3"])],
    )
    def test_shows_one_state_and_changes_nothing(self, state: str, ids: list[str]) -> None:
        bench = self.bench()
        before = (bench.state("a"), metrics(bench))
        rows = bench.machine.peek(bench.now, bench.channel("a"), state, 10)
        assert [record.id for record in rows] == ids
        assert (bench.state("a"), metrics(bench)) == before

    def test_is_bounded(self) -> None:
        assert len(self.bench().machine.peek(self.bench().now, self.bench().channel("a"), "ready", 1)) == 1

    def test_without_dead_letters_shows_none_and_makes_none(self) -> None:
        bench = QueueDriver()
        bench.put("a", "1")
        assert bench.machine.peek(bench.now, bench.channel("a"), "dead", 5) == []
        assert not bench.machine.known("dlq/a")


class TestWhere:
    def test_follows_an_id_through_its_life(self) -> None:
        bench = QueueDriver(Policy(lease_us=5_000_000))
        where = lambda: bench.machine.where(bench.now, "1")  # noqa: E731  # read at each step
        bench.offer("a", record_of("1"))
        assert where() == []
        bench.commit()
        assert where() == [{"stream": "a", "state": "ready", "seq": 1, "attempt": 0}]
        consumer = bench.subscribe("a", 2)
        (row,) = where()
        assert (row["state"], row["attempt"], row["holder"]) == ("inflight", 1, "operator (link 1)")
        assert row["leaseExpiresAt"] == (bench.now.wall_us + 5_000_000) // 1000
        bench.nack(consumer, "1", 700, "boom")
        (row,) = where()
        assert (row["state"], row["lastError"]) == ("delayed", "boom")
        assert row["dueAt"] == bench.now.wall_us // 1000 + 700
        bench.advance(700)
        bench.term(consumer, "1")
        states = {row["stream"]: row["state"] for row in where()}
        assert states == {"dlq/a": "ready", "a": "settled"}

    def test_finds_an_id_in_a_sleeping_stream(self) -> None:
        bench = QueueDriver(limits=Limits(idle_unload_ms=1_000))
        consumer = bench.subscribe("a", 1)
        bench.put("a", "1")
        bench.ack(consumer, "1")
        bench.unsubscribe(consumer)
        bench.advance(1_000)
        assert bench.machine.where(bench.now, "1") == [
            {"stream": "a", "state": "settled", "seq": 1, "outcome": "acked"}
        ]
        assert "a" not in bench.machine.channels


class TestExplain:
    def test_an_empty_stream(self) -> None:
        bench = QueueDriver()
        bench.subscribe("a", 1)
        assert reasons(bench) == ["empty"]

    def test_no_subscriber(self) -> None:
        bench = QueueDriver()
        bench.put("a", "1")
        assert reasons(bench) == ["no_consumer"]

    def test_no_credit(self) -> None:
        bench = QueueDriver()
        bench.subscribe("a")
        bench.put("a", "1")
        assert reasons(bench) == ["no_credit"]

    def test_a_slow_consumer(self) -> None:
        bench = QueueDriver(limits=Limits(outbox_max=1))
        bench.subscribe("a", 5)
        bench.put("a", "1", "2")
        assert reasons(bench) == ["slow_consumer"]

    def test_everything_is_leased(self) -> None:
        bench = QueueDriver(Policy(lease_us=5_000_000))
        bench.subscribe("a", 5)
        bench.put("a", "1")
        bench.advance(2_000)
        (reason,) = bench.machine.explain(bench.now, bench.channel("a"))["reasons"]
        assert (reason["code"], reason["nextExpiryMs"]) == ("all_leased", 3_000)

    def test_too_many_are_in_flight(self) -> None:
        bench = QueueDriver(Policy(max_inflight=1))
        bench.subscribe("a", 5)
        bench.put("a", "1", "2")
        explained = bench.machine.explain(bench.now, bench.channel("a"))
        assert [reason["code"] for reason in explained["reasons"]] == ["max_inflight"]

    def test_what_waits_for_its_time(self) -> None:
        bench = QueueDriver()
        bench.offer("a", record_of("1", due_wall_us=bench.now.wall_us + 5_000_000))
        bench.commit()
        (reason,) = bench.machine.explain(bench.now, bench.channel("a"))["reasons"]
        assert (reason["code"], reason["count"]) == ("delayed", 1)
        assert reason["nextDueAt"] == (bench.now.wall_us + 5_000_000) // 1000

    def test_full_dead_letters_and_a_full_stream(self) -> None:
        bench = QueueDriver(Policy(max_depth=1), policies={"dlq/a": Policy(max_depth=0)})
        consumer = bench.subscribe("a", 1)
        bench.put("a", "1")
        bench.term(consumer, "1")
        assert reasons(bench) == ["dead_letters_full", "full"]

    def test_draining(self) -> None:
        bench = QueueDriver()
        bench.subscribe("a", 1)
        bench.machine.drain(bench.now)
        explained = bench.machine.explain(bench.now, bench.channel("a"))
        assert (explained["reasons"][0]["code"], explained["flowing"]) == ("draining", False)

    def test_consumers_are_listed(self) -> None:
        bench = QueueDriver()
        bench.subscribe("a", 3)
        bench.put("a", "1")
        (row,) = bench.machine.explain(bench.now, bench.channel("a"))["consumers"]
        assert row == {
            "holder": "operator (link 1)", "credit": 2, "inflight": 1, "delivered": 1, "writable": True,
        }  # fmt: skip


class TestOverview:
    def whole(self, bench: QueueDriver) -> dict[str, Any]:
        return overview(bench.machine, bench.machine.channels.values(), asleep=[bench.machine.asleep])

    def test_is_the_sum_of_what_each_stream_says(self) -> None:
        bench = QueueDriver()
        consumer = bench.subscribe("a", 2)
        bench.put("a", "1", "2", "3")
        bench.put("b", "1", "2")
        bench.ack(consumer, "1")
        rows = [metrics(bench, name) for name in ("a", "b")]
        assert self.whole(bench) == {key: sum(row[key] for row in rows) for key in rows[0]}
        assert self.whole(bench)["q.in"] == 5

    def test_of_nothing_is_nothing(self) -> None:
        assert set(self.whole(QueueDriver()).values()) == {0}

    @pytest.mark.promise(
        "Schemas, skills and observability",
        "Prometheus metrics are sums by default, labelled on request, and no counter decreases",
    )
    def test_no_count_falls_when_streams_go_to_sleep_wake_up_or_are_forgotten(self) -> None:
        bench = QueueDriver(limits=Limits(idle_unload_ms=1_000, dormant_max=1))
        before = self.whole(bench)
        for name in ("a", "b", "c", "a", "b"):
            consumer = bench.subscribe(name, 1)
            bench.put(name, f"{name}-{bench.now.us}")
            bench.ack(consumer, *bench.channel(name).live)
            bench.machine.unsubscribe(bench.now, consumer)
            bench.advance(5_000)
            after = self.whole(bench)
            assert all(after[key] >= before[key] for key in before)
            assert after["q.in"] == after["q.ack"] == before["q.in"] + 1
            before = after
        assert not bench.machine.channels and bench.machine.totals.dormant_forgotten > 0
