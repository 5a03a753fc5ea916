"""The journal of one shard at one node: `Journal` over a replicated log and a spool.

The spool is a journal directory in the format of a single machine, and a prefix of the log: a frame is kept by a majority first, then
by the spool, then its callers are answered. A node that does not own the shard follows the log into its spool; when it takes over, it
recovers from the spool as after a restart. While one commit is under way the next one gathers; it may begin while the spool still writes.

What a cell must know comes in `on_owned` and `on_ended`. An ended cell cuts its clients: what they were not answered is unknown to them,
as after a crash.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from penstock.core.clock import Now
from penstock.core.cluster.ownership import ShardOwnership
from penstock.core.cluster.reader import LogEnd, LogFrame
from penstock.core.cluster.stream_space import STREAM_FULL, StreamSpace
from penstock.core.cluster.writer import Found, Publish, Published, Seek, Unknown
from penstock.core.records import Fact, is_fresh
from penstock.core.rows import Row
from penstock.journal.columns import pack_facts
from penstock.journal.group_commit import GROUP_FACTS_MAX
from penstock.journal.port import Committed, Outcome, Refused
from penstock.journal.replicated.shard_log import ShardLog
from penstock.journal.replicated.spool import Spool
from penstock.journal.segments import encode_packed

SPOOL_BEHIND_MAX = 1
"""Kept commits that the spool has not written: the next one waits for it, so a slow disk slows its clients."""
MEASURE_EVERY_US = 2_000_000
"""How often an owner asks for the size of its stream, which others purge and which it only estimates between."""
MOVED = "the shard has moved to another node"
NOT_OWNED = "this node does not own the shard"

T = TypeVar("T")
Done = Callable[[Outcome], None]


class Work(Protocol):
    """Runs `call` on a thread, then `done` on the loop with its result; calls and results keep their order."""

    def __call__(self, call: Callable[[], T], done: Callable[[T], None]) -> None: ...


class _Timer(Protocol):
    """A call that is to come."""

    def cancel(self) -> object: ...


class ReplicatedJournal:
    """One node's part in one shard."""

    def __init__(
        self,
        journal: str,
        ownership: ShardOwnership,
        log: ShardLog,
        spool: Spool,
        space: StreamSpace,
        *,
        now: Callable[[], Now],
        at: Callable[[int, Callable[[], None]], _Timer],
        encode: Work,
        write: Work,
        may_take: Callable[[ShardOwnership], bool],
        on_owned: Callable[[], None],
        on_ended: Callable[[str], None],
    ) -> None:
        self.id = journal
        self.ownership = ownership
        self._log = log
        self._spool = spool
        self.space = space
        self._now = now
        self._at = at
        self._encode = encode
        self._write = write
        self._may_take = may_take
        self._on_owned = on_owned
        self._on_ended = on_ended
        self._timer: _Timer | None = None
        self._queue: deque[tuple[Sequence[Fact], Done]] = deque()
        self._commit: _Commit | None = None
        self._is_asking = False
        """Whether an operation of the log, or the encoding of a commit, is under way."""
        self._spooling = 0
        self._recorded_us = spool.recorded_us
        self._offset = spool.offset
        """The end of the rows that are handed to the spool."""
        self._is_owner = False
        self._measured_us = -MEASURE_EVERY_US
        self._is_closed = False

    @property
    def offset(self) -> int:
        """The next row of the spool."""
        return self._spool.offset

    @property
    def segment_size(self) -> int:
        """Bytes of the newest segment of the spool."""
        return self._spool.segment_size

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_settled(self) -> bool:
        """Whether the spool is open and has all that was read."""
        return self._spool.is_open and not self._spooling

    # The port

    def append(self, shard: int, epoch: int, facts: Sequence[Fact], done: Done) -> None:
        if self._is_closed or self.ownership.state != "owning":
            self._at(self._now().us, lambda: done(Refused(NOT_OWNED)))
            return
        self._queue.append((facts, done))
        self.pump()

    def close(self) -> None:
        """Stop. Nothing more is answered; `release` first, so that the next owner need not wait."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def close_spool(self) -> None:
        """Close the files, on the thread that writes them, after `close`."""
        self._spool.close()

    def release(self) -> None:
        """Hand over the shard behind what is queued; `on_ended` follows."""
        self.ownership.release()
        self.pump()

    def look(self) -> None:
        """Read the log now: another node said that something has changed."""
        self.ownership.look()
        self.pump()

    def rows(self) -> Iterator[tuple[bool, Row]]:
        """The rows of the spool, the first ones of a live file (True): a new owner rebuilds its cell from them before it appends."""
        self._spool = self._spool.reopened()
        return self._spool.rows()

    def rotate(self, done: Callable[[str | None, LogEnd], None]) -> None:
        """End the newest segment of the spool; `done` gets its name and the end of the log at that place."""
        end = self.ownership.reader.whole
        self._write(lambda: self._spool.rotate(end), lambda name: done(name, end))

    # The loop

    def pump(self) -> None:
        """Do what is next, unless something is under way; outcomes and a timer call it again."""
        if self._is_asking or self._is_closed or self._spooling > SPOOL_BEHIND_MAX:
            return
        now_us = self._now().us
        if self._is_owner and now_us - self._measured_us >= MEASURE_EVERY_US:
            self._measured_us = now_us
            self._log.measure(self._note_size)
        if self._queue and self.ownership.may_append(now_us):
            self._begin()
            return
        step = self.ownership.next(now_us, may_take=self._may_take(self.ownership))
        if step is not None:
            self._perform(step)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._at(self.ownership.due_us(has_facts=bool(self._queue)), self.pump)

    def _note_size(self, used: int | None) -> None:
        if used is not None:
            self.space.measured(used)

    def _perform(self, step: Publish | Seek) -> None:
        self._is_asking = True
        if isinstance(step, Publish):
            self._log.publish(step, self._published)
        else:
            self._log.tail(step, self._sought)

    def _published(self, outcome: Published) -> None:
        if not self._is_closed:
            self.ownership.published(self._now().us, outcome)
            self._go_on()

    def _sought(self, found: Found | Unknown) -> None:
        if not self._is_closed:
            self.ownership.sought(self._now().us, found)
            self._go_on()

    def _go_on(self) -> None:
        """An operation ended: pass on what came of it."""
        self._is_asking = False
        ownership = self.ownership
        frames, ownership.frames = ownership.frames, []
        for frame in frames:
            self._follow(frame)
        verdict, ownership.verdict = ownership.verdict, None
        if verdict is not None:
            self._decide(verdict)
        self._note_state()
        self.pump()

    # Commits

    def _begin(self) -> None:
        """Encode what waits as one commit, and publish it."""
        groups: list[Sequence[Fact]] = []
        dones: list[Done] = []
        count = 0
        while self._queue and (not groups or count + len(self._queue[0][0]) <= GROUP_FACTS_MAX):
            facts, done = self._queue.popleft()
            groups.append(facts)
            dones.append(done)
            count += len(facts)
        refused = STREAM_FULL if self.space.is_short else None
        if refused is not None:
            groups = [[fact for fact in group if not is_fresh(fact)] for group in groups]
        now = self._now()
        recorded_us = max(now.wall_us, self._recorded_us)
        first = self.ownership.reader.end.offset
        commit = _Commit(groups, dones, first, recorded_us, refused)
        if not any(groups):  # the answer waits for its turn, and the log has nothing to keep
            self._write(lambda: None, lambda _: commit.answer())
            self.pump()
            return
        self._commit = commit
        self._is_asking = True
        self._encode(lambda: _encode(groups, first, recorded_us), self._encoded)

    def _encoded(self, frame: bytes | ValueError) -> None:
        commit = self._commit
        if self._is_closed or commit is None:
            return
        if isinstance(frame, ValueError):
            self._is_asking, self._commit = False, None
            commit.refuse(str(frame))
            self.pump()
            return
        commit.frame = frame
        if self.space.takes(len(frame)):
            self._perform(self.ownership.append(self._now().us, frame, commit.rows))
        else:
            self._is_asking = False
            self._decide("full")
            self.pump()

    def _decide(self, verdict: str) -> None:
        commit, self._commit = self._commit, None
        assert commit is not None
        if verdict == "kept":
            self._recorded_us = commit.recorded_us
            self.space.kept(len(commit.frame))
            self._keep(commit.first, commit.rows, commit.frame, commit.recorded_us, commit.answer)
        elif verdict == "full" and commit.refused is None:
            self.space.measured(self.space.bytes_max)  # settles go on without the records
            self._queue.extendleft(reversed(list(zip(commit.groups, commit.dones, strict=True))))
        else:
            commit.refuse(MOVED if verdict == "deposed" else STREAM_FULL)

    # The spool

    def _follow(self, frame: LogFrame) -> None:
        """Keep a frame that another owner wrote, unless the spool has it."""
        if frame.kind == "rows" and frame.first + frame.rows > self._offset:
            self._keep(frame.first, frame.rows, frame.payload, None, lambda: None)

    def _keep(self, first: int, rows: int, frame: bytes, recorded_us: int | None, then: Callable[[], None]) -> None:
        self._spooling += 1
        self._offset = first + rows

        def kept(trouble: str | None) -> None:
            self._spooling -= 1
            if self._is_closed:
                return
            if trouble is None:
                then()
                self.pump()
            else:
                self._end(f"the spool does not take a commit that was kept: {trouble}")

        self._write(lambda: self._spool.append(first, rows, frame, recorded_us), kept)

    # Ownership

    def _note_state(self) -> None:
        state = self.ownership.state
        if state == "owning" and not self._is_owner:
            self._is_owner = True
            self._measured_us = -MEASURE_EVERY_US
            # When all that was read is in the spool, the cell can recover from it.
            self._write(lambda: None, lambda _: self._on_owned() if self._is_owner else None)
        elif state in ("behind", "halted"):
            self._end(str(self.ownership.damage or "the log was purged past what this node has read"))
        elif state == "following" and self._is_owner:
            self._is_owner = False
            self._refuse_queued()
            self._on_ended(MOVED)

    def _end(self, reason: str) -> None:
        """Nothing more can be done here: a commit under way stays without an answer."""
        self.close()
        self._is_owner = False
        self._refuse_queued()
        self._on_ended(reason)

    def _refuse_queued(self) -> None:
        queued, self._queue = self._queue, deque()
        for _, done in queued:
            done(Refused(MOVED))


def _encode(groups: Sequence[Sequence[Fact]], first: int, recorded_us: int) -> bytes | ValueError:
    try:
        pieces = [piece for group in groups for piece in pack_facts(group)]
        return encode_packed(first, recorded_us, sum(map(len, groups)), pieces)
    except ValueError as error:  # longer than a frame may be
        return error


class _Commit(msgspec.Struct):
    """Appends that are one frame of the log."""

    groups: list[Sequence[Fact]]
    dones: list[Done]
    first: int
    recorded_us: int
    refused: str | None
    """Why its fresh facts were left out."""
    frame: bytes = b""

    @property
    def rows(self) -> int:
        return sum(len(group) for group in self.groups)

    def answer(self) -> None:
        offset = self.first
        for group, done in zip(self.groups, self.dones, strict=True):
            done(Committed(offset, self.refused, self.recorded_us))
            offset += len(group)

    def refuse(self, reason: str) -> None:
        for done in self.dones:
            done(Refused(reason))
