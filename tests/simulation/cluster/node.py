"""A node of the simulated cluster: the shipped journal of each shard on a faulty disk, over a faulty network, with pauses and crashes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, TypeVar

from penstock.core.clock import Now
from penstock.core.cluster.assignment import LiveNodes, may_take, shard_to_release
from penstock.core.cluster.ownership import ShardOwnership
from penstock.core.cluster.reader import LogEnd, ShardReader
from penstock.core.cluster.stream_space import StreamSpace
from penstock.core.cluster.writer import Found, Publish, Published, Seek, Unknown
from penstock.core.records import Entry
from penstock.core.rows import Row
from penstock.journal.open_and_repair import live_name
from penstock.journal.port import Committed, Outcome, Refused
from penstock.journal.replicated.live_files import LiveFiles
from penstock.journal.replicated.replicated_journal import ReplicatedJournal
from penstock.journal.replicated.shard_log import LiveStore, StoredLive
from penstock.journal.replicated.spool import Spool, begin_again
from penstock.journal.seal import write_live
from penstock.journal.segments import KIND_LIVE, Header
from penstock.testing.disk import LyingDisk, PowerLossError
from tests.simulation.cluster.checks import HALT, SPOOL, Key
from tests.simulation.queue.checks import Broken

if TYPE_CHECKING:
    from tests.simulation.cluster.storm import Cluster

T = TypeVar("T")
TIMEOUT_US = 1_000_000
REOPEN_US = 1_000_000
JOURNAL = "00" * 16
PUT_CHANCE = 0.8
"""How often the store of live files accepts one."""


class Call:
    """A call that is to come, unless it is cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self._call = None

    def __call__(self) -> None:
        if self._call is not None:
            self._call()


class SimLog:
    """A node's way to a stream: slow, and now and then without an answer. `penstock.journal.replicated.shard_log.ShardLog`."""

    def __init__(self, node: SimNode, shard: int) -> None:
        self._node = node
        self._stream = node.cluster.streams[shard]
        self.stream = self._stream.name

    def _ask(
        self, ask: Callable[[int, Callable[[T], None]], None], done: Callable[[T], None], unknown: Callable[[], None]
    ) -> None:
        """One answer comes, or none in time; the request may arrive all the same."""
        node, dice, clock = self._node, self._node.dice, self._node.cluster.clock
        ends: list[Callable[[], None]] = []

        def end() -> None:
            ends[0]()

        guarded = node.guard(end)

        def finish(call: Callable[[], None]) -> None:
            if not ends:
                ends.append(call)
                guarded()

        def answered(result: T) -> None:
            if node.can_hear() and dice.random() >= node.cluster.loss:
                clock.after(node.delay(), lambda: finish(lambda: done(result)))

        def arrive() -> None:
            if node.cluster.servers.is_up[node.home]:
                ask(node.home, answered)

        if node.can_speak() and dice.random() >= node.cluster.loss:
            clock.after(node.delay(), arrive)
        clock.after(TIMEOUT_US, lambda: finish(unknown))

    def publish(self, step: Publish, done: Callable[[Published], None]) -> None:
        self._ask(lambda home, answer: self._stream.publish(home, step, answer), done, lambda: done(Unknown()))

    def tail(self, step: Seek, done: Callable[[Found | Unknown], None]) -> None:
        self._ask(lambda home, answer: self._stream.read(home, step, answer), done, lambda: done(Unknown()))

    def forget(self, through: int, done: Callable[[bool], None]) -> None:
        self._ask(lambda home, answer: self._stream.forget(home, through, answer), done, lambda: done(False))

    def measure(self, done: Callable[[int | None], None]) -> None:
        self._ask(lambda home, answer: answer(self._stream.used), done, lambda: done(None))


class SimStore:
    """Live files of one shard: stored, or not, or stored without an answer. `LiveStore`."""

    def __init__(self, node: SimNode, files: dict[str, tuple[StoredLive, bytes]]) -> None:
        self._node = node
        self._files = files

    def put(self, file: StoredLive, data: bytes | memoryview, done: Callable[[bool], None]) -> None:
        is_stored = self._node.can_speak() and self._node.dice.random() < PUT_CHANCE

        answer = self._node.guard(lambda: done(is_stored and self._node.can_hear()))

        def store() -> None:
            if is_stored:
                assert file.name not in self._files, "a name is never used twice"
                self._files[file.name] = (file, bytes(data))
            answer()

        self._node.cluster.clock.after(self._node.delay() * 10, store)

    def newest(self, done: Callable[[StoredLive | Unknown | None], None]) -> None:
        files = [file for file, _ in self._files.values()]
        found = max(files, key=lambda file: (file.end.offset, file.end.seq), default=None)
        self._later(lambda: done(found if self._node.can_hear() else Unknown()))

    def get(self, file: StoredLive, done: Callable[[bytes | Unknown], None]) -> None:
        found = self._files.get(file.name)
        self._later(lambda: done(Unknown() if found is None or not self._node.can_hear() else found[1]))

    def remove_before(self, offset: int) -> None:
        for name in [name for name, (file, _) in self._files.items() if file.end.offset < offset]:
            del self._files[name]

    def _later(self, call: Callable[[], None]) -> None:
        self._node.cluster.clock.after(self._node.delay(), self._node.guard(call))


