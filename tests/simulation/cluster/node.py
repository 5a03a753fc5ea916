"""A node of the simulated cluster: a process with the shipped journal of each shard, on a machine with a clock and disks of its own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, TypeVar

from penstock.core.clock import Now
from penstock.core.cluster.assignment import LiveNodes, shard_to_release
from penstock.journal.replicated.cluster_keys import Decisions
from penstock.testing.disk import LyingDisk, PowerLossError
from tests.simulation.cluster.buckets import Change, Watch
from tests.simulation.cluster.cell import SimCell
from tests.simulation.cluster.servers import SERVERS

if TYPE_CHECKING:
    from tests.simulation.cluster.storm import Cluster

T = TypeVar("T")
BEAT_US = 1_000_000
NODE = "node."
ALL = frozenset(range(SERVERS))


class Call:
    """A call that is to come, unless it is cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self._call = None

    def __call__(self) -> None:
        if self._call is not None:
            self._call()


class SimNode:
    """One process of the cluster, and its machine."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.dice = Random(f"{cluster.seed}/{name}")
        self.home = self.dice.randrange(SERVERS)
        """The server it is connected to."""
        self.rate = 1 + self.dice.uniform(-0.02, 0.02)
        """How fast its clock runs."""
        self.disks = [LyingDisk(self.dice.getrandbits(32)) for _ in range(cluster.shards)]
        self.full_disks: set[int] = set()
        self.life = 0
        self.is_up = False
        self.is_paused = False
        self._held: list[Callable[[], None]] = []
        self.deaf: frozenset[int] = frozenset()
        """Servers whose answers do not arrive."""
        self.mute: frozenset[int] = frozenset()
        """Servers that its requests do not reach."""
        self.stops_at_write = False
        """Whether it is to be paused when it has checked its lease and is about to write."""
        self.dies_at_beginning = False
        """Whether it is to crash within a take-over."""
        self._watch_lag_us = 0
        self._watch = Watch(cluster.buckets)
        self.live = LiveNodes()
        self.decisions = Decisions()
        self.cells: list[SimCell] = []

    # Its machine

    def now(self) -> Now:
        us = int(self.cluster.clock.us * self.rate)
        return Now(us, us + self.cluster.clock.wall_offset_us)

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

    def write(self, send: Callable[[], None]) -> None:
        """Send what was just found to be allowed, unless the process is stopped between the two."""
        if self.stops_at_write:
            self.stops_at_write = False
            self.pause()
            self.deliver(send)
        else:
            send()

    def begins(self) -> None:
        """It is about to own a shard."""
        if self.dies_at_beginning and self.dice.random() < 0.5:
            self.dies_at_beginning = False
            raise PowerLossError

    def delay(self) -> int:
        if self.dice.random() < self.cluster.lateness:
            return self.dice.randint(500_000, 8_000_000)
        return self.dice.randint(200, 20_000)

    def speaks(self, server: int) -> bool:
        return self.is_up and server not in self.mute

    def hears(self, server: int) -> bool:
        return self.is_up and server not in self.deaf

    # Its life

    def start(self) -> None:
        if self.is_up:
            return
        self.is_up = True
        self.live = LiveNodes()
        self.decisions = Decisions()
        self._watch = Watch(self.cluster.buckets)
        self.cells = []
        self.deliver(self._open)

    def _open(self) -> None:
        for shard in range(self.cluster.shards):
            self.cells.append(SimCell(self, shard))
        self.soon(self._beat)

    def crash(self) -> None:
        """The process is killed: what its disks had not synced is arbitrary."""
        if not self.is_up:
            return
        self.cluster.note("crash", self.name)
        self.life += 1
        self.is_up = self.is_paused = False
        self._held.clear()
        for shard, cell in enumerate(self.cells):
            self.cluster.serving[shard].discard(cell)
        self.cells = []
        self.disks = [disk.crash() for disk in self.disks]
        self.cluster.restart_later(self)

    def pause(self) -> None:
        """SIGSTOP: clocks go on, the process does not."""
        self.is_paused = self.is_up

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for call in held:
            call()

    def fill_disk(self, shard: int, room: int) -> None:
        """The disk of a shard has room for some bytes more."""
        disk = self.disks[shard]
        disk.space = disk.space - disk.free() + room
        self.full_disks.add(shard)

    def free_disks(self) -> None:
        for shard in self.full_disks:
            self.disks[shard].space = 1 << 60
        self.full_disks.clear()

    def lag(self, us: int) -> None:
        """What it sees of the buckets is older than usual from now on."""
        self._watch_lag_us = us

    # Membership

    def _beat(self) -> None:
        """Once a second: refresh its key, see what changed, and hand over a shard that belongs elsewhere."""
        now_us = self.now().us
        servers = self.cluster.servers
        if not servers.is_up[self.home] or self.dice.random() < (0.3 if self.home in self.deaf | self.mute else 0.02):
            self.home = self.dice.randrange(SERVERS)
        if self.dice.random() < self.cluster.loss:
            self._watch.end()
        self._refresh(self.home)
        if servers.is_up[self.home] and self.speaks(self.home) and self.hears(self.home):
            for change in self._watch.read(self.home, self.cluster.clock.us - self._watch_lag_us):
                self._see(now_us, change)
        if self.live.is_settled(now_us):
            self._hand_over()
        self.at(now_us + BEAT_US, self._beat)

    def _refresh(self, home: int) -> None:
        def arrive() -> None:
            if self.cluster.servers.is_up[home]:
                self.cluster.buckets.put(home, NODE + self.name, b"{}")

        if self.speaks(home) and self.dice.random() >= self.cluster.loss:
            self.cluster.clock.after(self.delay(), arrive)

    def _see(self, now_us: int, change: Change) -> None:
        if not change.key.startswith(NODE):
            self.decisions.note(change.key, change.value)
        elif change.value is not None:
            self.live.refreshed(now_us, change.key.removeprefix(NODE))
        else:
            self.live.left(now_us, change.key.removeprefix(NODE))

    def _hand_over(self) -> None:
        owners = {cell.shard: self._owner(cell) for cell in self.cells}
        shard = shard_to_release(self.name, self.live.nodes, owners, self.cluster.shards)
        if shard is not None and self.cells[shard].ownership.state == "owning":
            self.cluster.note("release", self.name, shard)
            self.cells[shard].journal.release()

    @staticmethod
    def _owner(cell: SimCell) -> str | None:
        end = cell.ownership.reader.end
        return None if end.is_released or not end.epoch else end.owner
