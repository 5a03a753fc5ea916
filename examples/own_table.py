"""Tables of your own: each is a function from rows of the journal to rows of the table.

Name this file under `pipeline.tables` in the config, and the pipeline fills them together with its own.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock.spark import expect, table

SENT = "event = 'enqueue' and sender is not null"


@table(where="event = 'dead'")
@expect("has a reason", "reason is not null")
@expect("not a dead letter itself", "channel not like 'dlq/%'", on_fail="drop")
def given_up(events: DataFrame) -> DataFrame:
    """Every envelope that became a dead letter: new rows are appended."""
    return events.select("journal", "offset", "recorded_at", "channel", "id", "reason")


@table(key=["journal", "sender"], newest="offset", where=SENT)
def last_sent(events: DataFrame) -> DataFrame:
    """What each sender sent last: for each key the row with the greatest offset is kept."""
    return events.select("journal", "sender", "offset", "recorded_at", "channel", "id", f.col("kind").alias("type"))


@table(key=["journal", "channel", "start"], window="15 minutes", where="event = 'ack'")
def waits(events: DataFrame) -> DataFrame:
    """How long envelopes of a stream waited: a quarter of an hour is computed again when new rows fall into it."""
    start = f.window("recorded_at", "15 minutes")["start"].alias("start")
    wait_s = f.col("first_at").cast("double") - f.col("ref_at").cast("double")
    each = events.groupBy("journal", "channel", start)
    return each.agg(f.count("*").alias("acked"), f.percentile(wait_s, f.lit(0.95)).alias("wait_p95_s"))


@table(key=["journal", "sender"], session="10 minutes", where=SENT)
def visits(events: DataFrame) -> DataFrame:
    """When each sender was active: a visit ends when the sender sends nothing for ten minutes."""
    each = events.groupBy("journal", "sender", "session_start", "session_end")
    return each.agg(f.count("*").alias("envelopes"), f.countDistinct("channel").alias("streams"))


@table(key=["journal", "channel", "seq"], join=["envelopes", "deliveries"])
@expect("settled within a day", "settled_at is null or settled_at < sent_at + interval 1 day")
def outcomes(envelopes: DataFrame, deliveries: DataFrame) -> DataFrame:
    """What became of each envelope, with its tags: a row is computed again when its envelope is settled."""
    sent = envelopes.where("seq is not null").withColumn("sent_at", f.col("recorded_at"))
    sent = sent.select("journal", "channel", "seq", "id", "tags", "sent_at")
    ends = deliveries.select("journal", "channel", "seq", "outcome", "settled_at")
    return sent.join(ends, ["journal", "channel", "seq"], "left")


@table(key=["journal", "sender"], state="journal string, sender string, envelopes bigint, bytes bigint", where=SENT)
@expect("sends less than a gigabyte", "bytes < 1e9")
def senders(events: DataFrame, before: DataFrame) -> DataFrame:
    """How much each sender has sent so far: the stored totals plus the new rows. Old rows are not read."""
    new = events.selectExpr("journal", "sender", "1L as envelopes", "cast(bytes as bigint) as bytes")
    each = before.unionByName(new).groupBy("journal", "sender")
    return each.agg(f.sum("envelopes").alias("envelopes"), f.sum("bytes").alias("bytes"))
