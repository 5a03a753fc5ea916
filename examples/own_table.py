"""Tables of your own: each is a function from rows of the journal to rows of the table.

Name this file under `pipeline.tables` in the config, and the pipeline fills them together with its own.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock.spark import table


@table()
def given_up(events: DataFrame) -> DataFrame:
    """Every envelope that became a dead letter: new rows are appended."""
    return events.where("event = 'dead'").select("journal", "offset", "recorded_at", "channel", "id", "reason")


@table(key=["journal", "sender", "minute"], window="minute")
def sent_per_minute(events: DataFrame) -> DataFrame:
    """How much each sender sent per minute: a minute is recomputed when new rows fall into it."""
    minute = f.date_trunc("minute", "recorded_at").alias("minute")
    sent = events.where("event = 'enqueue' and sender is not null")
    return sent.groupBy("journal", "sender", minute).agg(f.count("*").alias("envelopes"), f.sum("bytes").alias("bytes"))


@table(key=["journal", "sender"], newest="offset")
def last_sent(events: DataFrame) -> DataFrame:
    """What each sender sent last: for each key the row with the greatest offset is kept."""
    sent = events.where("event = 'enqueue' and sender is not null")
    return sent.select("journal", "sender", "offset", "recorded_at", "channel", "id", f.col("kind").alias("type"))
