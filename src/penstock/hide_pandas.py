"""Keeps out of a process what it has no use for.

pyarrow looks for pandas at the first row that it makes, and loads it where it is installed. That takes a quarter of a second and tens of
megabytes, at a server in the middle of its first commit, for a process that never holds a data frame.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    """Says of pandas that it is not there."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process does without pandas", name=fullname)


def hide_pandas() -> None:
    """From now on nothing in this process finds pandas; what it starts may."""
    sys.meta_path.insert(0, _NoPandas())
