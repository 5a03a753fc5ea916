"""Ownership: one node's part in one shard, from following its log to writing it.

    following   reads the log, one read a second, and keeps what it reads
    taking      the log is silent or released: publishes the marker that begins an epoch
    owning      appends frames, an idle one each second when there is nothing else
    behind      the log was purged past what was read: begin again from a live file
    halted      the log is damaged

At most one operation is under way: ask `next` what to do, do it, and pass the outcome to `published` or `sought`. What became of it
stands in `frames`, `verdict` and `state`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from penstock.core.cluster.lease import IDLE_EVERY_US, READ_EVERY_US, Silence, is_held
from penstock.core.cluster.reader import LogDamage, LogFrame, ShardReader
from penstock.core.cluster.writer import (
    REWOUND_AFTER_US,
    Found,
    Kept,
    Publish,
    Published,
    Resolved,
    Seek,
    ShardWriter,
    Step,
    Unknown,
)

RETRY_US = 100_000
"""Between an operation without a clear success and the next one."""

OwnershipState: TypeAlias = Literal["following", "taking", "owning", "behind", "halted"]


class ShardOwnership:
    """What one node knows and does about the log of one shard."""

    def __init__(
        self, node: str, reader: ShardReader, entropy: Callable[[int], bytes], *, kept_offset: int = 0
    ) -> None:
        """`kept_offset` is the end of the rows that this node knows as kept: a log that ends before it has lost some."""
        self.node = node
        self._entropy = entropy
        self._kept_offset = kept_offset
        self._short_us: int | None = None
        """Since when the log has ended before that."""
        self.reader = reader
        self.writer = ShardWriter(reader)
        self.state: OwnershipState = "following"
        self.damage: LogDamage | None = None
        self.frames: list[LogFrame] = []
        """Whole frames that were read; the caller takes them."""
        self.verdict: Literal["kept", "deposed", "full"] | None = None
        """What became of the frame that the caller appended; the caller takes it."""
        self.takeovers = 0
        self._silence = Silence()
        self._step: Publish | Seek | None = None
        """What to do next, when that is known already."""
        self._asked_us = 0
        """When the newest operation began."""
        self._due_us = 0
        """When the next one may begin."""
        self._is_at_end = False
        self._has_appended = False
        self._is_releasing = False
        self._has_let_go = False
        """Whether the end of its epoch is under way: another owner may begin before this one learns that it is kept."""

    def due_us(self, *, has_facts: bool) -> int:
        """When to ask `next` again, or `may_append` if there are facts to append."""
        if has_facts and self.state == "owning":
            return self._due_us
        is_ending = self.state == "owning" and (self._is_releasing or self.writer.has_remains)
        if self._step is not None or is_ending or (self.state == "following" and not self._is_at_end):
            return self._due_us
        return max(self._due_us, self._asked_us + min(READ_EVERY_US, IDLE_EVERY_US))

    @property
    def silent_owner(self) -> str | None:
        """The owner that ended without a release, if the log is to be taken from it."""
        end = self.reader.end
        return None if end.is_released or not end.epoch else end.owner

    def may_serve(self, now_us: int) -> bool:
        """Whether clients may be admitted and given records."""
        return self.state == "owning" and not self._has_let_go and is_held(now_us, self.writer.proven_us)

    def is_vacant(self, now_us: int) -> bool:
        """Whether the log has been read to its end and has no owner any more."""
        if self.state != "following" or not self._is_at_end or self._short_us is not None:
            return False
        return self.silent_owner is None or self._silence.is_over(now_us)

    def next(self, now_us: int, *, may_take: bool) -> Publish | Seek | None:
        """What to do now; a vacant log is taken over if this node `may_take` it."""
        if now_us < self._due_us:
            return None
        step, self._step = self._step, None
        if step is None:
            step = self._choose(now_us, may_take)
        if step is not None:
            self._asked_us = now_us
        return step

    def _choose(self, now_us: int, may_take: bool) -> Publish | Seek | None:
        if self.state == "following":
            if may_take and self.is_vacant(now_us):
                return self._take_over(now_us)
            if not self._is_at_end or now_us - self._asked_us >= READ_EVERY_US:
                return Seek(self.reader.end.seq)
        elif self.state == "owning" and not self.writer.is_busy:
            if self.writer.has_remains:
                return self._take_over(now_us)
            if self._is_releasing:
                self._has_let_go = True
                return self.writer.append(now_us, "released")
            if now_us - self._asked_us >= IDLE_EVERY_US:
                return self.writer.append(now_us, "idle")
        return None

    def _take_over(self, now_us: int) -> Publish:
        self.state = "taking"
        return self.writer.take_over(now_us, self.node, self._entropy(8).hex())

    def may_append(self, now_us: int) -> bool:
        """Whether the caller may append a frame of its own now."""
        is_free = self._step is None and not self.writer.is_busy and not self.writer.has_remains
        return self.state == "owning" and is_free and not self._is_releasing and now_us >= self._due_us

    def append(self, now_us: int, payload: bytes, rows: int) -> Publish:
        """Append the rows of a commit; `verdict` has the outcome."""
        self._asked_us = now_us
        self._has_appended = True
        return self.writer.append(now_us, "rows", payload, rows)

    def release(self) -> None:
        """End the epoch behind the frame under way: the next owner need not wait."""
        self._is_releasing = self.state == "owning"

    def look(self) -> None:
        """The log may have news: read it now, not with the next second."""
        if self.state == "following":
            self._is_at_end = False

    def published(self, now_us: int, outcome: Published) -> None:
        """The outcome of a `Publish`."""
        self._due_us = now_us if isinstance(outcome, Kept) else now_us + RETRY_US
        self._advance(self.writer.published(now_us, outcome))

    def sought(self, now_us: int, found: Found | Unknown) -> None:
        """The outcome of a `Seek`."""
        is_clear = isinstance(found, Found) and (bool(found.messages) or found.last == self.reader.end.seq)
        self._due_us = now_us if is_clear and self.state == "following" else now_us + RETRY_US
        if self.state != "following":
            self._advance(self.writer.sought(now_us, found))
        elif isinstance(found, Unknown):
            self._silence.broken()
        else:
            self._follow(now_us, found)

    def _follow(self, now_us: int, found: Found) -> None:
        if found.first > self.reader.end.seq + 1:
            self.state = "behind"
            return
        for seq, message in found.messages:
            frame = self.reader.accept(seq, message)
            if isinstance(frame, LogDamage):
                self.state, self.damage = "halted", frame
                return
            if frame is not None:
                self.frames.append(frame)
        self._silence.read(self._asked_us, now_us, has_news=bool(found.messages))
        self._is_at_end = found.last <= self.reader.end.seq
        self._check_kept(now_us, found.last)

    def _check_kept(self, now_us: int, last: int) -> None:
        """A leader without a majority may show an old end for a while; the log itself never ends before what was kept or read."""
        end = self.reader.whole
        what = None
        if last < self.reader.end.seq:
            what = f"it ends at {last}, and {self.reader.end.seq} was kept"
        elif self._is_at_end and end.offset < self._kept_offset:
            what = f"the log ends before row {end.offset}, and rows up to {self._kept_offset - 1} were kept"
        if what is None:
            self._short_us = None
        elif self._short_us is None:
            self._short_us = now_us
        elif now_us - self._short_us >= REWOUND_AFTER_US:
            self.state, self.damage = "halted", LogDamage(self.reader.stream, min(last, end.seq) + 1, what)

    def _advance(self, step: Step) -> None:
        if not isinstance(step, Resolved):
            self._step = step
            return
        was, verdict = self.state, step.verdict
        self._has_let_go = False
        if isinstance(verdict, LogDamage):
            self.state, self.damage = "halted", verdict
            return  # whether the frame counts is unknown
        if verdict == "behind":
            self.state = "behind"
            return  # so is it here
        if self._has_appended and was == "owning":
            self._has_appended = False
            self.verdict = verdict
        if verdict == "deposed" or (verdict == "full" and was == "taking") or self.reader.end.is_released:
            self._leave()
        elif was == "taking":
            self.state = "owning"
            self.takeovers += 1

    def _leave(self) -> None:
        """Follow the log again."""
        self.state = "following"
        self._is_releasing = False
        self._is_at_end = False
        self._silence = Silence()
        self.writer = ShardWriter(self.reader)
