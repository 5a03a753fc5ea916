"""A data directory with a few minutes of journaled work, and its lake as plain rows to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.links import Consumer
from penstock.core.queue.policy import Policy
from penstock.core.records import Entry, Fact
from penstock.dialects.courier.triggers.config import Trigger
from penstock.journal.disk import RealDisk
from penstock.journal.open_and_repair import WATERMARK, Opened, encode_watermark
from penstock.server.engine.machines import install_rules
from penstock.spark.lake.schemas import EVENTS, TABLES
from penstock.spark.lake.table import LakeTable
from tests.core.driving import QueueDriver
from tests.journal.histories import FOREVER, sealer
from tests.spark.journaled import COMMIT_US, JOURNAL, Journaled, holder

INGESTED = [name for name in TABLES if name not in ("events", "alerts", "agents")]
WATCHED = ["alerts", "agents"]


class JournalBuilder(Journaled):
    """A queue whose facts go into a real journal directory."""

    def __init__(self, data: Path, journal: str = JOURNAL, policy: Policy | None = None) -> None:
        self.data = data
        self._disk = RealDisk(data / "journal")
        opened = Opened(self._disk, fresh_id=journal, sync="off")
        live, tail = list(opened.live_rows()), list(opened.tail_rows())
        self._log = opened.log()
        self.consumers: list[Consumer] = []
        super().__init__(policy or Policy(max_deliveries=2))
        for row in live:
            self.machine.resume(self.now, row)
        for row in tail:
            self.machine.restore(self.now, row)
        self.machine.recovered(self.now)

    @property
    def end(self) -> int:
        return self._log.position.offset

    def commit(self, *, refused: str | None = None) -> None:
        while (batch := self.machine.commit_log.take_batch()) is not None:
            facts: list[Fact] = [*batch.facts, *batch.observations]
            [done] = self._log.commit([facts], self.now.wall_us + COMMIT_US)
            self.machine.committed(self.now, done.first_offset, recorded_us=done.recorded_us)
            self.apply()
        position = self._log.position
        self._disk.overwrite(WATERMARK, encode_watermark(position.offset, position.epoch))

    def note(self, entry: Entry) -> None:
        """A row of a space."""
        self.machine.commit_log.facts.append(entry)
        self.commit()

    def say(self, seq: int, kind: str, id_: str, sender: str, **more: Any) -> None:
        """An envelope in the space `demo`."""
        body = msgspec.json.encode({"id": id_, "from": sender, "kind": kind, **more})
        corr = more.get("correlation_id", [None])[0]
        self.note(Entry("mew", "envelope", "demo", seq, id_, kind, sender, corr=corr, size=len(body), body=body))

    def seal(self, retention: Any = FOREVER) -> None:
        self._log.rotate()
        sealer(self.data, retention=retention).seal(self.now.wall_us, wants_live=True)

    def close(self) -> None:
        self._log.close()
        self._disk.unlock()


def work(story: JournalBuilder, minutes: int = 3, each: int = 8) -> None:
    """Some minutes of traffic: jobs done, given back, hopeless; questions and answers; quiet in between."""
    if not story.consumers:
        story.consumers = [
            story.subscribe("jobs", 50, label="sam", link=story.connect(holder("sam")), lease_ms=20_000),
            story.subscribe("agents/ann/inbox", 50, label="ann", link=story.connect(holder("ann"))),
        ]
    sam, inbox = story.consumers
    for minute in range(minutes):
        for number in range(each):
            name = f"{story.end}"
            corr = f"talk-{minute}-{number % 3}"
            story.send("jobs", f"job-{name}", "ann", corr=corr, tags=["t", f"{number}"])
            story.send("agents/ann/inbox", f"ask-{name}", "bob", corr=corr, refs=[f"job-{name}"])
            story.wait(60 / (2 * each))
            story.grant(sam, 2)
            story.grant(inbox, 2)
            if number % 4 == 3:
                story.machine.term(story.now, sam, story.held(sam, f"job-{name}"), "hopeless")
                story.apply()
                story.commit()
            elif number % 4 == 2:
                story.machine.nack(story.now, sam, story.held(sam, f"job-{name}"), None, "again")
                story.apply()
                story.commit()
                story.ack(sam, f"job-{name}")
            else:
                story.ack(sam, f"job-{name}")
            if number % 2:
                story.ack(inbox, f"ask-{name}")
            story.wait(60 / (2 * each))


def talk(story: JournalBuilder, first: int) -> None:
    """A minute in a space: two requests, answers to the two before them, a word on a job, frames in full and counted."""
    counts = {"frames": 10, "bytes": 100, "deliveries": 10, "participants": 4, "broadcast": 40}
    for number in (first, first + 1):
        story.say(3 * number, "mcp/request", f"req-{number}", "kim", protocol="mew/v0.4", payload={})
        story.say(3 * number + 1, "chat", f"word-{number}", "sam", correlation_id=["talk-0-0"])
        meta = msgspec.json.encode(counts).decode()
        story.note(Entry("mew", "frame_counts", "demo/stream-1", 10 * number, meta=meta))
        story.wait(29)
        answered = f"req-{number - 2}"
        story.say(3 * number + 2, "mcp/response", f"res-{number}", "sam", correlation_id=[answered])
        meta = '{"participants":4,"target":["sam"]}'
        kept = {"sender": "kim", "size": 4, "recipients": 1, "meta": meta, "body": b"data"}
        story.note(Entry("mew", "frame", "demo/stream-2", number, **kept))
        story.wait(1)


def speak(story: JournalBuilder, first: int) -> None:
    """Two token streams, one of which goes on from call to call, is over in the second one, and comes back."""
    long, short = "a" * 64, f"{first:064x}"
    if first == 0:
        story.note(Entry("streamservice", "register", long, sender="s", meta='{"exp":9,"signer":"s"}'))
    for number in (first, first + 1):
        meta = msgspec.json.encode({"chunks": 100, "sent": 90, "replayed": number, "lost": 10 * number})
        counted = {"kind": "chunk", "size": 50_000, "recipients": 1, "meta": meta.decode()}
        story.note(Entry("streamservice", "chunk_counts", long, 100 * number, **counted))
        story.wait(1)
    story.note(Entry("streamservice", "resume", long, meta='{"found":false,"messages":0}'))
    if first:
        story.note(Entry("streamservice", "expire", long, reason="expired"))
        story.note(Entry("streamservice", "chunk_counts", long, 300, **counted))  # the last one comes later
        story.wait(1)
        story.note(Entry("streamservice", "register", long, sender="s", meta='{"exp":9,"signer":"s"}'))
        return
    story.note(Entry("streamservice", "register", short, sender="s", meta='{"exp":9,"signer":"s"}'))
    for number in (1, 2):
        kept = {"kind": "chunk", "size": 5, "recipients": 1, "meta": '{"held":true}', "body": b"bytes"}
        story.note(Entry("streamservice", "chunk", short, number, **kept))
        story.wait(1)
    story.note(Entry("streamservice", "expire", short, reason="idle"))


def rule(bench: QueueDriver, *told: dict[str, Any]) -> None:
    """Have these triggers tried, and no others."""
    install_rules(bench.machine, [msgspec.convert(one, Trigger) for one in told])


COPIES = {
    "id": "copies",
    "when": {"to": "jobs"},
    "do": [{"action": "route", "to": "copies"}],
    "limits": {"cooldownMs": 12_000},
}
"""A rule for some of the work: it acts, is kept from acting, and changes nothing but a stream of its own."""

STRICT = {
    "id": "strict",
    "strict": True,
    "when": {"to": "jobs"},
    "do": [{"action": "notify", "to": "told", "payload": {"what": "${env.payload.absent}"}}],
}
"""A rule that always fails, until its breaker has it rest."""


def content(lake: Path, names: list[str] = INGESTED) -> dict[str, list[dict[str, Any]]]:
    """Every row of some tables, in the order of their keys: what two lakes are compared by."""
    found = {}
    for name in names:
        definition = TABLES[name]
        assert definition is not EVENTS
        table = LakeTable(lake, definition)
        rows = table.rows() if table.version() is not None else definition.schema.empty_table()
        plain = rows.set_column(0, "journal", rows.column("journal").cast(pa.string())).to_pylist()
        if "cluster" in definition.key:
            plain = [{"cluster": row["journal"]} | row for row in plain]  # a lake of an earlier version has no cluster
        found[name] = sorted(plain, key=lambda row: tuple(str(row[part]) for part in definition.key))
        keys = [tuple(row[part] for part in definition.key) for row in found[name]]
        assert len(set(keys)) == len(keys), f"a key of `{name}` is there twice"
    return found
