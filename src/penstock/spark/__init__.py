"""The data pipeline: the Spark formats `penstock` and `penstock_delta`, the lake tables, and the queries that fill them.

Spark finds the formats by itself (`pyspark_penstock`, `pyspark_penstock_delta`). The broker imports nothing of this package, and this
package knows the broker only through its journal, its HTTP door and `penstock.ipc`.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.lake.catalog import history, tables
    from penstock.spark.lake_tables.token_streams import token_audit
    from penstock.spark.lake_tables.verification_keys import TokenKey
    from penstock.spark.pipeline.expectations import expect
    from penstock.spark.pipeline.own_tables import table
    from penstock.spark.session import make_session

__all__ = ["TokenKey", "expect", "history", "make_session", "table", "tables", "token_audit"]

_MODULES = {
    "TokenKey": "lake_tables.verification_keys",
    "expect": "pipeline.expectations",
    "history": "lake.catalog",
    "make_session": "session",
    "table": "pipeline.own_tables",
    "tables": "lake.catalog",
    "token_audit": "lake_tables.token_streams",
}


def _use_this_python() -> None:
    """Make Spark start its Python workers with this Python, which has Penstock, unless the user has chosen one.

    Otherwise Spark starts the first `python3` on the PATH, and finds the formats only if that one has Penstock too.
    """
    if "PYSPARK_PYTHON" in os.environ or "PYSPARK_DRIVER_PYTHON" in os.environ:
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    context = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    running = None if context is None else context._active_spark_context
    if running is not None and shutil.which(running.pythonExec) != sys.executable:
        warnings.warn(
            f"Spark was started before `import penstock.spark`, so its workers run `{running.pythonExec}`, which may lack"
            f" Penstock; import it before the session starts, or set PYSPARK_PYTHON={sys.executable}",
            stacklevel=3,
        )


_use_this_python()


def __getattr__(name: str) -> Any:
    """Load a name on first use: most of this package needs no Spark."""
    if name not in _MODULES:
        raise AttributeError(f"module `penstock.spark` has no attribute `{name}`")
    return getattr(importlib.import_module(f"penstock.spark.{_MODULES[name]}"), name)
