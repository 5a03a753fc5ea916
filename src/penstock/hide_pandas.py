"""Hides pandas from a process that does not need it.

pyarrow imports pandas, if it is installed, when it converts its first row. That takes a quarter of a second and tens of megabytes, during a
server's first commit, in a process that never uses a data frame.
"""

# size: one hook of the import system, which the server and its processes install

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    """Reports that pandas is not installed."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process hides pandas", name=fullname)


def hide_pandas() -> None:
    """Hide pandas from this process, but not from its child processes."""
    sys.meta_path.insert(0, _NoPandas())
