"""Penstock and Spark: the formats `penstock` and `penstock_delta`, the lake's tables, and the pipeline that fills them.

Spark finds the formats by itself (`pyspark_penstock`, `pyspark_penstock_delta`). Nothing here is imported by the broker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.steps import table
    from penstock.spark.token_keys import TokenKey
    from penstock.spark.token_streams import token_audit
    from penstock.spark.views import history, tables

__all__ = ["TokenKey", "history", "table", "tables", "token_audit"]

_PLACES = {
    "TokenKey": "token_keys",
    "history": "views",
    "table": "steps",
    "tables": "views",
    "token_audit": "token_streams",
}


def __getattr__(name: str) -> Any:
    """They load when they are first used: most of what is here needs no Spark."""
    if name not in _PLACES:
        raise AttributeError(f"module `penstock.spark` has no attribute `{name}`")
    return getattr(importlib.import_module(f"penstock.spark.{_PLACES[name]}"), name)
