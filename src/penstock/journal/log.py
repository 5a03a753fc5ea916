"""The log: append commits to the newest segment, and handle disk errors. No threads.

Owns the newest segment, the next offset, and the recovery from failed writes. A commit is one frame: encoded, appended, synced, then
published. After a failed write the file is truncated to the last commit, so a reader never sees a partial commit. After a failed sync the
segment is abandoned, because its state on disk is unknown; the next segment begins at the last good commit. Settles may use a
preallocated reserve: a full disk rejects new records, never an ack.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat
from typing import Literal

import msgspec

from penstock.core.health import DISK_FULL
from penstock.core.records import Fact, is_fresh
from penstock.journal.columns import SCHEMA, Packed, pack_facts
from penstock.journal.disk import Disk, File
from penstock.journal.port import Committed, Outcome, Refused
from penstock.journal.segments import PACKED, Header, encode_header, encode_packed

Sync = Literal["commit", "interval", "off"]

RESERVE = "reserve"
RESERVE_BYTES = 16 * 1024 * 1024
"""Preallocated so that settles fit on a full disk: about a hundred thousand of them."""
MARGIN_BYTES = 4 * 1024 * 1024
"""A disk counts as recovered when it has this much free space besides the reserve."""
FULL_BYTES = 1024 * 1024
"""A disk with less free space counts as full before a write fails."""


def segment_name(first_offset: int) -> str:
    return f"log-{first_offset:020d}.seg"


class Position(msgspec.Struct):
    """Where a journal's next row goes."""

    journal: str
    shard: int
    epoch: int
    offset: int
    recorded_us: int = 0
    """Time of the last row: the next is not earlier."""


