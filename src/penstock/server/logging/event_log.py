"""The event log: one JSON line in a file for each event of an envelope or a connection.

    {"ts":"2026-01-01T00:00:00.000Z","event":"ack","stream":"jobs","id":"e-1","seq":1,"attempt":1,"peer":"sam","durMs":12.5}

The loop only queues values; the thread of `LineWriter` formats and writes them. Facts are logged when they are durable. Payloads are
omitted unless the config includes them.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.clock import Now
from penstock.core.commit_log import Batch
from penstock.core.links import Consumer, Link
from penstock.core.records import Applied, Fired, Record, Settle, is_fresh
from penstock.server.config.sections import LogsSection
from penstock.server.files.line_writer import JsonLines, json_line

WAITING_MAX = 200_000
"""Events waiting to be written: about 60 MiB."""
LEASES_MAX = 200_000
"""Leases whose start is remembered; the oldest are evicted first, and their ends have no `durMs`."""

LEASE_ENDS = frozenset({"ack", "nack", "release", "timeout", "dead"})

TRIGGERED: dict[str | None, str] = {
    "fired": "trigger.run",
    "failed": "trigger.fail",
    "suppressed": "trigger.suppressed",
}
"""Event names of observations about rules, by reason."""

Fields = dict[str, Any]
Event = tuple[str, int, Fields]
"""Name, wall time, fields."""
Turn = list[Event]


class _Payload(msgspec.Struct):
    payload: msgspec.Raw


_payload = msgspec.json.Decoder(_Payload)


class EventLog(JsonLines[Event]):
    """Writes the event log."""

    def __init__(self, path: Path, *, max_bytes: int, keep: int, payload: bool = False) -> None:
        self._payload = payload
        self._leases: dict[tuple[str, int, int], tuple[int, int]] = {}
        """Start and link of each delivery, by stream, number and attempt."""
        self._links: dict[int, list[int]] = {}
        """Deliveries and settles of each open connection."""
        self._proposals: deque[int] = deque()
        """Closing time of each batch that the journal has not answered."""
        super().__init__(path, max_bytes=max_bytes, keep=keep, waiting_max=WAITING_MAX, thread="penstock-events")

    def write(self, event: str, /, *, now: Now | None = None, **fields: Any) -> None:
        """Log one event of any kind, such as `trigger.run`, `trigger.fail` or `trigger.suppressed`."""
        self.put([(event, time.time_ns() // 1000 if now is None else now.wall_us, fields)])

    def opened(self, now: Now, link: Link, peer: str) -> None:
        """A connection was opened."""
        self._links[link.no] = [0, 0]
        self.write("conn.open", now=now, link=link.no, peer=peer, who=link.who)

    def closed(self, now: Now, link: Link, peer: str, opened_us: int, code: int, reason: str) -> None:
        """A connection was closed, with a WebSocket close code and a reason."""
        delivered, settled = self._links.pop(link.no, (0, 0))
        self.write(
            "conn.close",
            now=now,
            link=link.no,
            peer=peer,
            who=link.who,
            delivered=delivered,
            settled=settled,
            durMs=round((now.us - opened_us) / 1000, 3),
            code=code,
            reason=reason,
        )

    def delivered(self, now: Now, consumer: Consumer, records: list[Record]) -> None:
        """Records were leased to a consumer; `durMs` is the time since they arrived."""
        if not records:
            return
        link = consumer.link
        counts = self._links.get(link.no)
        if counts is not None:
            counts[0] += len(records)
        stream, who, wall_us = consumer.channel.name, link.who, now.wall_us
        turn: Turn = []
        for record in records:
            self._leases[stream, record.seq, record.attempt] = (now.us, link.no)
            fields = {
                "stream": stream,
                "id": record.id,
                "seq": record.seq,
                "attempt": record.attempt,
                "peer": who,
                "link": link.no,
                "durMs": (now.us - record.arrived_us) / 1000,
            }
            turn.append(("deliver", wall_us, fields))
        while len(self._leases) > LEASES_MAX:
            del self._leases[next(iter(self._leases))]
        self.put(turn)

    def proposed(self, now: Now) -> None:
        """A batch was closed; its settles happened by now."""
        self._proposals.append(now.us)

    def refused(self) -> None:
        """The oldest batch was refused as a whole; nothing in it happened."""
        self._proposals.popleft()

    def committed(self, now: Now, batch: Batch, is_partial: bool) -> None:
        """The oldest batch is durable; with `is_partial`, all but its fresh facts."""
        at_us = self._proposals.popleft()
        wall_us = now.wall_us
        turn: Turn = []
        size = 0
        fired = [seen for seen in batch.observations if isinstance(seen, Fired)]
        others = [seen for seen in batch.observations if not isinstance(seen, Fired)] if fired else batch.observations
        # A lease expires before its record becomes a dead letter; a rule fires after its cause.
        for fact in (*others, *batch.facts, *fired):
            if is_partial and is_fresh(fact):
                continue
            if type(fact) is Record:
                fields: Fields = {
                    "stream": fact.channel.name,
                    "id": fact.id,
                    "seq": fact.seq,
                    "type": fact.kind,
                    "bytes": len(fact.body),
                }
                if fact.sender is not None:
                    fields["from"] = fact.sender
                if self._payload:
                    fields["payload"] = fact.body
                    size += len(fact.body)
                turn.append(("enqueue", wall_us, fields))
            elif isinstance(fact, Settle) and fact.event == "trigger":
                turn.append((TRIGGERED.get(fact.reason, "trigger.run"), wall_us, _fired(fact)))
            elif isinstance(fact, Settle):
                turn.append((fact.event, wall_us, self._settled(fact, at_us)))
            elif type(fact) is Applied:
                fields = {"app": fact.app, "batch": fact.batch, "envelopes": fact.envelopes}
                turn.append(("staged", wall_us, fields))
        self.put(turn, size)

    def _settled(self, fact: Settle, at_us: int) -> Fields:
        record = fact.record
        fields: Fields = {"stream": record.channel.name, "id": record.id, "seq": record.seq, "attempt": fact.attempt}
        if fact.peer is not None:
            fields["peer"] = fact.peer
        if fact.reason is not None:
            fields["reason"] = fact.reason
        if fact.event in LEASE_ENDS:
            lease = self._leases.pop((record.channel.name, record.seq, fact.attempt), None)
            if lease is not None:
                since_us, link_no = lease
                fields["durMs"] = (at_us - since_us) / 1000
                counts = self._links.get(link_no)
                if counts is not None and fact.event != "timeout":
                    counts[1] += 1
        return fields

    def _format(self, item: Event) -> bytes:
        event, wall_us, fields = item
        body = fields.get("payload")
        if event == "enqueue" and isinstance(body, bytes):
            fields["payload"] = _payload.decode(body).payload
        return json_line({"ts": self._stamp(wall_us), "event": event}, fields)


def _fired(fact: Settle) -> Fields:
    """What a rule did or did not do, and the envelope that caused it."""
    record = fact.record
    fields: Fields = {"rule": fact.peer, "stream": record.channel.name, "id": record.id, "seq": record.seq}
    if fact.meta is not None:
        fields["detail"] = msgspec.Raw(fact.meta.encode())
    return fields


def make_event_log(logs: LogsSection) -> EventLog | None:
    """The event log of a config; None when it is off."""
    if logs.events is None:
        return None
    return EventLog(Path(logs.events), max_bytes=logs.events_max_bytes, keep=logs.events_keep, payload=logs.payload)
