"""Gold: queues by the minute, the latest of each inbox, and what each agent did last.

Functions from DataFrame to DataFrame. A row of `queue_minutes` depends on the journal's rows of its minute alone, so whoever has new rows
computes the minutes they can touch again (`reach_us`) and puts them in place of the old: the result is the same as of one computation.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.spark.definitions import AGENTS, LATEST_PER_AGENT, QUEUE_MINUTES
from penstock.spark.silver import (
    OUTCOMES,
    agent_of,
    date_of,
    minute_of,
    owner_of,
    total_ms,
    wait_ms,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE_US = 60_000_000
GRACE_US = 10_000_000
"""How long after its minute a gauge may come and still close it. Then the minute is final."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GAUGE = (
    "minute bigint, ready bigint, leased bigint, delayed bigint, oldest double, delta map<string, bigint>"
)


def floor_minute(us: int) -> int:
    """The start of the minute that a moment is in."""
    return us // MINUTE_US * MINUTE_US


def is_final(minute_us: int, until_us: int) -> bool:
    """Whether no row after one of `until_us` can change a minute."""
    return until_us >= minute_us + MINUTE_US + GRACE_US


def reach_us(last_us: int) -> int:
    """Start of the earliest minute that may still change when the last row so far is of `last_us`.

    Whoever adds rows after that one computes all minutes from here on again.
    """
    return floor_minute(last_us - MINUTE_US - GRACE_US)


def queue_minutes(events: DataFrame, until: datetime) -> DataFrame:
    """One row for each queue and minute in which something happened to it.

    `events` are all rows of some minutes, to the last one; `until` is the time of the last. Counts of what the journal has a row for are
    counted; deliveries, lease ends, duplicates and refusals are what the minute's gauges say. Depths are those of the minute's last
    gauge, null when it has none (the minute is running, or nothing changed). Percentiles are exact, over what was settled in the minute,
    and null when nothing was.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    event = f.col("event")
    # Ticks belong to no queue, but tell where the rows begin.
    rows = events.where("(door = 'courier' and channel != '') or event = 'tick'")
    rows = rows.withColumn("gauge", f.when(event == "gauge", f.from_json("meta", _GAUGE)))
    rows = rows.withColumn("minute", _minute())
    ended = event.isin(*OUTCOMES)
    grouped = rows.groupBy("journal", "channel", "minute").agg(
        _rows(event == "enqueue").alias("enqueued"),
        _grown("out").alias("delivered"),
        _grown("re").alias("redelivered"),
        _rows(event == "ack").alias("acked"),
        # With a `fate` it says that the dead letters have no room, not that somebody failed.
        _rows((event == "nack") & f.get_json_object("meta", "$.fate").isNull()).alias("nacked"),
        _grown("timeout").alias("timed_out"),
        _rows(event == "dead").alias("dead"),
        _rows(event == "drop").alias("dropped"),
        _rows(event == "purge").alias("purged"),
        _grown("dup").alias("duplicates"),
        _grown("reject").alias("rejected"),
        f.coalesce(f.sum(f.when(event == "enqueue", f.col("bytes").cast("bigint"))), f.lit(0)).alias(
            "bytes_in"
        ),
        f.max_by("gauge", f.when(event == "gauge", f.col("offset"))).alias("last"),
        f.percentile(f.when(ended, wait_ms()), f.array(f.lit(0.5), f.lit(0.95), f.lit(0.99))).alias("waits"),
        f.percentile(f.when(ended, total_ms()), f.lit(0.95)).alias("total_p95_ms"),
        f.min(minute_of(f.col("recorded_at"))).alias("first_minute"),
    )
    # The first rows may close a minute whose own rows were not given; its row is in the table already.
    begin = f.min("first_minute").over(Window.partitionBy("journal"))
    until_us = (until - _EPOCH) // timedelta(microseconds=1)
    whole = grouped.withColumn("begin", begin).where("minute >= begin and channel != ''")
    return (
        whole.withColumns(
            {
                "date": date_of(f.col("minute")),
                "ready": f.col("last.ready"),
                "leased": f.col("last.leased"),
                "delayed": f.col("last.delayed"),
                "oldest_ms": f.col("last.oldest"),
                "wait_p50_ms": f.col("waits")[0],
                "wait_p95_ms": f.col("waits")[1],
                "wait_p99_ms": f.col("waits")[2],
                "final": f.lit(until_us) >= f.unix_micros("minute") + (MINUTE_US + GRACE_US),
            }
        )
    ).select(*QUEUE_MINUTES.schema.names)


def _minute() -> Column:
    """The minute that a row counts for: that of its time; of a gauge, the one it closes.

    A gauge that comes too late for its minute, or was written by a clock that has been set back since, counts where it stands: a final
    minute never changes.
    """
    from pyspark.sql import functions as f

    closed = minute_of(f.timestamp_micros("gauge.minute"))
    late_us = f.unix_micros("recorded_at") - f.unix_micros(closed)
    in_time = (late_us >= 0) & (late_us < MINUTE_US + GRACE_US)
    return f.when(in_time, closed).otherwise(minute_of(f.col("recorded_at")))


def _rows(condition: Column) -> Column:
    from pyspark.sql import functions as f

    return f.count_if(condition)


def _grown(counter: str) -> Column:
    """What the gauges of a minute say that a counter grew by."""
    from pyspark.sql import functions as f

    return f.coalesce(f.sum(f.col("gauge.delta")[counter]), f.lit(0))


def latest_per_agent(envelopes: DataFrame) -> DataFrame:
    """The newest envelope of each agent's inbox: what the live view of that name shows."""
    from pyspark.sql import functions as f

    agent = owner_of(f.col("channel"))
    names = [name for name in LATEST_PER_AGENT.schema.names if name not in ("journal", "address", "agent")]
    newest = f.max_by(f.struct(*names), f.col("offset")).alias("newest")
    found = (
        envelopes.where(agent.isNotNull()).groupBy("journal", f.col("channel").alias("address")).agg(newest)
    )
    return found.select("journal", "address", owner_of(f.col("address")).alias("agent"), "newest.*").select(
        *LATEST_PER_AGENT.schema.names
    )


