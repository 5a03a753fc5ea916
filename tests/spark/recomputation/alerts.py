"""The alerts of rules, as the config names them, and the last activity of each agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from hashlib import sha256

from tests.spark.recomputation.gold import queue_minutes, trigger_minutes
from tests.spark.recomputation.rows import EPOCH, LATE_US, MINUTE_US, OWN, Journal, Row, agent_of, grouped, owner_of

ABOVE = {"rate": 1_000.0, "latency": 1_000.0, "dead_letters": 0.0, "trigger_failures": 0.0}
VALUES = {"rate": "enqueued", "latency": "wait_p95_ms", "dead_letters": "dead", "trigger_failures": "failed"}
WORDS = {
    "rate": "envelopes enqueued in a minute",
    "latency": "ms of waiting at the 95th percentile",
    "dead_letters": "dead letters in a minute",
    "trigger_failures": "failed firings in a minute",
}


def acts(journal: Journal) -> Iterator[Row]:
    """Rows in which an agent sent or settled something. Without tokens, the owner of an inbox settles its records."""
    for row in journal.rows:
        channel = row["channel"]
        settles = row["event"] in {"ack", "nack"} or (row["event"], row["reason"]) == ("dead", "term")
        if row["door"] != "courier":
            continue
        if row["event"] == "enqueue" and not channel.startswith("dlq/"):
            agent = agent_of(row["sender"])
        elif settles:
            agent = owner_of(channel) if row["peer"] == "anonymous" else agent_of(row["peer"])
        else:
            agent = None
        if agent is not None:
            yield row | {"agent": agent}


def agents(journal: Journal) -> Iterator[Row]:
    for (agent,), rows in grouped(acts(journal), "agent").items():
        last = rows[-1]
        kept = {name: last[name] for name in ("journal", "offset", "event", "channel")}
        yield kept | {"agent": agent, "last_at": last["recorded_at"], "cluster": journal.id}


def alerts(journal: Journal, rules: Sequence[Row], now_us: int | None = None) -> Iterator[Row]:
    """What the rules give after the last row; `now_us` is the time by the clock, for silence."""
    sent = {row["id"] for row in journal.all if row["sender"] == OWN and row["event"] == "enqueue"}
    for rule in rules:
        found = _silences(journal, rule, now_us) if rule["kind"] == "silence" else _episodes(journal, rule)
        for alert in found:
            key = json.dumps([alert["rule"], alert["subject"], alert["window_start"]], separators=(",", ":"))
            alert["id"] = sha256(key.encode()).hexdigest()[:32]
            announced = f"alert-{alert['id']}-{alert['state']}"
            yield alert | {"journal": journal.id, "envelope_id": announced if announced in sent else None}


def _episodes(journal: Journal, rule: Row) -> Iterator[Row]:
    """Consecutive minutes that break a rule are one alert; a minute of waits counts when it is final."""
    kind, above = rule["kind"], float(rule.get("above", ABOVE[rule["kind"]]))
    subject = "trigger" if kind == "trigger_failures" else "channel"
    minutes = trigger_minutes(journal) if kind == "trigger_failures" else queue_minutes(journal)
    broken = [
        row
        for row in minutes
        if fnmatchcase(row[subject], rule.get(subject, "*"))
        and (row["final"] or kind != "latency")
        and (row[VALUES[kind]] or 0) > above
    ]
    for (name,), rows in grouped(sorted(broken, key=lambda row: row["minute"]), subject).items():
        runs: list[list[Row]] = []
        for row in rows:
            if not runs or row["minute"] > runs[-1][-1]["minute"] + MINUTE_US:
                runs.append([])
            runs[-1].append(row)
        for run in runs:
            start, end = run[0]["minute"], run[-1]["minute"] + MINUTE_US
            value = float(max(row[VALUES[kind]] for row in run))
            is_over = journal.until >= end + MINUTE_US + LATE_US
            what = f"{above:g} {WORDS[kind]}"
            firing = f"`{name}` has had more than {what}, since {_clock(start)}"
            over = f"`{name}` had up to {value:g} {WORDS[kind]}, from {_clock(start)} to {_clock(end)}; {above:g} are allowed"
            yield _alert(rule, name, (start, end), value, above) | {
                "message": over if is_over else firing,
                "state": "resolved" if is_over else "firing",
                "fired_at": start + MINUTE_US if kind == "latency" else start,
                "resolved_at": end if is_over else None,
            }


def _silences(journal: Journal, rule: Row, now_us: int | None) -> Iterator[Row]:
    """An agent that did nothing for too long: between two acts, or since its last one."""
    for_ms = float(rule.get("for_ms", 300_000))
    for (agent,), rows in grouped(acts(journal), "agent").items():
        if agent.startswith(("pipeline/", "system/")) or not fnmatchcase(agent, rule.get("agent", "*")):
            continue
        times = [row["recorded_at"] for row in rows]
        for start, next_at in zip(times, [*times[1:], None], strict=True):
            end = next_at if next_at is not None else max(now_us or 0, journal.until)
            if end - start <= for_ms * 1000:
                continue
            took_ms = for_ms if next_at is None else (next_at - start) / 1000
            since = f"`{agent}` has done nothing since {_clock(start)}, for more than {for_ms:g} ms"
            over = f"`{agent}` did nothing for {took_ms:g} ms, from {_clock(start)} on; {for_ms:g} ms are allowed"
            fired = start + round(for_ms * 1000)
            yield _alert(rule, agent, (start, fired), took_ms, for_ms) | {
                "message": since if next_at is None else over,
                "state": "firing" if next_at is None else "resolved",
                "fired_at": fired,
                "resolved_at": next_at,
            }


def _alert(rule: Row, subject: str, window: tuple[int, int], value: float, threshold: float) -> Row:
    return {
        "rule": rule["id"],
        "severity": rule.get("severity", "warning"),
        "subject": subject,
        "window_start": window[0],
        "window_end": window[1],
        "value": value,
        "threshold": threshold,
    }


def _clock(us: int) -> str:
    return (EPOCH + timedelta(microseconds=us)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
