"""A node of the simulated cluster: a process with the shipped journal of each shard, on a machine with a clock and disks of its own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from penstock.core.clock import Now
from penstock.core.cluster.assignment import LiveNodes, may_take, shard_to_release
from penstock.core.cluster.status import NodeReport, OwnerMap, owner_map, owner_of
from penstock.journal.replicated.cluster_keys import Decisions, decode_report
from penstock.journal.replicated.membership import ShardSettings
from penstock.testing.disk import LyingDisk, PowerLossError
from tests.simulation.cluster.buckets import Change, Watch
from tests.simulation.cluster.cell import JOURNAL, SimCell
from tests.simulation.cluster.checks import MOVES
from tests.simulation.cluster.servers import SERVERS
from tests.simulation.queue.checks import Broken

if TYPE_CHECKING:
    from tests.simulation.cluster.storm import Cluster

T = TypeVar("T")
BEAT_US = 1_000_000
LOOK_US = 250_000
EVENT_US = 50
"""The time for an event that has waited."""
GATHER_US = 2_000_000
"""A node that starts takes no shard for this long."""
STEADY_US = 9_500_000
"""For how long the nodes must be the same before a shard moves, with room for the time between two looks."""
LEAVE_US = 10_000_000
"""How long a node that ends waits until others own its shards."""
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
        self.stops_at_write: Literal["before", "behind"] | None = None
        """Whether it is to be paused at its next write: when it has checked its lease, or when nothing but the answer is missing."""
        self.dies_at_beginning = False
        """Whether it is to crash within a take-over."""
        self._watch_lag_us = 0
        self._watch = Watch(cluster.buckets)
        self.live = LiveNodes()
        self.decisions = Decisions()
        self.reports: dict[str, NodeReport] = {}
        self.settings: list[ShardSettings] = []
        self.revisions: list[int] = []
        """Those of the settings."""
        self.is_leaving = False
        self._started_us = 0
        self._nodes: tuple[str, ...] = ()
        self._nodes_us = 0
        """Since when it has seen the same nodes, for the check of its moves."""
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
        """On the next turn of its loop, also while older events wait to be read."""
        life = self.life

        def run() -> None:
            if self.life == life:
                self.deliver(call, is_turn=True)

        self.cluster.clock.after(0, run)

    def guard(self, call: Callable[[], None]) -> Callable[[], None]:
        """The call, for this life of the process only."""
        life = self.life

        def guarded() -> None:
            if self.life == life:
                self.deliver(call)

        return guarded

    def deliver(self, call: Callable[[], None], *, is_turn: bool = False) -> None:
        """Let the process run a call, now or when it is resumed."""
        if self.is_paused or (self._held and not is_turn):
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
        """Send what was just found to be allowed, unless the process is stopped between the two, or just behind them."""
        stops, self.stops_at_write = self.stops_at_write, None
        if stops == "before":
            self.pause()
            self.deliver(send)
            return
        send()
        if stops == "behind":
            self.pause()

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
        self.is_leaving = False
        self.live = LiveNodes()
        self.decisions = Decisions()
        self.reports = {}
        self._watch = Watch(self.cluster.buckets)
        self._started_us = self.now().us
        self.cells = []
        self.deliver(self._open)

    def _open(self) -> None:
        buckets, shards = self.cluster.buckets, range(self.cluster.shards)
        self.settings = [ShardSettings(JOURNAL) for _ in shards]
        self.revisions = [buckets.revisions.get(f"shard.{shard}", 0) for shard in shards]
        for shard in shards:
            if (value := buckets.value(f"shard.{shard}")) is not None:
                self.settings[shard] = msgspec.json.decode(value, type=ShardSettings)
        for shard in range(self.cluster.shards):
            self.cells.append(self.cluster.make_cell(self, shard))
        self.soon(self._beat)
        self.soon(self._look)

    def leave(self) -> None:
        """SIGTERM: hand over every shard, then end."""
        if self.is_leaving or not self.is_up:
            return
        self.is_leaving = True
        self.cluster.note("leave", self.name)
        self.changed()
        for cell in self.cells:
            cell.release()
        self.at(self.now().us + LEAVE_US, self._end)

    def _end(self) -> None:
        """The process ends in order: its disks have what it wrote."""
        for cell in self.cells:
            cell.journal.close()
        self._put(None)
        self._die()

    def _die(self) -> None:
        self.life += 1
        self.is_up = self.is_paused = False
        self._held.clear()
        for cell in self.cells:
            cell.close_cell()
        self.cells = []
        self.cluster.restart_later(self)

    def crash(self) -> None:
        """The process is killed: what its disks had not synced is arbitrary."""
        if not self.is_up:
            return
        self.cluster.note("crash", self.name)
        self._die()
        self.disks = [disk.crash() for disk in self.disks]

    def pause(self) -> None:
        """SIGSTOP: clocks go on, the process does not."""
        self.is_paused = self.is_up

    def resume(self) -> None:
        """It goes on with what has come meanwhile, one event after the other."""
        if self.is_paused:
            self.is_paused = False
            self._catch_up()

    def _catch_up(self) -> None:
        if self.is_paused or not self._held:
            return
        held, self._held = self._held, []
        held[0]()
        self._held = [*held[1:], *self._held]
        if self._held:
            self.cluster.clock.after(EVENT_US, self._catch_up)

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
        """Once a second: reconnect, and refresh its key."""
        if not self.cluster.servers.is_up[self.home] or self.dice.random() < (
            0.3 if self.home in self.deaf | self.mute else 0.02
        ):
            self.home = self.dice.randrange(SERVERS)
        if self.dice.random() < self.cluster.loss:
            self._watch.end()
        self._put(self._value())
        self.at(self.now().us + BEAT_US, self._beat)

    def _value(self) -> bytes:
        shards = {cell.shard: cell.report for cell in self.cells}
        report = NodeReport(f"{self.name}{self.life}", leaving=self.is_leaving, shards=shards)
        report.control = f"tcp://{self.name}"
        self.reports[self.name] = report
        return msgspec.json.encode(report)

    def _put(self, value: bytes | None) -> None:
        home = self.home

        def arrive() -> None:
            if self.cluster.servers.is_up[home]:
                self.cluster.buckets.put(home, NODE + self.name, value)

        if self.speaks(home) and self.dice.random() >= self.cluster.loss:
            self.cluster.clock.after(self.delay(), arrive)

    def changed(self) -> None:
        """A shard of this node has changed: this node knows at once, the others soon."""
        self._put(self._value())

    def _look(self) -> None:
        """Some times a second: see what changed, and hand over a shard that belongs elsewhere."""
        now_us = self.now().us
        if self.cluster.servers.is_up[self.home] and self.speaks(self.home) and self.hears(self.home):
            for change in self._watch.read(self.home, self.cluster.clock.us - self._watch_lag_us):
                self._see(now_us, change)
        for cell in self.cells:
            cell.look()
        if self.live.nodes != self._nodes:
            self._nodes, self._nodes_us = self.live.nodes, now_us
        if not self.is_leaving:
            self._release_one(now_us)
        self.at(now_us + LOOK_US, self._look)

    def _see(self, now_us: int, change: Change) -> None:
        if change.key.startswith("shard."):
            self._switch(int(change.key.removeprefix("shard.")), change)
            return
        if not change.key.startswith(NODE):
            self.decisions.note(change.key, change.value)
            return
        name = change.key.removeprefix(NODE)
        if change.value is None:
            self.live.left(now_us, name)
            if name != self.name:
                self.reports.pop(name, None)
            return
        self.live.refreshed(now_us, name)
        report = decode_report(change.value)
        if name != self.name and report is not None:
            before, self.reports[name] = self.reports.get(name), report
            for cell in self.cells:
                old = before and before.shards.get(cell.shard)
                new = report.shards.get(cell.shard)
                if (old and old.state) != (new and new.state):
                    cell.journal.look()

    def _switch(self, shard: int, change: Change) -> None:
        assert change.value is not None
        settings = msgspec.json.decode(change.value, type=ShardSettings)
        self.revisions[shard] = self.cluster.buckets.revisions[change.key]
        if settings.generation > self.settings[shard].generation:
            self.settings[shard] = settings
            self.cells[shard].switch()

    # Assignment, as `server/cluster/node.py` uses it

    @property
    def _alive(self) -> tuple[str, ...]:
        nodes = self.live.nodes
        return nodes if self.name in nodes else (*nodes, self.name)

    @property
    def _drained(self) -> set[str]:
        return self.decisions.drains | {name for name, report in self.reports.items() if report.leaving}

    @property
    def owners(self) -> OwnerMap:
        """What it says to its clients."""
        return owner_map(self.cluster.shards, self.reports, self._alive)

    def may_take(self, shard: int, silent: str | None) -> bool:
        if self.is_leaving or self.now().us - self._started_us < GATHER_US:
            return False
        moves, drains, shards = self.decisions.moves, self._drained, self.cluster.shards
        return may_take(self.name, shard, self.live.nodes, shards, silent=silent, moves=moves, drains=drains)

    def _release_one(self, now_us: int) -> None:
        found = {shard: owner_of(shard, self.reports, self._alive) for shard in range(self.cluster.shards)}
        owners = {shard: one[0] if one and one[1].state == "owning" else None for shard, one in found.items()}
        shard = shard_to_release(
            self.name,
            self.live.nodes,
            owners,
            self.cluster.shards,
            moves=self.decisions.moves,
            drains=self._drained,
            is_settled=self.live.is_settled(now_us),
        )
        if shard is not None:
            if self.cells[shard].is_ready:
                self._check_move(now_us, shard)
            self.cells[shard].release()

    def _check_move(self, now_us: int, shard: int) -> None:
        # One that it may have handed over already, without an answer, has another owner.
        shards, reports = range(self.cluster.shards), self.reports
        found = {number: owner_of(number, reports, self._alive) for number in shards if number != shard}
        moving = [number for number, one in found.items() if one and one[0] == self.name and one[1].state == "moving"]
        if moving:
            raise Broken(MOVES, f"{self.name} hands over shard {shard} while shard {moving[0]} is on its way")
        is_wanted = shard in self.decisions.moves or self.name in self._drained
        if not is_wanted and now_us - self._nodes_us < STEADY_US:
            raise Broken(
                MOVES, f"{self.name} hands over shard {shard}, {now_us - self._nodes_us} us after its nodes changed"
            )
