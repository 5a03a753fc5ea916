"""The ports of a replicated journal: the stream of a shard, and the store of its live files.

An adapter answers every call, later and once; where an answer does not come in time, it answers `Unknown`. It never repeats an operation
by itself. Streams are replicated by servers that sync each write on a majority of their disks before they acknowledge it.
"""
# size: ports and nothing else

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.core.cluster.reader import LogEnd
from penstock.core.cluster.writer import Found, Publish, Published, Seek, Unknown


class ShardLog(Protocol):
    """One generation of a shard's stream."""

    stream: str

    def publish(self, step: Publish, done: Callable[[Published], None]) -> None:
        """Append a message on its condition."""

    def tail(self, step: Seek, done: Callable[[Found | Unknown], None]) -> None:
        """Read messages from the *leader* of the stream: a follower may lag, or hold what is not kept."""

    def forget(self, through: int, done: Callable[[bool], None]) -> None:
        """Purge the messages up to a sequence."""

    def measure(self, done: Callable[[int | None], None]) -> None:
        """The bytes of the stream; None if they are not known."""


class StoredLive(msgspec.Struct, frozen=True):
    """A live file in the store: the state at the end of a log."""

    name: str
    end: LogEnd


class LiveStore(Protocol):
    """Live files of one shard, where every node finds them. A name is never used twice."""

    def put(self, file: StoredLive, data: bytes | memoryview, done: Callable[[bool], None]) -> None:
        """Store a file; False if it may not be there."""

    def newest(self, done: Callable[[StoredLive | Unknown | None], None]) -> None:
        """The stored file with the highest offset; None if there is none."""

    def get(self, file: StoredLive, done: Callable[[bytes | Unknown], None]) -> None:
        """The bytes of a file."""

    def remove_before(self, offset: int) -> None:
        """Remove the files with a lower offset, sooner or later."""
