"""A faulty disk in memory: it keeps what was synced, and an arbitrary part of the rest.

`LyingDisk` implements `journal.disk.Disk`. For every file and name it knows what is durable and what is only buffered. A crash keeps an
arbitrary part of the unsynced data: a prefix, with zeroes, garbage or holes in it, and directory changes in any order or not at all. It can
also be full, or fail at random. Equal seeds give equal faults.

`SimJournal` is a journal on such a disk: slow, full, failing, or lost in the middle of a write. It keeps the contract of the port (every
append is answered later, in order) and nothing beyond it. Its rows survive a crash of the server. Of the unanswered appends, a crash keeps
an arbitrary prefix, because a disk may have completed a write before it was acknowledged.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

import msgspec

from penstock.core.records import Fact, is_fresh
from penstock.core.rows import Row, row_of
from penstock.journal.port import Committed, Outcome, Refused
from penstock.testing.clock import Clock

GARBAGE_CHANCE = 0.4
"""How often a crash leaves other bytes than those written in what was not synced."""
_WHOLE = 1 << 60


class PowerLossError(BaseException):
    """The machine is gone in the middle of an operation; no code of it may handle that."""


class _Inode:
    """A file's bytes, apart from its names."""

    __slots__ = ("changes", "data", "doubts", "durable", "newest", "reserved")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.changes: list[bytes | int] = []
        """Since the last sync: bytes that were appended, sizes it was cut to."""
        self.doubts: list[tuple[int, int]] = []
        """Ranges that a failed sync may have dropped: a later sync says nothing about them."""
        self.reserved = 0
        self.newest: bytes | None = None
        """Written in place since the last sync, within a sector: a crash leaves it or the durable content, whole."""

    @property
    def size(self) -> int:
        return max(len(self.data), self.reserved)

    def append(self, data: bytes) -> None:
        self.data += data
        self.changes.append(data)

    def cut(self, size: int) -> None:
        del self.data[size:]
        self.changes.append(size)
        self.doubts = [(start, min(end, size)) for start, end in self.doubts if start < size]

    def overwrite(self, data: bytes) -> None:
        if len(self.durable) != len(data) or self.changes:
            self.cut(0)
            self.append(data)
            return
        self.data[:] = data
        self.newest = data

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.changes.clear()
        self.newest = None

    def doubt(self) -> None:
        """A sync failed: the changes count as written, but may be lost."""
        start = len(self.durable)
        for change in self.changes:
            start = min(start, change if isinstance(change, int) else start)
        if start < len(self.data):
            self.doubts.append((start, len(self.data)))
        self.sync()

    def after_crash(self, dice: Random) -> _Inode:
        found = bytearray(self.durable if self.newest is None else dice.choice((self.durable, self.newest)))
        sound = len(found)
        kept = dice.randint(0, len(self.changes))
        for change in self.changes[:kept]:
            if isinstance(change, int):
                del found[change:]
                sound = min(sound, change)  # up to where the bytes are surely the right ones
            else:
                found += change
        if kept < len(self.changes):
            change = self.changes[kept]
            if not isinstance(change, int):
                found += change[: dice.randint(0, len(change))]
        ranges = [range_ for range_ in self.doubts if dice.random() < 0.5]
        if sound < len(found) and dice.random() < GARBAGE_CHANCE:
            ranges.append((dice.randint(sound, len(found) - 1), dice.choice((_WHOLE, len(found)))))
            if dice.random() < 0.5:  # a hole, with what follows it in place
                start = ranges[-1][0]
                ranges[-1] = (start, dice.randint(start + 1, len(found)))
        for start, end in ranges:
            end = min(end, len(found))
            if start < end:
                found[start:end] = dice.choice((bytes(end - start), dice.randbytes(end - start)))
        inode = _Inode()
        inode.data = found
        inode.durable = bytes(found)
        inode.reserved = self.reserved
        return inode


class _Move(msgspec.Struct, eq=False):
    """A change of names that is not durable yet: `name` stands for `inode` from now on, and `old` no longer does."""

    name: str | None
    old: str | None
    inode: _Inode

    def apply(self, names: dict[str, _Inode]) -> None:
        if self.old is not None and names.get(self.old) is self.inode:
            del names[self.old]
        if self.name is not None:
            names[self.name] = self.inode


