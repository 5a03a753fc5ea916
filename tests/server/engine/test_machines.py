"""What a journal rebuilds: rows go to the machine of their door, and a snapshot rebuilds the same."""

from __future__ import annotations

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.rows import Row
from penstock.server.engine.machines import Machines, make_machine
from tests.dialects.courier.talking import Broker, envelope, filled
from tests.dialects.mew.driving import GatewayDriver, picture

NOW = Now(1, 1_700_000_000_000_000)


def machines() -> Machines:
    return Machines(make_machine(Limits(), lambda _: Policy(), lambda count: b"\1" * count))


def test_rows_of_the_queue_rebuild_its_envelopes() -> None:
    broker = Broker()
    filled(broker, "jobs", "a", "b")
    found = machines()
    for row in broker.machine.snapshot(broker.now):
        found.resume(NOW, row)
    found.recovered(NOW)
    assert list(found.queue.channels["jobs"].live) == ["a", "b"]
    assert [row.id for row in found.snapshot(NOW) if row.event == "enqueue"] == ["a", "b"]


def test_rows_of_a_space_rebuild_its_memory_and_no_stream_of_the_queue() -> None:
    driver = GatewayDriver()
    driver.open_stream(driver.join("p1"))
    found = machines()
    for row in driver.journal.rows:
        found.restore(NOW, row)
    found.recovered(NOW)
    assert found.queue.channels == {}
    again = machines()
    for row in found.snapshot(NOW):
        again.resume(NOW, row)
    assert picture(again.memory) == picture(found.memory)


def test_an_empty_journal_rebuilds_nothing() -> None:
    found = machines()
    found.recovered(NOW)
    assert [row for row in found.snapshot(NOW) if row.channel] == []


def test_an_envelope_that_is_restored_is_delivered_after_the_recovery() -> None:
    found = machines()
    body = str(envelope("e")).encode()
    found.restore(NOW, Row(event="enqueue", channel="jobs", seq=1, id="e", kind="note", body=body))
    found.recovered(NOW)
    found.wake(NOW)
    assert found.queue.channels["jobs"].live["e"].body == body