def agents(events: DataFrame) -> DataFrame:
    """The newest row of each agent: what it sent or settled last."""
    from pyspark.sql import functions as f

    newest = f.max_by(
        f.struct("offset", f.col("recorded_at").alias("last_at"), "event", "channel"), f.col("offset")
    )
    found = acts(events).groupBy("journal", "agent").agg(newest.alias("newest"))
    return found.select("journal", "agent", "newest.*").select(*AGENTS.schema.names)


def acts(events: DataFrame) -> DataFrame:
    """The rows in which an agent did something, with its name as `agent`.

    Who settles is known by its token's name. Without tokens it has none; in an inbox it is then taken for the inbox's owner.
    """
    from pyspark.sql import functions as f

    event, peer = f.col("event"), f.col("peer")
    # A record that died of too many tries may have died while its holder hung.
    settles = event.isin("ack", "nack") | ((event == "dead") & (f.col("reason") == "term"))
    agent = (
        f.when(event == "enqueue", agent_of(f.col("sender")))
        .when(settles & (peer == "anonymous"), owner_of(f.col("channel")))
        .when(settles, agent_of(peer))
    )
    dead_letters = f.col("channel").startswith("dlq/") & (event == "enqueue")  # sent by nobody anew
    acted = events.where((f.col("door") == "courier") & ~dead_letters).withColumn("agent", agent)
    return acted.where("agent is not null")


def turns(events: DataFrame, pause_ms: int) -> DataFrame:
    """When agents were at work, as (agent, from, to) in microseconds and in order.

    What an agent did without a pause longer than `pause_ms` in between is one row.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("agent").orderBy("offset")
    moments = acts(events).select("agent", "offset", f.unix_micros("recorded_at").alias("at_us"))
    pause_us = f.col("at_us") - f.lag("at_us").over(order)
    begins = moments.withColumn("begins", (pause_us.isNull() | (pause_us > pause_ms * 1000)).cast("int"))
    numbered = begins.withColumn("turn", f.sum("begins").over(order))
    found = numbered.groupBy("agent", "turn").agg(
        f.min("at_us").alias("from_us"), f.max("at_us").alias("to_us"), f.min("offset").alias("offset")
    )
    return found.orderBy("offset").select("agent", "from_us", "to_us")