class LyingFile:
    """A file of a lying disk, open for appending."""

    def __init__(self, disk: LyingDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode

    def append(self, data: bytes) -> None:
        disk, inode = self._disk, self._inode
        room = disk.free()
        if len(data) > room:
            inode.append(data[: disk.dice.randint(0, max(room, 0))])
            disk.step()
            raise OSError(errno.ENOSPC, "no space left")
        if disk.fails("append"):
            # The error may come before, within or after the write.
            size = disk.dice.choice((0, disk.dice.randint(0, len(data)), len(data)))
            inode.append(data[:size])
            raise OSError(errno.EIO, "input/output error")
        inode.append(data)
        disk.step()

    def sync(self) -> None:
        disk, inode = self._disk, self._inode
        disk.step()
        if disk.fails("sync"):
            inode.doubt()
            raise OSError(errno.EIO, "input/output error")
        if disk.dice.random() < disk.lost_syncs:
            return
        inode.sync()

    def truncate(self, size: int) -> None:
        self._disk.step()
        if self._disk.fails("truncate"):
            raise OSError(errno.EIO, "input/output error")
        self._inode.cut(size)

    def close(self) -> None:
        """Nothing is synced by closing. After an error the file is closed."""
        if self._disk.fails("close"):
            raise OSError(errno.EIO, "input/output error")


class LyingDisk:
    """`journal.disk.Disk` with faults drawn from a seed.

    `space` bounds the bytes of all files, `eio` is the chance that an operation fails and `lost_syncs` that a sync does
    nothing; set them while it runs. With `steps_left`, the power goes at that many operations from now.
    """

    def __init__(self, seed: int, *, space: int = _WHOLE, eio: float = 0.0, lost_syncs: float = 0.0) -> None:
        self.seed = seed
        self.dice = Random(seed)
        self.space = space
        self.eio = eio
        self.lost_syncs = lost_syncs
        self.steps_left: int | None = None
        self.steps = 0
        """Operations so far."""
        self.failures = 0
        """Operations that failed so far."""
        self.failing: tuple[str, ...] = ("append", "sync", "truncate", "names", "close")
        """The operations that `eio` is about."""
        self._is_off = False
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._moves: list[_Move] = []

    def step(self) -> None:
        """One operation happens, unless the power goes first."""
        self.steps += 1
        if self.steps_left is not None:
            self.steps_left -= 1
            self._is_off |= self.steps_left < 0
        if self._is_off:
            raise PowerLossError

    def fails(self, operation: str) -> bool:
        has_failed = operation in self.failing and self.dice.random() < self.eio
        self.failures += has_failed
        return has_failed

    def crash(self) -> LyingDisk:
        """The disk as the next start finds it. This one is of no use any more."""
        self._is_off = True
        names = dict(self._durable_names)
        moves = [move for move in self._moves if self.dice.random() < 0.5]
        self.dice.shuffle(moves)
        for move in moves:
            move.apply(names)
        found = LyingDisk(self.dice.getrandbits(64), space=self.space, lost_syncs=self.lost_syncs)
        kept = {id(inode): inode.after_crash(self.dice) for inode in names.values()}
        found._names = {name: kept[id(inode)] for name, inode in names.items()}
        found._durable_names = dict(found._names)
        return found

    # The port

    def open(self, name: str) -> LyingFile:
        self.step()
        return LyingFile(self, self._opened(name))

    def _opened(self, name: str) -> _Inode:
        if name not in self._names:
            self._move(_Move(name, None, _Inode()))
        return self._names[name]

    def _found(self, name: str) -> _Inode:
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", name)
        return self._names[name]

    def read(self, name: str) -> bytes:
        return bytes(self._found(name).data)

    def size(self, name: str) -> int:
        return self._found(name).size

    def names(self) -> list[str]:
        return sorted(self._names)

    def replace(self, old: str, new: str) -> None:
        self.step()
        self._move(_Move(new, old, self._names[old]))

    def remove(self, name: str) -> None:
        self.step()
        inode = self._names.get(name)
        if inode is not None:
            self._move(_Move(None, name, inode))

    def overwrite(self, name: str, data: bytes) -> None:
        self.step()
        self._opened(name).overwrite(data)

    def sync_names(self) -> None:
        self.step()
        if self.fails("names"):
            raise OSError(errno.EIO, "input/output error")
        self._durable_names = dict(self._names)
        self._moves.clear()

    def free(self) -> int:
        seen = {id(inode): inode.size for inode in self._names.values()}
        return self.space - sum(seen.values())

    def reserve(self, name: str, size: int) -> None:
        self.step()
        inode = self._names.get(name)
        if self.free() + (0 if inode is None else inode.size) < size:
            raise OSError(errno.ENOSPC, "no space left")
        self._opened(name).reserved = size

    def _move(self, move: _Move) -> None:
        move.apply(self._names)
        self._moves.append(move)


Mood = Literal["well", "slow", "full", "failing"]
"""`slow` stalls, `full` accepts settles but no new records, `failing` rejects whole appends."""

_DELAYS_US: dict[Mood, tuple[int, int]] = {
    "well": (100, 3_000),
    "slow": (20_000, 600_000),
    "full": (100, 3_000),
    "failing": (100, 20_000),
}


class _Write(msgspec.Struct, eq=False):
    """An unanswered append."""

    rows: list[tuple[Row, bool]]
    done: Callable[[Outcome], None]


class SimJournal(msgspec.Struct, eq=False):
    """`journal.port.Journal` on a simulated disk.

    Set `mood` to change how the disk behaves from now on. `rows` are the durable rows.
    """

    _clock: Clock
    _dice: Random
    _kept: Callable[[list[Row]], None]
    _refused: Callable[[list[Row]], None]
    mood: Mood = "well"
    rows: list[Row] = []
    id: str = "simulated"
    _writes: deque[_Write] = msgspec.field(default_factory=deque)
    _due_us: int = 0
    _generation: int = 0

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Callable[[Outcome], None]) -> None:
        """Accept the rows of the facts, and answer later."""
        self._writes.append(_Write([(row_of(fact), is_fresh(fact)) for fact in facts], done))
        low, high = _DELAYS_US[self.mood]
        # Appends are answered in order, like the writes of one disk.
        self._due_us = max(self._due_us, self._clock.us + self._dice.randint(low, high))
        generation = self._generation
        self._clock.at(self._due_us, lambda: self._answer(generation))

    def close(self) -> None:
        return None

    def crash(self) -> None:
        """The server crashed: no append is answered, and an arbitrary prefix of them is durable."""
        self._generation += 1
        kept = self._dice.randint(0, len(self._writes))
        for _ in range(kept):
            self._keep(self._writes.popleft().rows)
        self._writes.clear()
        self._due_us = 0

    def _answer(self, generation: int) -> None:
        if generation != self._generation:
            return
        write = self._writes.popleft()
        first = len(self.rows)
        outcome: Outcome
        if self.mood == "failing" and self._dice.random() < 0.5:
            outcome = Refused("the disk failed")
            self._refused([row for row, _ in write.rows])
        elif self.mood == "full" and any(fresh for _, fresh in write.rows):
            self._refused([row for row, fresh in write.rows if fresh])
            at = self._keep([(row, fresh) for row, fresh in write.rows if not fresh])
            outcome = Committed(first, "the disk is full", at)
        else:
            outcome = Committed(first, recorded_us=self._keep(write.rows))
        write.done(outcome)

    def _keep(self, rows: list[tuple[Row, bool]]) -> int:
        """Make rows durable, and return their `recorded_at`. It never decreases, whatever the wall clock does."""
        at = max(self._clock.now().wall_us, self.rows[-1].recorded_at if self.rows else 0)
        first = len(self.rows)
        begun = {(row.channel, row.seq) for row, _ in rows if row.event == "enqueue"}
        kept = [
            msgspec.structs.replace(
                row,
                journal=self.id,
                offset=first + index,
                recorded_at=at,
                ref_at=at if row.ref_offset == -1 and (row.channel, row.seq) in begun else row.ref_at,
            )
            for index, (row, _) in enumerate(rows)
        ]
        self.rows += kept
        self._kept(kept)
        return at