class SimCell:
    """A shard at a node: its journal, and what the node knows of its records while it owns it."""

    def __init__(self, node: SimNode, shard: int) -> None:
        self.node = node
        self.shard = shard
        self.model = node.cluster.models[shard]
        self.live: set[str] | None = None
        """Records that are not settled; None while the node does not serve the shard."""
        self._log = SimLog(node, shard)
        self._store: LiveStore = SimStore(node, node.cluster.files[shard])
        self._files = LiveFiles(self._log, self._store)
        self._open()

    def _open(self) -> None:
        spool = Spool(self.node.disks[self.shard], JOURNAL)
        self._check(list(spool.rows()))
        reader = ShardReader(self._log.stream, spool.log_end())
        node = self.node
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
        node.soon(self.journal.pump)

    def _may_take(self, ownership: ShardOwnership) -> bool:
        live, shards = self.node.live.nodes, self.node.cluster.shards
        return may_take(self.node.name, self.shard, live, shards, silent=ownership.silent_owner)

    def _check(self, rows: list[tuple[bool, Row]]) -> set[str]:
        """The records of the spool, which must be those of the log."""
        live: set[str] = set()
        tail: list[Row] = []
        for is_state, row in rows:
            if row.door == "server":
                continue
            assert row.id is not None
            if row.event == "enqueue":
                live.add(row.id)
            else:
                live.discard(row.id)
            if not is_state:
                tail.append(row)
        if tail:
            self.model.check_spool(
                self.node.name, tail[0].offset, [(row.event, row.id or "", row.corr or "") for row in tail]
            )
        return live

    def _owned(self) -> None:
        self.live = self._check(list(self.journal.rows()))
        self.journal.pump()

    def _ended(self, reason: str) -> None:
        self.live = None
        self.node.cluster.note("ended", self.node.name, self.shard, reason)
        if self.ownership.state == "behind":
            self._store.newest(self._found_live)
        elif self.ownership.state == "halted":
            if not self.node.cluster.has_lost:
                raise Broken(HALT, f"{self.node.name}: {reason}")
            self.node.cluster.halted.add(self.shard)
        elif reason.startswith("the spool"):
            raise Broken(SPOOL, f"{self.node.name}: {reason}")

    def _found_live(self, file: StoredLive | Unknown | None) -> None:
        if isinstance(file, StoredLive):
            self._store.get(file, lambda data: self._got_live(file.end, data))
        else:
            self.node.at(self.node.now().us + REOPEN_US, lambda: self._store.newest(self._found_live))

    def _got_live(self, end: LogEnd, data: bytes | Unknown) -> None:
        if isinstance(data, Unknown):
            self._found_live(None)
        else:
            begin_again(self.node.disks[self.shard], self.journal.offset, data, end)
            self._open()

    # What the owner does

    @property
    def serves(self) -> bool:
        return self.live is not None and self.ownership.may_serve(self.node.now().us)

    def send(self, entries: list[Entry]) -> None:
        """A client's request, all or nothing."""
        assert self.live is not None
        live = self.live
        self.model.check_served(self.node.name, live)
        keys: list[Key] = [(entry.event, entry.id or "", entry.corr or "") for entry in entries]

        def done(outcome: Outcome) -> None:
            match outcome:
                case Committed(refused=refused):
                    kept = [key for key in keys if refused is None or key[0] != "enqueue"]
                    self.model.answered(kept, is_kept=True)
                    self.model.answered([key for key in keys if key not in kept], is_kept=False)
                    live.update(name for event, name, _ in kept if event == "enqueue")
                    live.difference_update(name for event, name, _ in kept if event != "enqueue")
                case Refused():
                    self.model.answered(keys, is_kept=False)

        self.journal.append(0, 0, entries, done)

    def seal(self) -> None:
        """Close a segment, derive the state, store it, purge the log."""

        def rotated(name: str | None, end: LogEnd) -> None:
            if self.live is None or end.offset == 0:
                return
            state = sorted(self._state_at(end.offset))
            rows = [Row(offset=end.offset - 1, event="enqueue", channel="q", id=name, body=b"") for name in state]
            header = Header(JOURNAL, 0, 0, end.offset, KIND_LIVE)
            disk = self.node.disks[self.shard]
            write_live(disk, header, iter(rows), 0)
            object_name = f"{self.shard}-{end.offset}-{self.node.dice.getrandbits(64):x}"
            self._files.offer(object_name, end, disk.read(live_name(end.offset)))

        self.journal.rotate(rotated)

    def _state_at(self, offset: int) -> set[str]:
        """What a sealer derives from the rows before an offset."""
        live: set[str] = set()
        for event, name, _ in self.model.rows[:offset]:
            if event == "enqueue":
                live.add(name)
            else:
                live.discard(name)
        return live


