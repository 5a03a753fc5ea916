"""The data pipeline: the Spark formats `penstock` and `penstock_delta`, the lake tables, and the queries that fill them.

Spark finds the formats by itself (`pyspark_penstock`, `pyspark_penstock_delta`). The broker imports nothing of this package, and this
package knows the broker only through its journal, its HTTP door and `penstock.ipc`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.lake.catalog import history, tables
    from penstock.spark.lake_tables.token_streams import token_audit
    from penstock.spark.lake_tables.verification_keys import TokenKey
    from penstock.spark.pipeline.steps import table
    from penstock.spark.session import make_session

__all__ = ["TokenKey", "history", "make_session", "table", "tables", "token_audit"]

_MODULES = {
    "TokenKey": "lake_tables.verification_keys",
    "history": "lake.catalog",
    "make_session": "session",
    "table": "pipeline.steps",
    "tables": "lake.catalog",
    "token_audit": "lake_tables.token_streams",
}


def __getattr__(name: str) -> Any:
    """Load a name on first use: most of this package needs no Spark."""
    if name not in _MODULES:
        raise AttributeError(f"module `penstock.spark` has no attribute `{name}`")
    return getattr(importlib.import_module(f"penstock.spark.{_MODULES[name]}"), name)
