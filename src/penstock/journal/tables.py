"""The tables of a lake directory as their Delta logs tell it: which there are, and how far each log is.

Only reads, and takes no lock.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from deltalake import DeltaTable

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""Names of tables; what begins otherwise, such as `_locks`, is not one."""


def table_names(lake: Path) -> list[str]:
    """The tables that are there."""
    if not lake.is_dir():
        return []
    names = [path.name for path in lake.iterdir() if NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(name for name in names if DeltaTable.is_deltatable(str(lake / name)))


def newest_entry(table: Path) -> str:
    """The name of a log's newest entry, without a look into it: as long as it stays, so does the table. Empty where there is none."""
    try:
        entries = os.listdir(table / "_delta_log")
    except OSError:
        return ""
    return max((name for name in entries if name.endswith(".json") and name[0].isdecimal()), default="")
