"""A hand-driven queue machine whose rows are kept as in a journal, as input for the pipeline's tables."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.clock import Now, rfc3339
from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy
from penstock.core.records import Fact, Record
from penstock.core.rows import Row, row_of
from penstock.core.scopes import ANONYMOUS, Principal, require
from penstock.dialects.courier.wire import envelopes
from penstock.journal.columns import encode_rows, fitted
from penstock.journal.parquet_table import FILE_SCHEMA
from tests.core.driving import START_WALL_US, QueueDriver

JOURNAL = "0123456789abcdef" * 2
BEAT_US = 30_000_000
MINUTE_US = 2 * BEAT_US
MINUTE_0 = START_WALL_US // MINUTE_US * MINUTE_US
"""The minute that everything begins in, twenty seconds after its start."""
COMMIT_US = 250
"""A row is recorded a little after it happened."""


def holder(name: str) -> Principal:
    """A client with a token of this name."""
    return Principal(name, scopes=require(["streams:*:enqueue", "streams:*:subscribe"]))


class Journaled(QueueDriver):
    """A driver with a journal and ticks, as a server has them."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.rows: list[Row] = []
        super().__init__(policy)

    def commit(self, *, refused: str | None = None) -> None:
        while (batch := self.machine.commit_log.take_batch()) is not None:
            facts: list[Fact] = [*batch.facts, *batch.observations]
            recorded_at = self.now.wall_us + COMMIT_US
            for number, fact in enumerate(facts, len(self.rows)):
                row = msgspec.structs.replace(row_of(fact), offset=number, recorded_at=recorded_at)
                self.rows.append(row)
            self.machine.committed(self.now, len(self.rows) - len(facts), recorded_us=recorded_at)
            self.apply()

    def send(self, to: str, id_: str, sender: str | None = None, **more: Any) -> None:
        """Enqueue an envelope as the doors do."""
        moment = rfc3339(self.now.wall_us)
        made = {"id": id_, "ts": moment, "type": "note", "payload": {"n": id_}, **more}
        if sender is not None:
            made["from"] = sender
        principal = ANONYMOUS if sender is None else Principal(sender, sender)  # also for senders that are reserved
        record = envelopes.parse(msgspec.json.encode(made), to, principal, Limits())
        assert isinstance(record, Record), record
        self.offer(to, record)
        self.commit()

    def wait(self, seconds: float) -> None:
        """Let time pass, with a tick at every half and gauges at every full minute."""
        end_us = self.now.wall_us + round(seconds * 1_000_000)
        while (due_us := (self.now.wall_us // BEAT_US + 1) * BEAT_US) <= end_us:
            self.advance((due_us - self.now.wall_us) / 1000)
            self.machine.tick(self.now, due_us - MINUTE_US if due_us % MINUTE_US == 0 else None)
            self.commit()
        self.advance((end_us - self.now.wall_us) / 1000)

    def restart(self) -> None:
        """Another machine goes on from the rows."""
        fresh = QueueDriver(self.machine.policy_for("any"))
        self.machine = fresh.machine
        for row in self.rows:
            self.machine.restore(self.now, row)
        self.machine.recovered(self.now)
        self.link = self.connect()
        self.apply()

    @property
    def events(self) -> pa.Table:
        return events_of(self.rows)


def events_of(rows: list[Row], journal: str = JOURNAL) -> pa.Table:
    """Rows as everybody outside sees them."""
    if not rows:
        return FILE_SCHEMA.empty_table()
    return pa.Table.from_batches([fitted(encode_rows(rows), FILE_SCHEMA, {"journal": journal, "shard": 0, "epoch": 0})])


def at(us: int) -> Now:
    return Now(us, us)