class Log:
    """Appends to the newest segment of one shard."""

    def __init__(self, disk: Disk, position: Position, *, sync: Sync) -> None:
        self._disk = disk
        self._sync = sync
        self.position = position
        self._file: File | None = None
        self.segment = ""
        """The file being written."""
        self.size = 0
        """Bytes of the segment that are committed."""
        self._has_reserve = False
        self.trouble: str | None = None
        """Why new records are refused, while they are."""
        self.unsynced = False

    @property
    def space(self) -> tuple[int | None, int]:
        """Bytes that are free for new records, None when the disk does not say, and bytes allocated for settles, 0 while in use."""
        reserved = RESERVE_BYTES if self._has_reserve else 0
        try:
            return max(self._disk.free() + reserved - RESERVE_BYTES, 0), reserved
        except OSError:
            return None, reserved

    @property
    def is_closed(self) -> bool:
        """Whether no segment is being written."""
        return self._file is None

    def resume(self, name: str, size: int) -> None:
        """Continue a segment that recovery found valid up to `size`."""
        self._file = self._disk.open(name)
        self.segment = name
        self.size = size

    def commit(
        self, groups: Sequence[Sequence[Fact]], wall_us: int, packed: Sequence[Packed | None] = ()
    ) -> list[Outcome]:
        """Make the facts of several appends durable in one frame, with their rows if they are packed. One outcome each, in order."""
        if self.trouble is not None:
            self._try_recovery()
        if self.trouble is None:
            failure = self._write(groups, wall_us, packed)
            if failure is None:
                return self._outcomes(groups, refused=None)
            self.trouble = failure
        kept = [[fact for fact in group if not is_fresh(fact)] for group in groups]
        if any(kept):
            self._give_up_reserve()
            failure = self._write(kept, wall_us)
            if failure is not None:
                return [Refused(failure) for _ in groups]
        return self._outcomes(kept, refused=self.trouble)

    def _outcomes(self, groups: Sequence[Sequence[Fact]], refused: str | None) -> list[Outcome]:
        offset = self.position.offset - sum(len(group) for group in groups)
        outcomes: list[Outcome] = []
        for group in groups:
            outcomes.append(Committed(offset, refused, self.position.recorded_us))
            offset += len(group)
        return outcomes

    def _write(
        self, groups: Sequence[Sequence[Fact]], wall_us: int, packed: Sequence[Packed | None] = ()
    ) -> str | None:
        count = sum(map(len, groups))
        if not count:
            return None
        position = self.position
        recorded_us = max(wall_us, position.recorded_us)
        pieces = [
            piece
            for group, ready in zip(groups, packed or repeat(None), strict=False)
            for piece in (pack_facts(group) if ready is None else ready)
        ]
        return self.append(encode_packed(position.offset, recorded_us, count, pieces), count, recorded_us)

    def append(self, frame: bytes, rows: int, recorded_us: int) -> str | None:
        """Append and sync one frame. Returns why it failed; then nothing has changed."""
        try:
            file = self._open()
            file.append(frame)
        except OSError as error:
            self._cut_back()
            return _reason(error)
        if self._sync == "commit":
            try:
                file.sync()
            except OSError as error:
                self._abandon()
                return _reason(error)
        else:
            self.unsynced = True
        self.size += len(frame)
        self.position.offset += rows
        self.position.recorded_us = recorded_us
        return None

    def _open(self) -> File:
        """The newest segment; creates one if there is none."""
        if self._file is not None:
            return self._file
        position = self.position
        name = segment_name(position.offset)
        header = Header(position.journal, position.shard, position.epoch, position.offset, version=PACKED)
        head = encode_header(header, SCHEMA)
        self._disk.remove(name)  # the remains of an earlier attempt
        file = self._disk.open(name)
        try:
            file.append(head)
            file.sync()
            self._disk.sync_names()
        except OSError:
            with suppress(OSError):
                file.close()
            self._disk.remove(name)
            raise
        self._file, self.segment, self.size = file, name, len(head)
        return file

    def _cut_back(self) -> None:
        """Remove a partial write durably; otherwise a crash could bring back what was refused."""
        if self._file is None:
            return
        try:
            self._file.truncate(self.size)
            self._file.sync()
        except OSError:
            self._abandon()

    def _abandon(self) -> None:
        """Give up the newest segment after its last commit; the next commit begins another."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.truncate(self.size)
            file.sync()
        except OSError:
            pass  # recovery reads it only up to the beginning of the next segment
        with suppress(OSError):
            file.close()

    def _give_up_reserve(self) -> None:
        if self._has_reserve:
            self._disk.remove(RESERVE)
            self._has_reserve = False

    def make_reserve(self) -> None:
        """Allocate the reserve. On a disk without space for it, new records are rejected from the start."""
        try:
            self._disk.reserve(RESERVE, RESERVE_BYTES)
            self._has_reserve = True
        except OSError as error:
            self._disk.remove(RESERVE)
            self.trouble = _reason(error)

    def _try_recovery(self) -> None:
        """Check whether the disk has recovered: space for the reserve and more, and a sync that succeeds."""
        try:
            wanted = MARGIN_BYTES + (0 if self._has_reserve else RESERVE_BYTES)
            if self._disk.free() < wanted:
                return
            if not self._has_reserve:
                self._disk.reserve(RESERVE, RESERVE_BYTES)
                self._has_reserve = True
            self._open().sync()
        except OSError as error:
            self.trouble = _reason(error)
            return
        self.trouble = None

    def check(self) -> None:
        """Look at the disk without a commit: a full one refuses records, one that recovered takes them."""
        if self.trouble is not None or (free := self.space[0]) is None:
            self._try_recovery()  # it also says why the free space cannot be read
        elif free < FULL_BYTES:
            self.trouble = DISK_FULL

    def fail(self, error: Exception) -> None:
        """Refuse new records because of this error, until a check or a commit finds the disk recovered."""
        self.trouble = _reason(error)

    def sync(self) -> str | None:
        """For `interval`: make what was appended durable now."""
        if not self.unsynced or self._file is None:
            return None
        self.unsynced = False
        try:
            self._file.sync()
        except OSError as error:
            self.trouble = _reason(error)
            self._abandon()
            return self.trouble
        return None

    def rotate(self) -> str | None:
        """End the newest segment and begin the next, whose name says where this one ends. Returns its name."""
        name = self.segment
        if self._file is None or name == segment_name(self.position.offset):
            return None
        self.sync()
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
            self._open()
        except OSError as error:
            self.trouble = _reason(error)
        return name

    def close(self) -> str | None:
        """Close. Returns why rows may have been lost, if so."""
        failure = self.sync()
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:
            failure = failure or _reason(error)
        self._give_up_reserve()
        return failure


def _reason(error: Exception) -> str:
    if not isinstance(error, OSError):
        return f"the journal failed: {error!r}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return DISK_FULL
        case errno.EIO:
            return "the disk reports an error"
        case _:
            return f"the disk refuses: {error.strerror or error}"
