"""Histories for tests of the journal: hand-made facts, and directories opened as a server opens them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from penstock.core.limits import Limits
from penstock.core.queue.channel import Channel
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.core.records import Fact, Record, Settle
from penstock.core.rows import Row, row_of
from penstock.journal.columns import encode_rows, pack_facts
from penstock.journal.disk import Disk, RealDisk
from penstock.journal.lake_location import lake_of
from penstock.journal.log import Log, Sync
from penstock.journal.open_and_repair import WATERMARK, Opened, encode_watermark
from penstock.journal.port import Committed
from penstock.journal.retention import Retention
from penstock.journal.seal import Sealer
from penstock.journal.segments import encode_frame, encode_packed
from penstock.server.engine.machines import make_machine

JOURNAL = "0123456789abcdef" * 2
START_US = 1_760_000_000_000_000
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
FOREVER = Retention(age_ms=0, bytes_max=0)
CHANNEL = Channel("jobs", Policy())


def put(id_: str, body: bytes = b"{}", seq: int = 1, channel: Channel = CHANNEL) -> Record:
    return Record(id_, "note", body, channel=channel, seq=seq)


def ack(id_: str, seq: int = 1, channel: Channel = CHANNEL) -> Settle:
    record = put(id_, seq=seq, channel=channel)
    record.offset, record.recorded_us = 0, START_US
    return Settle("ack", record, "worker", 1, START_US)


def kept(first: int, refused: str | None = None) -> Committed:
    """The outcome of a commit at `START_US`."""
    return Committed(first, refused, START_US)


def arrow_frame(facts: Sequence[Fact], first: int, time_us: int) -> bytes:
    """A frame as segments of version 1 have it."""
    rows = [replace(row_of(fact), offset=first + place, recorded_at=time_us) for place, fact in enumerate(facts)]
    return encode_frame(encode_rows(rows))


def packed_frame(facts: Sequence[Fact], first: int, time_us: int) -> bytes:
    """A frame as segments of version 2 have it."""
    return encode_packed(first, time_us, len(facts), pack_facts(facts))


def label(fact: Fact | Row) -> tuple[str, str | None]:
    """What a fact and its row have in common."""
    event = getattr(fact, "event", "enqueue")
    found = fact.record if isinstance(fact, Settle) else fact
    return event, getattr(found, "id", None)


def rebuilt(disk: Disk, *, sync: Sync = "commit") -> tuple[Opened, list[Row], list[Row]]:
    """A directory opened for writing, with the rows of its live file and of its tail."""
    opened = Opened(disk, fresh_id=JOURNAL, sync=sync)
    live = list(opened.live_rows())
    return opened, live, list(opened.tail_rows())


def reopened(disk: Disk, *, sync: Sync = "commit") -> tuple[Log, list[Row]]:
    """A log to write to, and the history it goes on from."""
    opened, _, rows = rebuilt(disk, sync=sync)
    return opened.log(), rows


def publish(disk: RealDisk, end: int) -> None:
    """Write the watermark, as a writer does after each commit."""
    disk.overwrite(WATERMARK, encode_watermark(end, 0))
    disk.unlock()


def machine() -> QueueMachine:
    return make_machine(Limits(), lambda name: Policy(), bytes)


def sealer(
    data: Path,
    *,
    retention: Retention = FOREVER,
    make: Callable[[], QueueMachine] = machine,
    disk: Disk | None = None,
) -> Sealer:
    return Sealer(disk or RealDisk(data / "journal"), lake_of(data), make, retention=retention)
