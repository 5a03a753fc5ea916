"""A declarative pipeline: the settled envelopes of every queue, kept as a table of the lake.

`spark-pipelines run` reads what came since the last run and adds it. The journal gives every row its offset, and the
table records which batches it has, so each row is there once. `penstock sql "select * from settled"` shows the table.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
data = spark.conf.get("penstock.data", "penstock-data")
table = {"path": f"{data}/lake/settled", "appId": "declarative"}

dp.create_sink("settled", "penstock_delta", table)


@dp.temporary_view
def outcomes() -> DataFrame:
    """Envelopes that were acknowledged or given up, as the journal records them."""
    journal = spark.readStream.format("penstock").option("startingOffsets", "earliest").option("event", "ack,dead,drop")
    return journal.option("columns", "offset,recorded_at,event,channel,id,ref_at,attempt").load(data)


@dp.append_flow(target="settled")
def keep() -> DataFrame:
    """How long each envelope took, in milliseconds."""
    took = "unix_millis(recorded_at) - unix_millis(ref_at) as took_ms"
    return spark.readStream.table("outcomes").selectExpr(
        "offset", "recorded_at", "event", "channel", "id", "attempt", took
    )
