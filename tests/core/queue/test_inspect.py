"""Inspecting a queue: the numbers are right and nothing changes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.limits import Limits
from penstock.core.queue.inspect import CUT_SHOWN_MS, overview
from penstock.core.queue.policy import Policy
from tests.core.driving import START_WALL_US, QueueDriver, record_of


def stats(driver: QueueDriver, name: str = "a") -> dict[str, Any]:
    return driver.machine.stats(driver.now, driver.channel(name))


def metrics(driver: QueueDriver, name: str = "a") -> dict[str, Any]:
    return driver.machine.metrics(driver.now, driver.channel(name))


def reasons(driver: QueueDriver) -> list[str]:
    explained = driver.machine.explain(driver.now, driver.channel("a"))
    return [reason["code"] for reason in explained["reasons"]]


class TestStats:
    def test_depth_is_what_is_ready(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1", "2", "3", "4")
        driver.nack(consumer, "1", 1_000)
        row = stats(driver)
        assert (row["depth"], row["inflight"], row["delayed"]) == (2, 1, 1)
        assert (row["seq"], row["consumers"], row["credit"]) == (4, 1, 0)
        assert row["bytes"] == driver.channel("a").bytes > 0

    def test_latency_is_from_acceptance_to_first_delivery_by_our_clock(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a")
        driver.put("a", "1")
        driver.advance(250)
        driver.grant(consumer, 2)
        driver.advance(5_000)
        driver.nack(consumer, "1")
        row = stats(driver)
        assert row["latP50"] == row["latP99"] == pytest.approx(250, rel=0.125)

    def test_rates_are_per_second_over_a_window(self) -> None:
        driver = QueueDriver()
        driver.subscribe("a", 100)
        driver.put("a", *(str(n) for n in range(20)))
        driver.advance(1_000)
        assert (stats(driver)["rateIn"], stats(driver)["rateOut"]) == (2.0, 2.0)
        driver.advance(60_000)
        assert (stats(driver)["rateIn"], stats(driver)["rateOut"]) == (0.0, pytest.approx(2.0))

    def test_the_last_time_is_ours_and_duplicates_do_not_move_it(self) -> None:
        driver = QueueDriver()
        driver.advance(1_000)
        driver.put("a", "1")
        driver.advance(1_000)
        driver.put("a", "1")
        assert stats(driver)["lastTs"] == START_WALL_US + 1_000_000

    def test_the_oldest_record_has_its_age(self) -> None:
        driver = QueueDriver()
        assert driver.subscribe("a") and stats(driver)["oldestMs"] == 0
        driver.put("a", "1")
        driver.advance(1_500)
        assert stats(driver)["oldestMs"] == 1_500

    def test_what_is_not_yet_durable_has_none(self) -> None:
        driver = QueueDriver()
        driver.offer("a", record_of("1"))
        driver.us += 700_000
        assert stats(driver)["oldestMs"] == 0


def test_metrics_count_by_the_seeds_names() -> None:
    driver = QueueDriver(Policy(lease_us=1_000_000, max_depth=4))
    consumer = driver.subscribe("a", 4)
    driver.put("a", "1", "2", "3", "4")
    driver.put("a", "1")
    driver.refusal("a", record_of("5"))
    driver.ack(consumer, "1")
    driver.nack(consumer, "2")
    driver.release(consumer, "3")
    driver.advance(1_000)
    driver.grant(consumer, 1)
    driver.term(consumer, "3")
    assert metrics(driver) == {
        "q.in": 4, "q.out": 5, "q.ack": 1, "q.nack": 1, "q.re": 1, "q.release": 1, "q.timeout": 1, "q.dup": 1,
        "q.drop": 0, "q.dead": 1, "q.purged": 0, "q.moved": 0, "q.reject": 1, "q.depth": 2, "q.if": 0,
        "q.delayed": 0,
    }  # fmt: skip


class TestPeek:
    def driver(self) -> QueueDriver:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 3)
        driver.put("a", "1", "2", "3", "4", "5")
        driver.nack(consumer, "2", 1_000)
        driver.term(consumer, "3")
        driver.offer("a", record_of("6"))
        return driver

    @pytest.mark.parametrize(
        ("state", "ids"),
        [("ready", ["4", "5"]), ("inflight", ["1"]), ("delayed", ["2"]), ("dead", ["3"])],
    )
    def test_shows_one_state_and_changes_nothing(self, state: str, ids: list[str]) -> None:
        driver = self.driver()
        before = (driver.state("a"), metrics(driver))
        rows = driver.machine.peek(driver.now, driver.channel("a"), state, 10)
        assert [record.id for record in rows] == ids
        assert (driver.state("a"), metrics(driver)) == before

    def test_a_page_is_in_the_order_of_numbers_whatever_is_next(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1", "2", "3", "4")
        driver.nack(consumer, "2", 0)
        driver.nack(consumer, "1", 0)
        machine, channel = driver.machine, driver.channel("a")
        ids = [record.id for record in machine.peek(driver.now, channel, "ready", 10)]
        assert ids != sorted(ids)
        records = machine.peek(driver.now, channel, "ready", 10, 0)
        assert [record.id for record in records] == ["1", "2", "3", "4"]
        assert machine.peek(driver.now, channel, "ready", 2, records[1].seq) == records[2:]

    def test_is_bounded(self) -> None:
        assert len(self.driver().machine.peek(self.driver().now, self.driver().channel("a"), "ready", 1)) == 1

    def test_without_dead_letters_shows_none_and_makes_none(self) -> None:
        driver = QueueDriver()
        driver.put("a", "1")
        assert driver.machine.peek(driver.now, driver.channel("a"), "dead", 5) == []
        assert not driver.machine.known("dlq/a")


class TestWhere:
    def test_follows_an_id_through_its_life(self) -> None:
        driver = QueueDriver(Policy(lease_us=5_000_000))
        where = lambda: driver.machine.where(driver.now, "1")  # noqa: E731  # read at each step
        driver.offer("a", record_of("1"))
        assert where() == []
        driver.commit()
        assert where() == [{"stream": "a", "state": "ready", "seq": 1, "attempt": 0}]
        consumer = driver.subscribe("a", 2)
        (row,) = where()
        assert (row["state"], row["attempt"], row["holder"]) == ("inflight", 1, "operator (link 1)")
        assert row["leaseExpiresAt"] == (driver.now.wall_us + 5_000_000) // 1000
        driver.nack(consumer, "1", 700, "boom")
        (row,) = where()
        assert (row["state"], row["lastError"]) == ("delayed", "boom")
        assert row["dueAt"] == driver.now.wall_us // 1000 + 700
        driver.advance(700)
        driver.term(consumer, "1")
        states = {row["stream"]: row["state"] for row in where()}
        assert states == {"dlq/a": "ready", "a": "settled"}

    def test_finds_an_id_in_a_sleeping_stream(self) -> None:
        driver = QueueDriver(limits=Limits(idle_unload_ms=1_000))
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.ack(consumer, "1")
        driver.unsubscribe(consumer)
        driver.advance(1_000)
        assert driver.machine.where(driver.now, "1") == [
            {"stream": "a", "state": "settled", "seq": 1, "outcome": "acked"}
        ]
        assert "a" not in driver.machine.channels


class TestExplain:
    def test_an_empty_stream(self) -> None:
        driver = QueueDriver()
        driver.subscribe("a", 1)
        assert reasons(driver) == ["empty"]

    def test_no_subscriber(self) -> None:
        driver = QueueDriver()
        driver.put("a", "1")
        assert reasons(driver) == ["no_consumer"]

    def test_no_credit(self) -> None:
        driver = QueueDriver()
        driver.subscribe("a")
        driver.put("a", "1")
        assert reasons(driver) == ["no_credit"]

    def test_a_slow_consumer(self) -> None:
        driver = QueueDriver(limits=Limits(outbox_max=1))
        driver.subscribe("a", 5)
        driver.put("a", "1", "2")
        (reason,) = driver.machine.explain(driver.now, driver.channel("a"))["reasons"]
        (consumer,) = driver.channel("a").consumers.values()
        assert reason["code"] == "slow_consumer" and consumer.holder_name in reason["message"]

    def test_everything_is_leased(self) -> None:
        driver = QueueDriver(Policy(lease_us=5_000_000))
        driver.subscribe("a", 5)
        driver.put("a", "1")
        driver.advance(2_000)
        (reason,) = driver.machine.explain(driver.now, driver.channel("a"))["reasons"]
        assert (reason["code"], reason["nextExpiryMs"]) == ("all_leased", 3_000)

    def test_too_many_are_in_flight(self) -> None:
        driver = QueueDriver(Policy(max_inflight=1))
        driver.subscribe("a", 5)
        driver.put("a", "1", "2")
        explained = driver.machine.explain(driver.now, driver.channel("a"))
        assert [reason["code"] for reason in explained["reasons"]] == ["max_inflight"]

    def test_what_waits_for_its_time(self) -> None:
        driver = QueueDriver()
        driver.offer("a", record_of("1", due_wall_us=driver.now.wall_us + 5_000_000))
        driver.commit()
        (reason,) = driver.machine.explain(driver.now, driver.channel("a"))["reasons"]
        assert (reason["code"], reason["count"]) == ("delayed", 1)
        assert reason["nextDueAt"] == (driver.now.wall_us + 5_000_000) // 1000

    def test_full_dead_letters_and_a_full_stream(self) -> None:
        driver = QueueDriver(Policy(max_depth=1), policies={"dlq/a": Policy(max_depth=0)})
        consumer = driver.subscribe("a", 1)
        driver.put("a", "1")
        driver.term(consumer, "1")
        assert reasons(driver) == ["dead_letters_full", "full"]

    def test_a_reader_that_was_disconnected_is_named_for_five_minutes(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 1)
        driver.machine.note_cut(driver.now, consumer.link, 10, "outbox_max")

        def codes() -> list[str]:
            return [row["code"] for row in driver.machine.explain(driver.now, driver.channel("a"))["reasons"]]

        driver.advance(CUT_SHOWN_MS - 1)
        assert "reader_cut" in codes()
        driver.advance(1)
        assert "reader_cut" not in codes()

    def test_draining(self) -> None:
        driver = QueueDriver()
        driver.subscribe("a", 1)
        driver.machine.drain(driver.now)
        explained = driver.machine.explain(driver.now, driver.channel("a"))
        assert (explained["reasons"][0]["code"], explained["flowing"]) == ("draining", False)

    def test_consumers_are_listed(self) -> None:
        driver = QueueDriver()
        driver.subscribe("a", 3)
        driver.put("a", "1")
        (row,) = driver.machine.explain(driver.now, driver.channel("a"))["consumers"]
        assert row == {
            "holder": "operator (link 1)", "agent": "operator", "peer": None, "credit": 2, "inflight": 1, "delivered": 1, "writable": True,
        }  # fmt: skip


class TestOverview:
    def whole(self, driver: QueueDriver) -> dict[str, Any]:
        return overview(driver.machine, driver.machine.channels.values(), asleep=[driver.machine.asleep])

    def test_is_the_sum_of_what_each_stream_says(self) -> None:
        driver = QueueDriver()
        consumer = driver.subscribe("a", 2)
        driver.put("a", "1", "2", "3")
        driver.put("b", "1", "2")
        driver.ack(consumer, "1")
        rows = [metrics(driver, name) for name in ("a", "b")]
        assert self.whole(driver) == {key: sum(row[key] for row in rows) for key in rows[0]}
        assert self.whole(driver)["q.in"] == 5

    def test_of_nothing_is_nothing(self) -> None:
        assert set(self.whole(QueueDriver()).values()) == {0}

    @pytest.mark.promise(
        "Schemas, skills and observability",
        "Prometheus metrics are sums by default, labelled on request, and no counter decreases",
    )
    def test_no_count_falls_when_streams_go_to_sleep_wake_up_or_are_forgotten(self) -> None:
        driver = QueueDriver(limits=Limits(idle_unload_ms=1_000, dormant_max=1))
        before = self.whole(driver)
        for name in ("a", "b", "c", "a", "b"):
            consumer = driver.subscribe(name, 1)
            driver.put(name, f"{name}-{driver.now.us}")
            driver.ack(consumer, *driver.channel(name).live)
            driver.machine.unsubscribe(driver.now, consumer)
            driver.advance(5_000)
            after = self.whole(driver)
            assert all(after[key] >= before[key] for key in before)
            assert after["q.in"] == after["q.ack"] == before["q.in"] + 1
            before = after
        assert not driver.machine.channels and driver.machine.totals.dormant_forgotten > 0
