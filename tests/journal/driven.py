"""A queue machine that writes to a real log, as a server does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import DeltaTable

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy, Retry
from penstock.core.rows import Row
from penstock.journal.disk import Disk
from penstock.journal.log import Log
from penstock.journal.port import Committed
from penstock.server.engine.machines import make_machine
from tests.core.driving import QueueDriver
from tests.journal.histories import rebuilt, reopened

POLICY = Policy(max_deliveries=3, lease_us=2_000_000, dedup_us=20_000_000, dedup_count=5, retry=Retry(300_000))

COMMIT_US = 250
"""A row is recorded a little after it happened."""


def make() -> QueueMachine:
    return make_machine(Limits(), lambda _: POLICY, bytes)


class Driven(QueueDriver):
    """A driver whose commits go to a log, facts first and observations after them."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.log: Log = reopened(disk)[0]
        super().__init__(POLICY)

    def commit(self, *, refused: str | None = None) -> None:
        while (batch := self.machine.commit_log.take_batch()) is not None:
            recorded_us = self.now.wall_us + COMMIT_US
            (outcome,) = self.log.commit([[*batch.facts, *batch.observations]], recorded_us)
            assert isinstance(outcome, Committed)
            self.machine.committed(self.now, outcome.first_offset, outcome.refused, outcome.recorded_us)
            self.apply()

    def restart(self) -> None:
        """Another machine goes on from the disk."""
        self.log.close()
        self.machine = from_disk(self.disk, self.now)
        self.log = reopened(self.disk)[0]
        self.machine.recovered(self.now)
        self.link = self.connect()
        self.apply()
        self.commit()

    def work(self, first: int, count: int) -> None:
        """Some envelopes, most of them settled one way or another."""
        consumer = self.subscribe("jobs", 1000)
        for n in range(first, first + count):
            self.put("jobs", f"e{n}")
            match n % 5:
                case 0 | 1:
                    self.ack(consumer, f"e{n}")
                case 2:
                    self.nack(consumer, f"e{n}", 5_000, "busy")
                case 3:
                    self.term(consumer, f"e{n}", "bad")
                case _:
                    pass
            self.advance(500.123)
        self.unsubscribe(consumer)


def state(machine: QueueMachine, now: Now) -> list[Row]:
    """Everything a machine knows, as rows, stream by stream: which of them sleep does not matter."""
    rows = [msgspec.structs.replace(row, journal="", epoch=0) for row in machine.snapshot(now)]
    return sorted(rows, key=lambda row: row.channel)


def from_history(rows: list[Row], now: Now) -> QueueMachine:
    machine = make()
    for row in rows:
        machine.restore(now, row)
    return machine


def from_disk(disk: Disk, now: Now) -> QueueMachine:
    """As the server recovers: live file, then tail."""
    machine = make()
    _, live, tail = rebuilt(disk)
    for row in live:
        machine.resume(now, row)
    for row in tail:
        machine.restore(now, row)
    return machine


def table_rows(data: Path) -> pa.Table:
    """The table of sealed history in offset order, read without Penstock."""
    table = DeltaTable(str(data / "lake" / "events")).to_pyarrow_table()
    return table.sort_by("offset")
