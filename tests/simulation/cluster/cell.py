"""A shard at a simulated node: the shipped journal over a spool on a faulty disk, and the records its node knows while it owns it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from penstock.core.cluster.messages import cut
from penstock.core.cluster.ownership import ShardOwnership
from penstock.core.cluster.reader import LogEnd, ShardReader
from penstock.core.cluster.status import ShardReport, ShardState
from penstock.core.cluster.stream_space import StreamSpace
from penstock.core.cluster.writer import Publish, Unknown
from penstock.core.records import Entry
from penstock.core.rows import Row
from penstock.journal.log import segment_name
from penstock.journal.open_and_repair import LIVE_PREFIX, LOG_PREFIX, live_name, named
from penstock.journal.port import Committed, Outcome, Refused
from penstock.journal.replicated.live_files import LiveFiles
from penstock.journal.replicated.membership import ShardSettings
from penstock.journal.replicated.replicated_journal import ReplicatedJournal
from penstock.journal.replicated.shard_log import LiveStore, StoredLive
from penstock.journal.replicated.spool import Spool, begin_again, enter_generation, generation_of
from penstock.journal.seal import write_live
from penstock.journal.segments import KIND_LIVE, Header
from tests.simulation.cluster.checks import HALT, SPOOL, Key
from tests.simulation.cluster.ways import SimLog, SimStore
from tests.simulation.queue.checks import Broken
from tests.simulation.queue.history import TERMINAL

if TYPE_CHECKING:
    from tests.simulation.cluster.node import SimNode

REOPEN_US = 1_000_000
RECOVERY_US = (1_000, 1_500_000)
"""How long a cell is rebuilt from the spool."""
FLUSH_US = 2_000_000
"""How long a shard that moves may take to answer what it has taken; then it stays."""
JOURNAL = "00" * 16


class SimCell:
    """A shard at a node."""

    def __init__(self, node: SimNode, shard: int) -> None:
        self.node = node
        self.shard = shard
        self.model = node.cluster.models[shard]
        self.live: set[str] = set()
        """Records that are not settled, while the cell is there."""
        self.is_ready = False
        """Whether the cell is there."""
        self.is_owner = False
        self.is_moving = False
        self._is_flushed = False
        self._unanswered = 0
        """Requests that wait for their commit."""
        self._leaving: set[str] = set()
        """Those of them whose settle waits for its commit."""
        self._openings = 0
        """What was asked before the last one is answered to no avail."""
        self._open()

    def _open(self) -> None:
        """As `ClusterShard.open` of the server does it."""
        node, settings = self.node, self.settings
        self._openings += 1
        disk = node.disks[self.shard]
        stream, files = node.cluster.generations[self.shard][settings.generation]
        self._log = SimLog(node, stream)
        self._store: LiveStore = SimStore(node, files)
        self._files = LiveFiles(self._log, self._store)
        spool = Spool(disk, JOURNAL)
        rows = list(spool.rows())
        if generation_of(disk) != settings.generation:
            enter_generation(disk, spool.offset, settings.generation, settings.base)
            spool = Spool(disk, JOURNAL)
            rows = list(spool.rows())
        self._check(rows)
        reader = ShardReader(self._log.stream, spool.log_end())
        self.ownership = ShardOwnership(node.name, reader, node.dice.randbytes, kept_offset=spool.offset)
        self.space = StreamSpace(node.cluster.bytes_max)
        self.journal = ReplicatedJournal(
            JOURNAL,
            self.ownership,
            self._log,
            spool,
            self.space,
            now=node.now,
            at=node.at,
            encode=node.work,
            write=node.work,
            may_take=self._may_take,
            on_owned=self._owned,
            on_ended=self._ended,
        )
        if settings.base == 0 or spool.has_log_end:
            node.soon(self.journal.pump)
        else:
            self._begin_again()

    @property
    def settings(self) -> ShardSettings:
        """Which stream it follows, as this node knows."""
        return self.node.settings[self.shard]

    def switch(self) -> None:
        """The shard has another stream."""
        self.close_cell()
        self.journal.close()
        self._open()

    def repair(self) -> None:
        """What `penstock cluster repair` has this node do, in the order of `server/cluster/repair.py`."""
        node, cluster, disk = self.node, self.node.cluster, self.node.disks[self.shard]
        if self.ownership.state != "halted":
            return  # it is refused, as by the server
        epoch = max(report.shards[self.shard].epoch for report in node.reports.values())
        self.close_cell()
        self.journal.close()
        spool = Spool(disk, JOURNAL)
        rows = list(spool.rows())
        base = spool.offset
        write_live(disk, Header(JOURNAL, 0, 0, base, KIND_LIVE), self._state_rows(base, rows), spool.recorded_us)
        generation = max(cluster.generations[self.shard]) + 1
        stream, files = cluster.add_generation(self.shard, generation)
        node.begins()
        [marker] = cut("epoch", b"repair 00", epoch=epoch + 1, number=0, first=base, previous=0)
        [released] = cut("released", b"", epoch=epoch + 1, number=1, first=base, previous=marker.check)
        self.model.begin_again(stream.name, base, was_used=generation == self.settings.generation + 1)
        for after, message in enumerate((marker, released)):
            stream.publish(node.home, Publish(message, after), lambda outcome: None)
        node.begins()
        end = LogEnd(2, epoch + 1, 1, base, released.check, "repair", is_released=True)
        files["repaired"] = StoredLive("repaired", end), disk.read(live_name(base))
        value = msgspec.json.encode(ShardSettings(JOURNAL, generation, base))
        cluster.buckets.put(node.home, f"shard.{self.shard}", value, revision=node.revisions[self.shard])

    def _may_take(self, ownership: ShardOwnership) -> bool:
        if not ownership.is_vacant(self.node.now().us):
            return False  # as the answer would be; this one is quicker
        return self.node.may_take(self.shard, ownership.silent_owner)

    @property
    def report(self) -> ShardReport:
        end = self.ownership.reader.whole
        return ShardReport(self._state, end.epoch, max(end.offset, self.journal.offset))

    @property
    def _state(self) -> ShardState:
        state = self.ownership.state
        if self.is_owner:
            return "moving" if self.is_moving else "owning" if self.is_ready else "recovering"
        return "following" if state == "owning" else state

    def _check(self, rows: list[tuple[bool, Row]]) -> set[str]:
        """The records of the spool, which must be those of the log."""
        live: set[str] = set()
        state: set[str] | None = None
        tail: list[Row] = []
        for is_state, row in rows:
            if row.door == "server":
                continue
            if not is_state:
                state = set(live) if state is None else state
                tail.append(row)
            if row.event == "enqueue":
                live.add(row.id or "")
            elif row.event in TERMINAL:
                live.discard(row.id or "")
        if tail:
            keys = [(row.event, row.id or "", row.corr or "") for row in tail]
            self.model.check_spool(self.node.name, tail[0].offset, keys, state or set())
        return live

    def _owned(self) -> None:
        self.node.begins()
        self.is_owner = True
        self.node.changed()
        rows = list(self.journal.rows())
        live = self._check(rows)
        self.model.check_taken(self.node.name, self.journal.offset, live)
        journal, node = self.journal, self.node

        def recovered() -> None:
            if journal is self.journal and self.is_owner and self.ownership.state == "owning":
                self.live = live
                self.is_ready = True
                self._open_cell(rows)
                node.cluster.serving[self.shard].add(self)
                node.changed()
                journal.pump()

        node.at(node.now().us + node.dice.randint(*RECOVERY_US), recovered)

    def _open_cell(self, rows: list[tuple[bool, Row]]) -> None:
        self._leaving = set()
        self._unanswered = 0

    def records(self) -> set[str]:
        """What is not settled, as this cell knows."""
        return self.live

    def close_cell(self) -> None:
        """The node does not own the shard any more."""
        self.is_ready = self.is_owner = self.is_moving = False
        self.node.cluster.serving[self.shard].discard(self)

    def _ended(self, reason: str) -> None:
        self.close_cell()
        self.node.cluster.note("ended", self.node.name, self.shard, reason)
        self.node.changed()
        if self.ownership.state == "behind":
            self._begin_again()
        elif self.ownership.state == "halted":
            if not self.node.cluster.has_lost:
                raise Broken(HALT, f"{self.node.name}: {reason}")
            self.node.cluster.halted.add(self.shard)
        elif reason.startswith("the spool"):
            if self.shard not in self.node.full_disks:
                raise Broken(SPOOL, f"{self.node.name}: {reason}")
            self._reopen()

    def _reopen(self) -> None:
        """When the disk has room again."""
        if self.shard in self.node.full_disks:
            self.node.at(self.node.now().us + REOPEN_US, self._reopen)
        else:
            self._open()

    def _begin_again(self) -> None:
        """Go on at the newest live file."""
        opening = self._openings

        def found(file: StoredLive | Unknown | None) -> None:
            if opening == self._openings:
                if isinstance(file, StoredLive):
                    self._store.get(file, lambda data: got(file.end, data))
                else:
                    self.node.at(self.node.now().us + REOPEN_US, lambda: self._store.newest(found))

        def got(end: LogEnd, data: bytes | Unknown) -> None:
            if opening != self._openings:
                return
            if isinstance(data, Unknown) or self.shard in self.node.full_disks:
                found(None)
            else:
                begin_again(self.node.disks[self.shard], self.journal.offset, data, end)
                self._open()

        self._store.newest(found)

    # What the owner does

    @property
    def may_serve(self) -> bool:
        """Whether the lease is held."""
        return self.is_ready and self.ownership.may_serve(self.node.now().us)

    @property
    def is_open(self) -> bool:
        """Whether new requests are taken."""
        return not self.is_moving and self.may_serve

    def look(self) -> None:
        """Called some times a second."""

    def release(self) -> None:
        """Hand the shard over: take nothing new, answer what was taken, end the epoch."""
        if not self.is_ready or self.is_moving:
            return
        self.is_moving, self._is_flushed = True, False
        self.node.cluster.note("release", self.node.name, self.shard)
        self.node.changed()
        self.node.at(self.node.now().us + FLUSH_US, self._stay)
        self._flush()

    def _flush(self) -> None:
        """When everything is answered, hand over."""
        if self.is_moving and not self._unanswered:
            self._is_flushed = True
            self.journal.release()

    def _stay(self) -> None:
        """The servers do not keep what was taken: the shard stays here."""
        if self.is_moving and not self._is_flushed:
            self.is_moving = False
            self.node.changed()

    def send(self, request: str, fresh: list[tuple[str, bytes]], settles: int) -> None:
        """A client's request, all or nothing: new records, and settles of records that it was given."""
        live = self.live
        self.model.check_served(self.node.name, live)
        held = sorted(live - self._leaving)
        settled = self.node.dice.sample(held, min(settles, len(held)))
        entries = [Entry("courier", "ack", "q", id=name, corr=request, fresh=False) for name in settled]
        entries += [Entry("courier", "enqueue", "q", id=name, corr=request, body=body) for name, body in fresh]
        keys: list[Key] = [(entry.event, entry.id or "", request) for entry in entries]
        leaving = self._leaving
        leaving.update(settled)

        def done(outcome: Outcome) -> None:
            match outcome:
                case Committed(refused=refused):
                    kept = [key for key in keys if refused is None or key[0] != "enqueue"]
                    self.model.answered(kept, is_kept=True)
                    self.model.answered([key for key in keys if key not in kept], is_kept=False)
                    live.update(name for event, name, _ in kept if event == "enqueue")
                    live.difference_update(settled)
                case Refused():
                    self.model.answered(keys, is_kept=False)
            leaving.difference_update(settled)
            if live is self.live and self.is_ready:
                self._unanswered -= 1
                self._flush()

        if entries:
            self._unanswered += 1
            self.journal.append(0, 0, entries, done)

    def seal(self) -> None:
        """Close a segment of the spool and keep its state instead. The owner stores the state for all, and purges the log."""
        journal, disk = self.journal, self.node.disks[self.shard]
        if journal.is_closed or not journal.is_settled:
            return

        def rotated(name: str | None, end: LogEnd) -> None:
            newest = segment_name(end.offset)
            # After a restart, what it has read again may be less than what its spool has.
            if journal is not self.journal or not end.offset or named(disk, LOG_PREFIX)[-1:] != [newest]:
                return
            try:
                write_live(disk, Header(JOURNAL, 0, 0, end.offset, KIND_LIVE), self._state_rows(end.offset, None), 0)
                for old in [*named(disk, LOG_PREFIX), *named(disk, LIVE_PREFIX)]:
                    if old not in (newest, live_name(end.offset)):
                        disk.remove(old)
                disk.sync_names()
            except OSError:
                return  # a full disk; the next seal tries again
            if self.is_ready:
                object_name = f"{self.shard}-{end.offset}-{self.node.dice.getrandbits(64):x}"
                self._files.offer(object_name, end, disk.read(live_name(end.offset)))

        journal.rotate(rotated)

    def _state_rows(self, offset: int, rows: list[tuple[bool, Row]] | None) -> Iterator[Row]:
        """What a sealer derives from the rows before an offset, of the spool if none are given."""
        for name in sorted(self.model.state_at(offset)):
            yield Row(offset=offset - 1, event="enqueue", channel="q", id=name, body=b"")
