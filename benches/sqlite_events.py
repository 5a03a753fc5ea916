"""The peer of `penstock bench journal`: SQLite with its fastest safe settings, WAL and full synchronisation."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

COLUMNS = "offset INTEGER PRIMARY KEY, at INTEGER, channel TEXT, id TEXT, kind TEXT, body BLOB"
INSERT = "INSERT INTO events (at, channel, id, kind, body) VALUES (?, ?, ?, ?, ?)"


class SqliteEvents:
    """A table of events in a new file."""

    def __init__(self, path: Path) -> None:
        self._peer = sqlite3.connect(path, isolation_level=None)
        self._peer.execute("PRAGMA journal_mode=WAL")
        self._peer.execute("PRAGMA synchronous=FULL")
        self._peer.execute(f"CREATE TABLE events ({COLUMNS})")

    def append(self, rows: list[tuple[object, ...]], group: int) -> int:
        """Insert rows without their time, `group` a transaction; returns how many there are."""
        for start in range(0, len(rows), group):
            now_us = time.time_ns() // 1000
            self._peer.execute("BEGIN")
            self._peer.executemany(INSERT, [(now_us, *row) for row in rows[start : start + group]])
            self._peer.execute("COMMIT")
        return int(self._peer.execute("SELECT count(*) FROM events").fetchone()[0])

    def read(self) -> int:
        """Read every row; returns how many there were."""
        return sum(1 for _ in self._peer.execute("SELECT offset, at, channel, id, kind, body FROM events"))
