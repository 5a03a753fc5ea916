"""Makes `format("penstock_delta")` known to Spark, which finds one source in each top-level module named `pyspark_*`."""

from penstock.spark.lake.delta_format import PenstockDelta as DefaultSource

__all__ = ["DefaultSource"]
