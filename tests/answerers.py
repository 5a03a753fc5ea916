"""Finds the SQL processes of a server in the process table."""

from __future__ import annotations

import re
from pathlib import Path

_BOUNDED = re.compile(r"Max file size +0 +0")


def answerers(pid: int, *, at_work: bool = False) -> list[str]:
    """Those that a process has started and that still run; only those that have read their question, if asked for."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            limits = Path(f"/proc/{child}/limits").read_text()
        except OSError:
            continue  # it ended while we looked
        if b"penstock.server.admin.sql_process" in command and (not at_work or _BOUNDED.search(limits)):
            found.append(child)
    return found
