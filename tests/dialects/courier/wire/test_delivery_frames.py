"""Deliveries are written from the stored bytes: one line each, or arrays of a batch."""

from __future__ import annotations

import msgspec

from penstock.core.effects import Copy
from penstock.dialects.courier.wire.delivery_frames import delivery_lines, delivery_messages, delivery_prefix, tap_lines
from tests.dialects.courier.talking import Broker, filled

BOOT = "b00t"


def subscribed(batch: int = 1):
    """A broker with three envelopes, of which a subscription holds all."""
    broker = Broker()
    filled(broker, "jobs", "a", "b", "c")
    peer = broker.control()
    peer.say(type_="subscribe", stream="jobs", credit=3, batch=batch, reqId=1)
    [consumer] = broker.machine.channels["jobs"].consumers.values()
    return broker, consumer, list(broker.machine.channels["jobs"].live.values())


def test_a_line_has_one_envelope_with_its_bytes_number_and_lease():
    broker, consumer, records = subscribed()
    lines = delivery_lines(delivery_prefix(consumer), BOOT, broker.now, consumer, records).splitlines()
    assert len(lines) == 3
    for line, record in zip(lines, records, strict=True):
        assert record.body in line
        frame = msgspec.json.decode(line)
        assert (frame["type"], frame["stream"], frame["seq"], frame["attempt"]) == ("deliver", "jobs", record.seq, 1)
        assert frame["leaseId"] == f"{record.lease:x}.{consumer.no:x}.{BOOT}"
        assert frame["leaseExpiresAt"] == (broker.now.wall_us + consumer.lease_us) // 1000


def test_a_batch_is_four_arrays_of_equal_length():
    broker, consumer, records = subscribed(batch=2)
    lines = delivery_lines(delivery_prefix(consumer), BOOT, broker.now, consumer, records).splitlines()
    frames = [msgspec.json.decode(line) for line in lines]
    assert [[env["id"] for env in frame["env"]] for frame in frames] == [["a", "b"], ["c"]]
    assert [len(frame[name]) for frame in frames for name in ("seq", "attempt", "leaseId")] == [2, 2, 2, 1, 1, 1]
    messages = [msgspec.json.decode(message) for message in delivery_messages(BOOT, consumer, records)]
    assert [len(message["deliver"]) for message in messages] == [2, 1]


def test_an_envelope_of_several_lines_becomes_one_line():
    broker, consumer, records = subscribed()
    records[1].body = records[1].body.replace(b",", b",\n ", 1)
    lines = delivery_lines(delivery_prefix(consumer), BOOT, broker.now, consumer, records)
    assert lines.count(b"\n") == 3
    assert [msgspec.json.decode(line)["env"]["id"] for line in lines.splitlines()] == ["a", "b", "c"]


def test_taps_with_the_same_records_share_the_bytes_and_others_do_not():
    broker, _, records = subscribed()
    for number in range(2):
        broker.control().say(type_="tap", stream="jobs", reqId=number)
    first, second = broker.machine.taps["jobs"]
    shared: dict[tuple[bytes, int], bytes] = {}
    lines = tap_lines(Copy(first, records, shared))
    assert tap_lines(Copy(second, records, shared)) is lines
    assert tap_lines(Copy(second, records[:2], shared)) == b"".join(lines.splitlines(keepends=True)[:2])
    assert tap_lines(Copy(first, [], {}, 4)) == b'{"type":"tapped_lost","stream":"jobs","n":4}\n'
