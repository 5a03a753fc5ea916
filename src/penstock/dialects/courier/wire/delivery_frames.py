"""Deliveries as Control v1 lines and as messages of the subscribe socket, built from stored JSON without decoding it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.core.clock import Now
from penstock.core.effects import Copy
from penstock.core.links import Consumer
from penstock.core.records import Record
from penstock.dialects.courier.wire.envelopes import flat

_encode = msgspec.json.encode


def delivery_prefix(consumer: Consumer) -> bytes:
    """The beginning of every delivery line of one subscription."""
    stream = _encode(consumer.link.principal.from_channel(consumer.channel.name))
    return b'{"type":"deliver","stream":%b,"subId":%b,"env":' % (stream, _encode(consumer.label))


def delivery_lines(prefix: bytes, boot: str, now: Now, consumer: Consumer, records: list[Record]) -> bytes:
    """Delivery lines for one subscription; with `batch`, several envelopes a line."""
    expires = (now.wall_us + consumer.lease_us) // 1000
    if consumer.batch <= 1:
        tail = b'.%x.%b","leaseExpiresAt":%d}\n' % (consumer.no, boot.encode(), expires)
        lines = [
            b'%b%b,"seq":%d,"attempt":%d,"leaseId":"%x%b'
            % (prefix, record.body, record.seq, record.attempt, record.lease, tail)
            for record in records
        ]
    else:
        end = b',"leaseExpiresAt":%d}\n' % expires
        lines = [prefix + arrays + end for arrays in _arrays(boot, consumer, records)]
    written = b"".join(lines)
    if written.count(b"\n") == len(lines):
        return written
    # HTTP accepts envelopes that span several lines; here each must be one line.
    return b"".join([flat(line[:-1]) + b"\n" for line in lines])


def tap_lines(copy: Copy) -> bytes:
    """Copies for a tap: the number it missed, or one line an envelope."""
    stream = _encode(copy.tap.link.principal.from_channel(copy.tap.name))
    if copy.lost:
        return b'{"type":"tapped_lost","stream":%b,"n":%d}\n' % (stream, copy.lost)
    # A tap without room leaves out the end, so the channel and the number of records identify the lines.
    key = (_encode([copy.tap.name, stream.decode()]), len(copy.records))
    lines = copy.shared.get(key)
    if lines is None:
        lines = copy.shared[key] = b"".join(
            [b'{"type":"tap","stream":%b,"seq":%d,"env":%b}\n' % (stream, one.seq, one.body) for one in copy.records]
        )
    return lines


def expired_line(consumer: Consumer, record: Record, lease_id: str) -> bytes:
    """The notice that a lease ended."""
    stream = consumer.link.principal.from_channel(consumer.channel.name)
    notice = {"type": "expired", "id": record.id, "stream": stream, "subId": consumer.label, "leaseId": lease_id}
    return _encode(notice) + b"\n"


def delivery_messages(boot: str, consumer: Consumer, records: list[Record]) -> list[bytes]:
    """Delivery messages of the subscribe socket."""
    if consumer.batch <= 1:
        tail = b'.%x.%b"}' % (consumer.no, boot.encode())
        return [
            b'{"deliver":%b,"seq":%d,"attempt":%d,"leaseId":"%x%b'
            % (record.body, record.seq, record.attempt, record.lease, tail)
            for record in records
        ]
    return [b'{"deliver":' + arrays + b"}" for arrays in _arrays(boot, consumer, records)]


def _arrays(boot: str, consumer: Consumer, records: list[Record]) -> Iterator[bytes]:
    """The four arrays of each batch, beginning with the value of the first."""
    size = consumer.batch
    lease_end = f".{consumer.no:x}.{boot}"
    for start in range(0, len(records), size):
        part = records[start : start + size]
        yield b'[%b],"seq":%b,"attempt":%b,"leaseId":%b' % (
            b",".join([record.body for record in part]),
            _encode([record.seq for record in part]),
            _encode([record.attempt for record in part]),
            _encode([f"{record.lease:x}{lease_end}" for record in part]),
        )
