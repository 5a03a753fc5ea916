"""The spool: a shard's copy on the local disk, a journal directory like that of a single machine, and a prefix of the shard's log.

    log-end.json    where in the log a segment of the spool ended: a restart reads the log from there

A restart finds the rows of the directory and a place in the log that is not behind them. Frames between that place and the end of the
rows are read again and skipped. Where the log was purged past that place, a stored live file takes its part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from penstock.core.cluster.reader import LogEnd
from penstock.core.rows import Row
from penstock.journal.columns import read_run_head
from penstock.journal.disk import Disk
from penstock.journal.log import Log
from penstock.journal.open_and_repair import (
    LIVE_PREFIX,
    LOG_PREFIX,
    LOST_PREFIX,
    WATERMARK,
    Opened,
    live_name,
    named,
    replace_file,
)
from penstock.journal.segments import DamageError, payloads

LOG_END = "log-end.json"


class Spool:
    """The directory of one shard. For one thread."""

    def __init__(self, disk: Disk, journal: str) -> None:
        """Opens nothing yet: read `rows` to the end first."""
        self._disk = disk
        self._opened = Opened(disk, fresh_id=journal, sync="commit")
        self._log: Log | None = None

    def rows(self) -> Iterator[tuple[bool, Row]]:
        """The rows of the directory, the first ones of a live file (True); then it is open for appending."""
        for row in self._opened.live_rows():
            yield True, row
        for row in self._opened.tail_rows():
            yield False, row
        self._log = self._opened.log()

    def reopened(self) -> Spool:
        """The same directory, to read its rows again: a cell recovers from it when its node becomes the owner."""
        self.close()
        return Spool(self._disk, self._opened.identity.id)

    @property
    def offset(self) -> int:
        """The next row."""
        return self._opened.position.offset

    @property
    def is_open(self) -> bool:
        """Whether its rows were read to the end."""
        return self._log is not None

    @property
    def segment_size(self) -> int:
        return 0 if self._log is None else self._log.size

    @property
    def recorded_us(self) -> int:
        return self._opened.position.recorded_us

    @property
    def has_log_end(self) -> bool:
        return LOG_END in self._disk.names()

    def log_end(self) -> LogEnd:
        """Where to read the log from."""
        if LOG_END not in self._disk.names():
            return LogEnd()
        try:
            return msgspec.json.decode(self._disk.read(LOG_END), type=LogEnd)
        except msgspec.DecodeError as error:
            raise DamageError(LOG_END, 0, str(error)) from error

    def append(self, first: int, rows: int, frame: bytes, recorded_us: int | None) -> str | None:
        """Keep a frame of the log as it is. Returns why it cannot be kept; then nothing has changed."""
        assert self._log is not None
        if first != self.offset:
            return f"row {first} of the log follows row {self.offset - 1}"
        try:
            failure = self._log.append(frame, rows, recorded_us or _last_time(frame))
        except DamageError as error:
            return str(error)
        if failure is None:
            with suppress(OSError):  # readers in other processes see these rows with the next commit
                self._opened.publish()
        return failure

    def rotate(self, end: LogEnd) -> str | None:
        """End the newest segment, at this place of the log. Returns its name, None if it is empty."""
        assert self._log is not None
        name = self._log.rotate()
        with suppress(OSError):  # a restart then reads more of the log
            replace_file(self._disk, LOG_END, [msgspec.json.encode(end)])
        return name

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _last_time(frame: bytes) -> int:
    """The `recorded_at` of the rows of a frame."""
    for payload, _ in payloads(frame, 0):
        try:
            return read_run_head(payload)[1]
        except ValueError as error:
            raise DamageError("log", None, f"a commit holds no rows: {error}") from error
    raise DamageError("log", None, "a commit holds no whole frame")


GENERATION = "log-generation"


def generation_of(disk: Disk) -> int:
    """The generation of the stream that a directory is a copy of."""
    return int(disk.read(GENERATION)) if GENERATION in disk.names() else 1


def enter_generation(disk: Disk, offset: int, generation: int, base: int) -> bool:
    """Have a directory with rows before `offset` follow another stream, which begins with row `base`. False if it lacks rows before that.

    Rows that the new stream does not have are set aside. Each step may be repeated after a crash.
    """
    if offset > base:
        for name in [*named(disk, LOG_PREFIX), *named(disk, LIVE_PREFIX)]:
            disk.replace(name, f"{LOST_PREFIX}g{generation - 1}-{name}")
        disk.remove(WATERMARK)
        disk.sync_names()
    if offset > base or offset < base:
        disk.remove(LOG_END)
    else:
        replace_file(disk, LOG_END, [msgspec.json.encode(LogEnd(offset=base))])
    replace_file(disk, GENERATION, [str(generation).encode()])
    return offset == base or (offset > base and base == 0)


def begin_again(disk: Disk, offset: int, live: bytes, end: LogEnd) -> None:
    """Have a directory with rows before `offset` go on at a stored live file. Each step is durable before the next, and may be repeated."""
    if offset < end.offset:
        disk.remove(LOG_END)
        disk.sync_names()
        replace_file(disk, live_name(end.offset), [live])
        for name in [*named(disk, LOG_PREFIX), *named(disk, LIVE_PREFIX)]:
            if name != live_name(end.offset):
                disk.remove(name)
        disk.sync_names()
    replace_file(disk, LOG_END, [msgspec.json.encode(end)])
