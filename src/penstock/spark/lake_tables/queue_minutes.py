"""The table `queue_minutes`: what happened to each queue in each minute.

The rows are counted by plain Arrow code. A small batch runs it in the driver, because planning a query takes Spark longer than the count;
the tasks of a large one run the same code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake.schemas import QUEUE_MINUTES
from penstock.spark.lake_tables.expressions import OUTCOMES, passed_ms
from penstock.spark.lake_tables.minutes import GRACE_US, MINUTE_US, Times, floor_minute, from_us, is_final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.pipeline.batch import JournalBatch

COUNTED = {
    "enqueue": "enqueued",
    "ack": "acked",
    "nack": "nacked",
    "dead": "dead",
    "drop": "dropped",
    "purge": "purged",
}
"""Events that have a journal row, and their columns."""
GROWN = {"out": "delivered", "re": "redelivered", "timeout": "timed_out", "dup": "duplicates", "reject": "rejected"}
"""Counters of the gauges, and their columns."""
DEPTHS = ("ready", "leased", "delayed")
_KEY = ["journal", "channel", "minute"]
_READ = ("journal", "channel", "recorded_at", "event", "offset", "bytes", "ref_at", "first_at")
_COURIER = "door = 'courier' and channel != ''"
_NOTED = "if(event in ('gauge', 'nack'), meta, null) as meta"
_Gauge: TypeAlias = Mapping[str, Any]


def touched_queue_minutes(batch: JournalBatch) -> DataFrame | pa.Table:
    """The rows of the table that a batch changes; counted here if the rows of its minutes are few enough to hold."""
    rows = batch.held_minutes
    if rows is None:
        return queue_minutes(batch.whole_minutes, batch.until, batch.minutes_since)
    rows = rows.filter((pc.field("door") == "courier") & (pc.field("channel") != ""))
    return pa.Table.from_batches(count(rows.to_batches(), batch.until, batch.minutes_since), QUEUE_MINUTES.schema)


def queue_minutes(events: DataFrame, until: Times, since: Times | None = None) -> DataFrame:
    """One row for each queue and each minute in which something happened to it.

    `events` are all rows of some minutes. `until` is the time of the last row, `since` that of the first; without it, `since` is
    queried. Events that have a journal row are counted; deliveries, lease timeouts, duplicates and rejects come from the gauges of the
    minute. Depths are those of its last gauge, null without one (the minute is running, or nothing changed). Percentiles are exact,
    over the records settled in the minute, null if there are none.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if since is None:
        [first] = events.selectExpr("unix_micros(min(recorded_at))").collect()
        since = {"": floor_minute(first[0] or 0)}
    rows = events.where(_COURIER).selectExpr(*_READ, _NOTED).repartition("journal", "channel")
    return rows.mapInArrow(partial(count, until=until, since=since), from_arrow_schema(QUEUE_MINUTES.schema))


def count(batches: Iterable[pa.RecordBatch], until: Times, since: Times) -> Iterator[pa.RecordBatch]:
    """Rows of queues become rows of the table; all rows of a queue come together."""
    every = list(batches)
    if not every:
        return iter(())
    rows = pa.Table.from_batches(every)
    event, at = rows.column("event").cast(pa.string()), rows.column("recorded_at").cast(pa.int64())
    notes = _notes(rows, event)
    minutes = [floor_minute(us) for us in at.to_pylist()]
    gauges: dict[tuple[Any, ...], list[tuple[int, _Gauge]]] = {}
    for place, (row, note) in notes.items():
        if row["event"] == "gauge":
            minutes[place] = _minute(row["recorded_at"], note)
            gauges.setdefault((row["journal"], row["channel"], minutes[place]), []).append((row["offset"], note))
    # A nack with a fate means that the dead-letter stream is full, not that a consumer failed.
    fated = [place for place, (row, note) in notes.items() if row["event"] == "nack" and note.get("fate") is not None]
    kind = _replaced(event, fated, "")
    is_settled = pc.is_in(event, value_set=pa.array(list(OUTCOMES)))
    sent = rows.column("ref_at").cast(pa.int64())
    placed = {
        "journal": rows.column("journal").cast(pa.string()),
        "channel": rows.column("channel").cast(pa.string()),
        "minute": pa.array(minutes, pa.int64()),
        **{column: pc.equal(kind, name).cast(pa.int64()) for name, column in COUNTED.items()},
        "bytes_in": pc.if_else(pc.equal(event, "enqueue"), rows.column("bytes").cast(pa.int64()), None),
        "waits": _ms_between(is_settled, sent, rows.column("first_at").cast(pa.int64())),
        "totals": _ms_between(is_settled, sent, at),
    }
    sums = [*COUNTED.values(), "bytes_in"]
    grouped = (
        pa.table(placed)
        .group_by(_KEY)
        .aggregate([*((name, "sum") for name in sums), ("waits", "list"), ("totals", "list")])
    )
    made = (_made(row, gauges.get(tuple(row[name] for name in _KEY), ()), until) for row in grouped.to_pylist())
    # The first rows may be gauges of the minute before, whose rows are not here: its stored row is complete and must stay.
    first = {one: since.get(one, since.get("", 0)) for one in pc.unique(placed["journal"]).to_pylist()}
    kept = (row for row in made if row is not None and row["minute"] >= first[row["journal"]])
    return QUEUE_MINUTES.batches(kept)


