"""The tables that count: minutes of queues, triggers and spaces, the newest envelopes, token streams."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from tests.spark.recomputation.rows import (
    EVENTS,
    LATE_US,
    MINUTE_US,
    OUTCOMES,
    Journal,
    Row,
    day,
    grouped,
    meta_of,
    minute_of,
    ms,
    owner_of,
    percentile,
)


def queue_minutes(journal: Journal) -> Iterator[Row]:
    placed = []
    for row in journal.rows:
        if row["door"] == "courier" and row["channel"]:
            gauge = meta_of(row) if row["event"] == "gauge" else {}
            closed = minute_of(gauge.get("minute") or 0)
            is_in_time = gauge and 0 <= row["recorded_at"] - closed < MINUTE_US + LATE_US
            minute = closed if is_in_time else minute_of(row["recorded_at"])
            placed.append(row | {"minute": minute, "gauge": gauge})
    for (channel, minute), rows in grouped(placed, "channel", "minute").items():
        gauges = [row["gauge"] for row in rows if row["gauge"]]
        settled = [row for row in rows if row["event"] in OUTCOMES]
        waits = [wait for row in settled if (wait := ms(journal.enqueued_at(row), row["first_at"])) is not None]
        totals = [total for row in settled if (total := ms(journal.enqueued_at(row), row["recorded_at"])) is not None]
        nacks = [row for row in rows if row["event"] == "nack" and "fate" not in meta_of(row)]
        last = gauges[-1] if gauges else {}
        made = {
            "enqueued": _count(rows, "enqueue"),
            "delivered": _grown(gauges, "out"),
            "acked": _count(rows, "ack"),
            "nacked": len(nacks),
            "timed_out": _grown(gauges, "timeout"),
            "dead": _count(rows, "dead"),
            "dropped": _count(rows, "drop"),
            "purged": _count(rows, "purge"),
            "duplicates": _grown(gauges, "dup"),
            "rejected": _grown(gauges, "reject"),
        } | {name: _depth(last, name) for name in ("ready", "leased", "delayed")}
        if any("own" in gauge for gauge in gauges) and not sum(made.values()):
            continue  # nothing but what the pipeline sent
        yield made | {
            "journal": journal.id,
            "date": day(minute),
            "minute": minute,
            "channel": channel,
            "redelivered": _grown(gauges, "re"),
            "bytes_in": sum(row["bytes"] or 0 for row in rows if row["event"] == "enqueue"),
            "oldest_ms": last.get("oldest"),
            "wait_p50_ms": percentile(waits, 0.5),
            "wait_p95_ms": percentile(waits, 0.95),
            "wait_p99_ms": percentile(waits, 0.99),
            "total_p95_ms": percentile(totals, 0.95),
            "final": journal.is_final(minute),
        }


def _count(rows: list[Row], event: str) -> int:
    return sum(row["event"] == event for row in rows)


def _grown(gauges: list[Row], counter: str) -> int:
    """How much a counter grew; without what the pipeline sent."""
    deltas = ((gauge.get("delta") or {}, gauge.get("own") or {}) for gauge in gauges)
    return sum(delta[counter] - own.get(counter, 0) for delta, own in deltas if counter in delta)


def _depth(gauge: Row, state: str) -> Any:
    return gauge[state] - (gauge.get("own") or {}).get(state, 0) if state in gauge else None


def trigger_minutes(journal: Journal) -> Iterator[Row]:
    acted = [
        row | {"minute": minute_of(row["recorded_at"]), "firing": meta_of(row)}
        for row in journal.of("courier", "trigger")
        if row["peer"] is not None
    ]
    for (trigger, minute), rows in grouped(acted, "peer", "minute").items():
        yield {
            "journal": journal.id,
            "date": day(minute),
            "minute": minute,
            "trigger": trigger,
            "hook": rows[-1]["firing"]["hook"],
            "fired": sum(row["reason"] == "fired" for row in rows),
            "failed": sum(row["reason"] == "failed" for row in rows),
            "suppressed": sum(row["firing"].get("suppressed") or 0 for row in rows),
            "sent": sum(len(row["firing"].get("sent") or ()) for row in rows),
            "streams": len({row["channel"] for row in rows}),
            "final": journal.is_final(minute),
        }


def fanout_minutes(journal: Journal) -> Iterator[Row]:
    counted = [
        row | {"minute": minute_of(row["recorded_at"]), "space": row["channel"].rpartition("/")[0]}
        for row in journal.of("mew", "frame", "frame_counts")
    ]
    for (space, minute), rows in grouped(counted, "space", "minute").items():
        sums = dict.fromkeys(("frames", "bytes", "deliveries", "broadcast_deliveries"), 0)
        for row in rows:
            meta = meta_of(row)
            if row["event"] == "frame":
                each = (1, row["bytes"], row["recipients"], meta["participants"])
            else:
                each = (meta["frames"], meta["bytes"], meta["deliveries"], meta["broadcast"])
            sums = {name: total + added for (name, total), added in zip(sums.items(), each, strict=True)}
        yield sums | {
            "journal": journal.id,
            "date": day(minute),
            "minute": minute,
            "space": space,
            "streams": len({row["channel"] for row in rows}),
            "saved": sums["broadcast_deliveries"] - sums["deliveries"],
            "final": journal.is_final(minute),
        }


def latest_per_agent(journal: Journal) -> Iterator[Row]:
    sent = [
        row for row in journal.of("courier", "enqueue") if owner_of(row["channel"]) and not meta_of(row).get("moved")
    ]
    for (address,), rows in grouped(sent, "channel").items():
        newest = rows[-1]
        kept = ("journal", "offset", "seq", "id", "sender", "corr", "recorded_at")
        payload = msgspec.json.decode(newest["body"], type=dict[str, msgspec.Raw])["payload"]
        yield {name: newest[name] for name in kept} | {
            "address": address,
            "agent": owner_of(address),
            "type": newest["kind"],
            "payload": bytes(payload).decode(),
        }


def token_streams(journal: Journal) -> Iterator[Row]:
    """Without keys: what a blind relay can count."""
    for (topic,), rows in grouped(journal.of("streamservice", *EVENTS["streamservice"].split()), "channel").items():
        streams: list[list[Row]] = []
        for row in rows:
            is_over = streams and any(one["event"] == "expire" for one in streams[-1])
            if not streams or (
                row["event"] == "register" and is_over and row["recorded_at"] > streams[-1][0]["recorded_at"]
            ):
                streams.append([])
            streams[-1].append(row)
        for stream in streams:
            yield _token_stream(journal.id, topic, stream)


def _token_stream(journal: str, topic: str, rows: list[Row]) -> Row:
    counts = [meta_of(row) | row for row in rows if row["event"] == "chunk_counts"]
    resumes = [meta_of(row) for row in rows if row["event"] == "resume"]
    ends = [row for row in rows if row["event"] == "expire"]
    journaled = 0
    times: list[int] = []
    for row in rows:  # a count says when its messages passed, unless the messages themselves do
        journaled += row["event"] == "chunk"
        if row["event"] == "chunk" or (row["event"] == "chunk_counts" and meta_of(row).get("chunks") and not journaled):
            times.append(row["recorded_at"])
    started = rows[0]["recorded_at"]
    chunks = sum(row.get("chunks", 0) for row in counts)
    took_s = (times[-1] - started) / 1e6 if times else 0.0
    unknown = (
        "tokens",
        "tokens_per_s",
        "finish_reason",
        "chain_ok",
        "perplexity",
        "entropy",
        "forged",
        "breaks",
        "mark",
    )
    return dict.fromkeys(unknown) | {
        "journal": journal,
        "topic_hash": topic,
        "started_at": started,
        "ended_at": ends[0]["recorded_at"] if ends else None,
        "chunks": chunks,
        "bytes": sum(row["bytes"] or 0 for row in counts),
        "chunks_per_s": max(chunks, journaled) / took_s if took_s > 0 else None,
        "resumes": len(resumes),
        "replayed": sum(row.get("replayed", 0) for row in counts),
        "gaps": sum(row.get("lost", 0) > 0 for row in counts) + sum(not one.get("found", True) for one in resumes),
        "max_gap_ms": max(((two - one) / 1000 for one, two in pairwise(times)), default=None),
        "ended": "open" if not ends else "expired" if ends[0]["reason"] == "expired" else "unregistered",
        "lost": sum(row.get("lost", 0) for row in counts),
        "journaled": journaled,
        "last_at": times[-1] if times else None,
        "expired_at": ends[-1]["recorded_at"] if ends else None,
    }
