"""Hot records: when a record is one, what is said of it, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.queue import hot
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from tests.core.driving import QueueDriver

AT_ONCE = Policy(max_deliveries=0, retry=None)


def fail(driver: QueueDriver, consumer: Any, id_: str, times: int) -> None:
    for _ in range(times):
        driver.nack(consumer, id_, reason="boom")


def reasons(driver: QueueDriver, stream: str = "a") -> dict[str, Any]:
    explained = driver.machine.explain(driver.now, driver.channel(stream))
    return {reason["code"]: reason for reason in explained["reasons"]}


@pytest.mark.promise("Delivery", "`redelivery.hot` names an envelope that fails again and again")
def test_a_record_is_hot_from_its_sixth_failure_until_it_is_settled() -> None:
    driver = QueueDriver()
    consumer = driver.subscribe("a", 100)
    driver.put("a", "1", "2")
    fail(driver, consumer, "1", 5)
    assert (driver.hot, hot.total(driver.machine), "redelivery.hot" in reasons(driver)) == ([], 0, False)
    fail(driver, consumer, "1", 1)
    assert (driver.hot, hot.total(driver.machine)) == ([("1", 1)], 1)
    assert driver.machine.stats(driver.now, driver.channel("a"))["hot"] == 1
    reason = reasons(driver)["redelivery.hot"]
    assert reason["message"].startswith("`1` failed 6 times, last: boom; ")
    assert (reason["count"], reason["ids"]) == (1, ["1"])
    driver.advance(1_000)
    driver.ack(consumer, "1")
    assert "redelivery.hot" not in reasons(driver)
    assert (hot.total(driver.machine), driver.machine.hot) == (0, {})


def test_lost_connections_in_a_row_make_a_record_hot() -> None:
    driver = QueueDriver()
    driver.put("a", "1")
    for _ in range(6):
        link = driver.connect()
        driver.subscribe("a", 1, link=link)
        driver.disconnect(link)
    assert "6 consumers in a row lost their connection" in reasons(driver)["redelivery.hot"]["message"]
    driver.advance(1_000)
    driver.release(driver.subscribe("a", 1), "1")
    assert hot.total(driver.machine) == 0


@pytest.mark.promise("Delivery", "a consumer that releases an envelope again and again does not spin")
def test_repeated_releases_back_off_and_make_a_record_hot_but_are_no_failures() -> None:
    driver = QueueDriver(entropy=bytes)
    consumer = driver.subscribe("a", 1_000)
    driver.put("a", "1", "2")
    for _ in range(6):
        driver.release(consumer, "1")
    assert driver.state("a") == (0, 1, 1), "the sixth waits, and no other record does"
    assert driver.hot == [("1", 1)]
    assert "`1` was released 6 times" in reasons(driver)["redelivery.hot"]["message"]
    assert driver.channel("a").live["1"].failures == driver.channel("a").live["1"].abandoned == 0
    driver.advance(1_000)
    assert driver.ids().count("1") == 7
    driver.ack(consumer, "1")
    assert hot.total(driver.machine) == 0


def test_a_stream_reports_once_a_minute() -> None:
    driver = QueueDriver(AT_ONCE)
    consumer = driver.subscribe("a", 1_000)
    driver.put("a", "1", "2", "3")
    for id_ in ("1", "2", "3"):
        fail(driver, consumer, id_, 10)
    assert driver.hot == [("1", 1)]
    driver.put("b", "4")
    fail(driver, driver.subscribe("b", 100), "4", 6)
    assert driver.hot[1:] == [("4", 1)]
    driver.us += hot.REPORT_EVERY_US
    fail(driver, consumer, "2", 1)
    assert driver.hot[2:] == [("2", 3)]


@pytest.mark.promise("Invariants", "8: every bound holds")
def test_hot_records_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "IDS_MAX", 2)
    monkeypatch.setattr(hot, "STREAMS_MAX", 2)
    driver = QueueDriver(AT_ONCE)
    for stream in ("a", "b", "c"):
        consumer = driver.subscribe(stream, 1_000)
        driver.put(stream, "1", "2", "3")
        for id_ in ("1", "2", "3"):
            fail(driver, consumer, id_, 6)
    assert {name: list(stream.ids) for name, stream in driver.machine.hot.items()} == {"b": ["2", "3"], "c": ["2", "3"]}
    assert hot.total(driver.machine) == 4


def test_a_settled_stream_makes_room_before_a_hot_one_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot, "STREAMS_MAX", 2)
    driver = QueueDriver(AT_ONCE)
    consumers = {}
    for stream in ("a", "b", "c"):
        consumers[stream] = driver.subscribe(stream, 100)
        driver.put(stream, "1")
        fail(driver, consumers[stream], "1", 6)
        if stream == "b":
            driver.ack(consumers["b"], "1")
    assert list(driver.machine.hot) == ["a", "c"]


def test_a_back_off_that_blocks_a_key_is_named() -> None:
    driver = QueueDriver(Policy(partitioned=True), entropy=bytes)
    consumer = driver.subscribe("a", 100)
    for id_ in ("1", "2"):
        record = _keyed(id_)
        driver.offer("a", record)
        driver.commit()
    fail(driver, consumer, "1", 6)
    found = reasons(driver)
    assert "waits for its next redelivery" in found["key_blocked"]["message"]
    driver.advance(1_000)
    assert "leased or delayed" in reasons(driver)["key_blocked"]["message"]


def _keyed(id_: str) -> Record:
    body = b'{"id":"%b","partitionKey":"k","payload":1}' % id_.encode()
    return Record(id_, "test", body)