def _notes(rows: pa.Table, event: pa.ChunkedArray) -> dict[int, tuple[dict[str, Any], _Gauge]]:
    """The gauges, and the nacks that say something, by their place, with what they say."""
    with_meta = pc.and_(pc.is_valid(rows.column("meta")), pc.is_in(event, value_set=pa.array(["gauge", "nack"])))
    places = pc.indices_nonzero(with_meta)
    read = rows.select(["journal", "channel", "recorded_at", "event", "offset", "meta"]).take(places)
    read = read.set_column(2, "recorded_at", read.column("recorded_at").cast(pa.int64()))
    return dict(zip(places.to_pylist(), ((row, _parsed(row.pop("meta"))) for row in read.to_pylist()), strict=True))


def _parsed(meta: str) -> _Gauge:
    try:
        found = msgspec.json.decode(meta)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _minute(at_us: int, gauge: _Gauge) -> int:
    """The minute that a gauge closes. One that is too late for that, or that was written before the clock was set back, counts for the
    minute of its own time: a final minute never changes."""
    closed = gauge.get("minute")
    is_in_time = closed is not None and 0 <= at_us - floor_minute(closed) < MINUTE_US + GRACE_US
    return floor_minute(closed if is_in_time and closed is not None else at_us)


def _replaced(values: pa.ChunkedArray, places: Sequence[int], value: str) -> pa.ChunkedArray:
    if not places:
        return values
    return pc.if_else(pc.is_in(pa.array(range(len(values))), value_set=pa.array(places, pa.int64())), value, values)


def _ms_between(is_settled: pa.ChunkedArray, first: pa.ChunkedArray, last: pa.ChunkedArray) -> pa.ChunkedArray:
    """Milliseconds of the settled records; 0 if the clock was set back."""
    return pc.if_else(is_settled, passed_ms(first, last), None)


def _made(row: Mapping[str, Any], gauges: Sequence[tuple[int, _Gauge]], until: Times) -> dict[str, Any] | None:
    """A row of the table; None if only the pipeline itself caused it."""
    said = [gauge for _, gauge in sorted(gauges, key=lambda one: one[0])]
    last = said[-1] if said else {}
    own = last.get("own") or {}
    seen = {column: row[f"{column}_sum"] for column in COUNTED.values()}
    seen |= {column: _grown(said, counter) for counter, column in GROWN.items()}
    depths = {state: None if last.get(state) is None else last[state] - own.get(state, 0) for state in DEPTHS}
    are_own = any(gauge.get("own") is not None for gauge in said)
    counts = [value for column, value in seen.items() if column != "redelivered"]
    if are_own and (None in depths.values() or sum(counts) + sum(value or 0 for value in depths.values()) <= 0):
        return None
    waits = sorted(value for value in row["waits_list"] if value is not None)
    totals = sorted(value for value in row["totals_list"] if value is not None)
    minute = row["minute"]
    return {
        **{name: row[name] for name in _KEY},
        "date": from_us(minute).date(),
        **seen,
        **depths,
        "bytes_in": row["bytes_in_sum"] or 0,
        "oldest_ms": last.get("oldest"),
        "wait_p50_ms": _percentile(waits, 0.5),
        "wait_p95_ms": _percentile(waits, 0.95),
        "wait_p99_ms": _percentile(waits, 0.99),
        "total_p95_ms": _percentile(totals, 0.95),
        "final": is_final(minute, until.get(row["journal"], until.get("", 0))),
    }


def _grown(gauges: Iterable[_Gauge], counter: str) -> int:
    """How much a counter grew, by the gauges of the minute; without what the pipeline sent itself."""
    deltas = ((gauge.get("delta") or {}, gauge.get("own") or {}) for gauge in gauges)
    return sum(delta[counter] - own.get(counter, 0) for delta, own in deltas if delta.get(counter) is not None)


def _percentile(values: Sequence[float], part: float) -> float | None:
    """Of sorted values; exact, by linear interpolation between the two nearest."""
    if not values:
        return None
    place = part * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return (
        values[low] if values[low] == values[high] else (low + 1 - place) * values[low] + (place - low) * values[high]
    )