class SimNode:
    """One process of the cluster, and its machine."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.dice = Random(f"{cluster.seed}/{name}")
        self.home = self.dice.randrange(3)
        """The server it is connected to."""
        self.rate = 1 + self.dice.uniform(-0.02, 0.02)
        """How fast its clock runs."""
        self.disks = [LyingDisk(self.dice.getrandbits(32)) for _ in range(cluster.shards)]
        self.life = 0
        self.is_up = False
        self.is_paused = False
        self._held: list[Callable[[], None]] = []
        self.is_deaf = False
        self.is_mute = False
        self.live = LiveNodes()
        self.cells: list[SimCell] = []

    # Its machine

    def now(self) -> Now:
        us = int(self.cluster.clock.us * self.rate)
        return Now(us, self.cluster.clock.now().wall_us)

    def at(self, us: int, call: Callable[[], None]) -> Call:
        timer = Call(call)
        self.cluster.clock.at(int(us / self.rate) + 1, self.guard(timer))
        return timer

    def soon(self, call: Callable[[], None]) -> None:
        self.cluster.clock.after(0, self.guard(call))

    def guard(self, call: Callable[[], None]) -> Callable[[], None]:
        """The call, for this life of the process only."""
        life = self.life

        def guarded() -> None:
            if self.life == life:
                self.deliver(call)

        return guarded

    def deliver(self, call: Callable[[], None]) -> None:
        """Let the process run a call, now or when it is resumed."""
        if self.is_paused:
            self._held.append(self.guard(call))
        elif self.is_up:
            try:
                call()
            except PowerLossError:
                self.crash()

    def work(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        """A thread does it at once, and reports a little later."""
        result = call()
        self.cluster.clock.after(self.dice.randint(50, 3_000), self.guard(lambda: done(result)))

    def delay(self) -> int:
        if self.dice.random() < self.cluster.lateness:
            return self.dice.randint(500_000, 8_000_000)
        return self.dice.randint(200, 20_000)

    def can_speak(self) -> bool:
        return self.is_up and not self.is_mute

    def can_hear(self) -> bool:
        return self.is_up and not self.is_deaf

    # Its life

    def start(self) -> None:
        if self.is_up:
            return
        self.is_up = True
        self.live = LiveNodes()
        self.cells = [SimCell(self, shard) for shard in range(self.cluster.shards)]
        self.soon(self._beat)

    def crash(self) -> None:
        """The process is killed: what its disks had not synced is arbitrary."""
        if not self.is_up:
            return
        self.cluster.note("crash", self.name)
        self.life += 1
        self.is_up = self.is_paused = False
        self._held.clear()
        self.cells = []
        self.disks = [disk.crash() for disk in self.disks]

    def pause(self) -> None:
        self.is_paused = self.is_up

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for call in held:
            call()

    def _beat(self) -> None:
        """Once a second: refresh its key, reconnect, and hand over a shard that belongs elsewhere."""
        us = self.now().us
        if not self.cluster.servers.is_up[self.home] or self.dice.random() < 0.02:
            self.home = self.dice.randrange(3)
        if self.can_speak() and self.cluster.servers.is_up[self.home]:
            self.cluster.refresh(self)
        if self.live.is_settled(us):
            self._hand_over()
        self.at(us + 1_000_000, self._beat)

    def _hand_over(self) -> None:
        owners = {cell.shard: self._owner(cell) for cell in self.cells}
        shard = shard_to_release(self.name, self.live.nodes, owners, self.cluster.shards)
        if shard is not None and self.cells[shard].ownership.state == "owning":
            self.cells[shard].journal.release()

    @staticmethod
    def _owner(cell: SimCell) -> str | None:
        end = cell.ownership.reader.end
        return None if end.is_released or not end.epoch else end.owner
