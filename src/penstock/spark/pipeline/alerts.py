"""Alerts: how the rules of the config turn rows into rows of the table `alerts` and into envelopes.

Everything here is a function of rows: running again gives the same alerts with the same ids, however the rows are cut into batches. An
alert is identified by its rule, its subject and its start. Functions return the alerts that are new or changed; `known` holds at least
all firing alerts of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
import pyarrow as pa
from msgspec.structs import asdict, replace

from penstock.core.clock import rfc3339
from penstock.core.patterns import matches
from penstock.dialects.courier.wire.envelopes import inbox
from penstock.ipc import pipeline
from penstock.spark.lake.schemas import ALERTS
from penstock.spark.lake_tables.expressions import OWN_SENDER
from penstock.spark.lake_tables.minutes import MINUTE_US, is_final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

UNWATCHED = ("pipeline/", "system/")
"""Prefixes of senders without a silence alert: they send only when there is something to report."""
_TIMES = [field.name for field in ALERTS.schema if pa.types.is_timestamp(field.type)]


class Alert(msgspec.Struct, frozen=True):
    """One row of the table `alerts`; times in microseconds since 1970."""

    journal: str
    id: str
    rule: str
    severity: str
    subject: str
    """The stream; for silence the agent, and for failures the trigger."""
    window_start: int
    window_end: int
    value: float
    """The maximum so far; for silence its milliseconds."""
    threshold: float
    message: str
    state: Literal["firing", "resolved"]
    fired_at: int
    """For counts the start of the first minute, for latency its end, for silence the time at which it became too long."""
    resolved_at: int | None = None
    envelope_id: str | None = None
    """The envelope that reported this state; set by the sender."""


class Breach(NamedTuple):
    """One minute of one stream or trigger that breaks a rule."""

    journal: str
    rule: str
    severity: str
    subject: str
    minute_us: int
    value: float
    threshold: float


class Act(NamedTuple):
    """An agent was active, at a time or during a period without a long pause."""

    agent: str
    at_us: int
    last_us: int | None = None
    """The end of the period."""


def table(alerts: Iterable[Alert]) -> pa.Table:
    """Alerts as rows of their table."""
    return pa.Table.from_pylist([asdict(alert) for alert in alerts], ALERTS.schema)


def read(rows: pa.Table) -> list[Alert]:
    """Alerts from rows of their table."""
    for name in _TIMES:
        rows = rows.set_column(rows.schema.get_field_index(name), name, rows.column(name).cast(pa.int64()))
    return [msgspec.convert(row, Alert) for row in rows.select(ALERTS.schema.names).to_pylist()]


def alert_id(rule: str, subject: str, window_start: int) -> str:
    """The id of an alert; the same whenever it is computed."""
    return sha256(msgspec.json.encode([rule, subject, window_start])).hexdigest()[:32]


# Minutes of streams and triggers


def breaches(minutes: DataFrame, rules: Sequence[pipeline.AnyAlertRule], subject: str = "channel") -> DataFrame:
    """The minutes that break a rule, as the fields of `Breach`; `minutes` are rows of `queue_minutes` of one journal.

    With `trigger` as the subject they are rows of `trigger_minutes`. Rules on other subjects are ignored. Counts only grow, so a running
    minute can break a rule on counts; latency is evaluated when the minute is final.
    """
    from pyspark.sql import functions as f

    found = [made for rule in rules if (made := _broken(rule, subject)) is not None]
    minutes = minutes.withColumnRenamed(subject, "subject")
    if not found:
        return minutes.where("false").select(*_breach(f.lit(""), f.lit(""), f.lit(0.0), f.lit(0.0)))
    each = minutes.select("journal", "subject", "minute", f.explode(f.array(*found)).alias("broken"))
    rule, severity = f.col("broken.rule"), f.col("broken.severity")
    broken = each.where("broken is not null")
    return broken.select(*_breach(rule, severity, f.col("broken.value"), f.col("broken.threshold")))


def _breach(rule: Column, severity: Column, value: Column, threshold: Column) -> list[Column]:
    from pyspark.sql import functions as f

    columns = (f.col("journal"), rule, severity, f.col("subject"), f.unix_micros("minute"), value, threshold)
    return [column.alias(name) for column, name in zip(columns, Breach._fields, strict=True)]


def _broken(rule: pipeline.AnyAlertRule, subject: str) -> Column | None:
    """The breach of a rule in a row of minutes, as a struct; null if there is none."""
    from pyspark.sql import functions as f

    meant = getattr(rule, subject, None)
    if meant is None:
        return None
    match rule:
        case pipeline.RateRule():
            value, is_known = f.col("enqueued"), f.lit(True)
        case pipeline.TriggerFailureRule():
            value, is_known = f.col("failed"), f.lit(True)
        case pipeline.DeadLetterRule():
            value, is_known = f.col("dead"), f.lit(True)
        case pipeline.LatencyRule():
            value, is_known = f.col("wait_p95_ms"), f.col("final")
        case pipeline.SilenceRule():
            return None
    value = value.cast("double")
    row = f.struct(
        f.lit(rule.id).alias("rule"),
        f.lit(rule.severity).alias("severity"),
        value.alias("value"),
        f.lit(float(rule.above)).alias("threshold"),
    )
    is_meant = f.col("subject").like(like(meant))
    return f.when(is_meant & is_known & (value > f.lit(float(rule.above))), row)


def broken_minutes(minutes: pa.Table, rules: Sequence[pipeline.AnyAlertRule]) -> list[Breach]:
    """The same of rows of `queue_minutes` in memory."""
    times = minutes.column("minute").cast(pa.int64()).to_pylist()
    names = ("journal", "channel", "enqueued", "dead", "wait_p95_ms", "final")
    found: list[Breach] = []
    for minute_us, row in zip(times, minutes.select(names).to_pylist(), strict=True):
        for rule in rules:
            match rule:
                case pipeline.RateRule():
                    value = row["enqueued"]
                case pipeline.DeadLetterRule():
                    value = row["dead"]
                case pipeline.LatencyRule():
                    value = row["wait_p95_ms"] if row["final"] else None
                case pipeline.SilenceRule() | pipeline.TriggerFailureRule():
                    continue
            if value is not None and value > rule.above and matches(rule.channel, row["channel"]):
                above = float(rule.above)
                found.append(
                    Breach(row["journal"], rule.id, rule.severity, row["channel"], minute_us, float(value), above)
                )
    return found


def like(pattern: str) -> str:
    """A glob as a SQL pattern."""
    for special in ("\\", "%", "_"):
        pattern = pattern.replace(special, f"\\{special}")
    return pattern.replace("*", "%")


class _Window(NamedTuple):
    """Consecutive minutes that break a rule: a known alert, or one breach."""

    journal: str
    start_us: int
    end_us: int
    value: float
    threshold: float
    severity: str
    alert: Alert | None = None


def episodes(
    rules: Sequence[pipeline.AnyAlertRule], known: Iterable[Alert], found: Iterable[Breach], until: Mapping[str, int]
) -> list[Alert]:
    """The alerts of minutes that break a rule: consecutive minutes are one alert.

    An alert fires until a later minute is final without a breach. `found` may repeat minutes of a known alert, for example those that
    were still running. `until` has the time of the last evaluated row of each journal with new rows.
    """
    by_id = {rule.id: rule for rule in rules}
    windows: dict[tuple[str, str], list[_Window]] = {}
    for alert in known:
        if not isinstance(by_id.get(alert.rule), pipeline.SilenceRule):
            window = _Window(
                alert.journal, alert.window_start, alert.window_end, alert.value, alert.threshold, alert.severity, alert
            )
            windows.setdefault((alert.rule, alert.subject), []).append(window)
    for breach in found:
        end_us = breach.minute_us + MINUTE_US
        window = _Window(breach.journal, breach.minute_us, end_us, breach.value, breach.threshold, breach.severity)
        windows.setdefault((breach.rule, breach.subject), []).append(window)
    changed = []
    for (rule, subject), pieces in windows.items():
        for run in _runs(pieces):
            alert = _episode(by_id.get(rule), rule, subject, run, until)
            changed += _news(alert, run[0].alert)
    return changed


def _news(alert: Alert, before: Alert | None) -> list[Alert]:
    """The alert if it changed. It keeps its envelope while its state is the same; a new state is reported again."""
    if before is not None and before.state == alert.state:
        alert = replace(alert, envelope_id=before.envelope_id)
    return [] if alert == before else [alert]


def _runs(pieces: list[_Window]) -> list[list[_Window]]:
    """Group windows that touch; within a minute, known alerts come before new breaches."""
    pieces.sort(key=lambda window: (window.start_us, window.alert is None))
    runs: list[list[_Window]] = []
    end_us = 0
    for window in pieces:
        if runs and window.start_us <= end_us:
            runs[-1].append(window)
        else:
            runs.append([window])
            end_us = window.end_us
        end_us = max(end_us, window.end_us)
    return runs


def _episode(
    rule: pipeline.AnyAlertRule | None, rule_id: str, subject: str, run: list[_Window], until: Mapping[str, int]
) -> Alert:
    start_us, end_us = run[0].start_us, max(window.end_us for window in run)
    before = run[0].alert
    was_over = before is not None and before.state == "resolved" and end_us == before.window_end
    is_over = was_over or is_final(end_us, min(until.get(window.journal, 0) for window in run))
    if before is not None:
        fired_at = before.fired_at
    else:
        fired_at = start_us + MINUTE_US if isinstance(rule, pipeline.LatencyRule) else start_us
    alert = Alert(
        journal=run[0].journal,
        id=alert_id(rule_id, subject, start_us),
        rule=rule_id,
        severity=run[0].severity,
        subject=subject,
        window_start=start_us,
        window_end=end_us,
        value=max(window.value for window in run),
        threshold=run[0].threshold,
        message="",
        state="resolved" if is_over else "firing",
        fired_at=fired_at,
        resolved_at=end_us if is_over else None,
    )
    return replace(alert, message=message(alert, rule))


# Silence of agents


def silences(
    cluster: str,
    rules: Sequence[pipeline.AnyAlertRule],
    last_seen: Mapping[str, int],
    acts: Iterable[Act],
    known: Iterable[Alert],
    now_us: int,
) -> tuple[list[Alert], dict[str, int]]:
    """The alerts of agents that were inactive for too long, and when each agent was last active after `acts`, which are in order.

    A silence that has ended is an alert too, so the result does not depend on when the rules are evaluated. `now_us` must not be later
    than the rows that have been read: an agent whose rows are still waiting is not silent.
    """
    watched = [rule for rule in rules if isinstance(rule, pipeline.SilenceRule)]
    ids = {rule.id: rule for rule in watched}
    before = {alert.id: alert for alert in known if alert.rule in ids}
    firing = {(a.rule, a.subject, a.window_start): a for a in before.values() if a.state == "firing"}
    seen = dict(last_seen)
    made: dict[str, Alert] = {}

    def note(rule: pipeline.SilenceRule, agent: str, from_us: int, ended_us: int | None) -> None:
        alert = _silence(cluster, rule, agent, from_us, ended_us)
        made[alert.id] = alert

    for rule_id, agent, from_us in firing:
        if seen.get(agent, from_us) > from_us:  # it was active while the watch was stopped
            note(ids[rule_id], agent, from_us, seen[agent])
    for agent, at_us, last_us in acts:
        from_us, end_us = seen.get(agent, at_us), at_us if last_us is None else last_us
        if end_us < from_us:
            continue
        for rule in _watching(watched, agent):
            is_known = (rule.id, agent, from_us) in firing
            if at_us > from_us and (is_known or at_us - from_us > rule.for_ms * 1000):
                note(rule, agent, from_us, at_us)
        seen[agent] = end_us
    for agent, from_us in seen.items():
        for rule in _watching(watched, agent):
            if now_us - from_us > rule.for_ms * 1000:
                note(rule, agent, from_us, None)
    changed = [news for alert in made.values() for news in _news(alert, before.get(alert.id))]
    return changed, seen


def _watching(rules: Iterable[pipeline.SilenceRule], agent: str) -> list[pipeline.SilenceRule]:
    if agent.startswith(UNWATCHED):
        return []
    return [rule for rule in rules if matches(rule.agent, agent)]


def _silence(cluster: str, rule: pipeline.SilenceRule, agent: str, from_us: int, ended_us: int | None) -> Alert:
    fired_us = from_us + rule.for_ms * 1000
    alert = Alert(
        journal=cluster,
        id=alert_id(rule.id, agent, from_us),
        rule=rule.id,
        severity=rule.severity,
        subject=agent,
        window_start=from_us,
        window_end=fired_us,
        value=float(rule.for_ms) if ended_us is None else (ended_us - from_us) / 1000,
        threshold=float(rule.for_ms),
        message="",
        state="firing" if ended_us is None else "resolved",
        fired_at=fired_us,
        resolved_at=ended_us,
    )
    return replace(alert, message=message(alert, rule))


# Messages and envelopes


def message(alert: Alert, rule: pipeline.AnyAlertRule | None) -> str:
    """The text of an alert. While it fires, the text has no number that may still grow."""
    subject, start = f"`{alert.subject}`", rfc3339(alert.window_start)
    limit = f"{alert.threshold:g}"
    if isinstance(rule, pipeline.SilenceRule):
        if alert.state == "firing":
            return f"{subject} has done nothing since {start}, for more than {limit} ms"
        return f"{subject} did nothing for {alert.value:g} ms, from {start} on; {limit} ms are allowed"
    match rule:
        case pipeline.RateRule():
            what = "envelopes enqueued in a minute"
        case pipeline.LatencyRule():
            what = "ms of waiting at the 95th percentile"
        case pipeline.DeadLetterRule():
            what = "dead letters in a minute"
        case pipeline.TriggerFailureRule():
            what = "failed firings in a minute"
        case None:
            what = f"by the rule `{alert.rule}`"
    if alert.state == "firing":
        return f"{subject} has had more than {limit} {what}, since {start}"
    end = rfc3339(alert.window_end)
    return f"{subject} had up to {alert.value:g} {what}, from {start} to {end}; {limit} are allowed"


def envelope(alert: Alert, to: str) -> dict[str, Any]:
    """The envelope that reports an alert to an agent or a stream, once when it fires and once when it is resolved.

    Its id and its bytes are always the same, so the server drops duplicates. For that, the fields that may still grow (`value`,
    `window_end`) are null while the alert fires.
    """
    is_firing = alert.state == "firing"
    id_ = f"alert-{alert.id}-{alert.state}"
    payload: dict[str, Any] = asdict(alert)
    payload["envelope_id"] = id_
    if is_firing:
        payload["value"] = payload["window_end"] = None
    for name in _TIMES:
        if payload[name] is not None:
            payload[name] = rfc3339(payload[name])
    reported_us = alert.fired_at if alert.resolved_at is None else alert.resolved_at
    return {
        "id": id_,
        "ts": rfc3339(reported_us),
        "type": f"alert.{alert.state}",
        "from": OWN_SENDER,
        "to": inbox(to),
        "corr": f"alert-{alert.id}",
        "headers": {"severity": alert.severity, "x-courier-hops": 1},
        "payload": payload,
    }
