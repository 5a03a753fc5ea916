"""Makes `format("penstock")` known to Spark, which imports every top-level module named `pyspark_*` and looks for this name."""

from penstock.spark.source.datasource import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
