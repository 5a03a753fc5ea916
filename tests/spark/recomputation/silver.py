"""One row for each envelope, settled record, frame and token message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tests.spark.recomputation.rows import EPOCH, OUTCOMES, Journal, Row, day, meta_of, ms


def envelopes(journal: Journal) -> Iterator[Row]:
    for row in journal.rows:
        is_mew = row["door"] == "mew"
        if (row["door"], row["event"]) not in {("courier", "enqueue"), ("mew", "envelope")}:
            continue
        members = msgspec.json.decode(row["body"], type=dict[str, msgspec.Raw])
        payload = members.pop("payload", None)
        read = {name: json.loads(bytes(raw)) for name, raw in members.items()}
        for name in ("id", "kind", "from") if is_mew else ("id", "type", "from", "corr"):
            read.pop(name, None)
        moment = datetime.fromisoformat(read.pop("ts")) if read.get("ts") else None
        to, refs = read.pop("to", None), read.pop("correlation_id" if is_mew else "refs", None)
        made = {name: row[name] for name in ("journal", "offset", "recorded_at", "door", "channel", "seq", "id")}
        made |= {"date": day(row["recorded_at"]), "type": row["kind"], "sender": row["sender"], "corr": row["corr"]}
        made["targets"] = _listed(to) or [] if is_mew else [to or row["channel"]]
        made["refs"] = _listed(refs)
        made["tags"] = None if is_mew else read.pop("tags", None)
        headers = None if is_mew else read.pop("headers", None)
        made["headers"] = None if headers is None else {name: _text(value) for name, value in headers.items()}
        made["schema"] = None if is_mew else read.pop("schema", None)
        made["producer_ts"] = None if moment is None else (moment - EPOCH) // timedelta(microseconds=1)
        made["payload"] = None if payload is None else bytes(payload).decode()
        made["payload_error"] = None
        made["extra"] = read or None
        yield made | {"bytes": row["bytes"]}


def _listed(value: Any) -> list[str] | None:
    return [value] if isinstance(value, str) else value


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def deliveries(journal: Journal) -> Iterator[Row]:
    for row in journal.of("courier", *OUTCOMES):
        made = {name: row[name] for name in ("journal", "offset", "channel", "seq", "id", "sender", "corr", "reason")}
        at = row["recorded_at"]
        yield made | {
            "date": day(at),
            "type": row["kind"],
            "holder": row["peer"],
            "enqueued_at": journal.enqueued_at(row),
            "first_delivered_at": row["first_at"],
            "settled_at": at,
            "attempts": row["attempt"],
            "wait_ms": ms(journal.enqueued_at(row), row["first_at"]),
            "work_ms": ms(row["first_at"], at),
            "total_ms": ms(journal.enqueued_at(row), at),
            "outcome": OUTCOMES[row["event"]],
        }


def frames(journal: Journal) -> Iterator[Row]:
    for row in journal.of("mew", "frame"):
        meta = meta_of(row)
        space, _, stream = row["channel"].rpartition("/")
        kept = ("journal", "offset", "recorded_at", "seq", "sender", "recipients", "bytes", "body")
        yield {name: row[name] for name in kept} | {
            "date": day(row["recorded_at"]),
            "space": space,
            "stream_id": stream,
            "targets": meta.get("target"),
            "participants": meta.get("participants"),
        }


def token_chunks(journal: Journal) -> Iterator[Row]:
    for row in journal.of("streamservice", "chunk", "chunk_counts"):
        meta, is_count = meta_of(row), row["event"] == "chunk_counts"
        yield {name: row[name] for name in ("journal", "offset", "recorded_at", "seq", "bytes")} | {
            "date": day(row["recorded_at"]),
            "topic_hash": row["channel"],
            "format": row["kind"],
            "replayed": meta.get("replayed", 0) > 0,
            "held": meta.get("held", meta.get("waiting", 0) > 0),
            "subscribers": row["recipients"],
            "chunks": meta.get("chunks", 0) if is_count else None,
        }
