"""A world with a front and a cell for each shard, checked at every step.

Legs are direct calls, or messages with a delay, as between processes. A single cell can crash: its legs are lost, as with a process.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from penstock.core.cluster.status import OwnerMap
from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.placement import SHARDS
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.policy import Policy
from penstock.core.rows import Row
from penstock.core.scopes import ANONYMOUS, Principal
from penstock.core.steps import STEP_COST
from penstock.dialects.courier.sessions.front.legs import LEG_LOST, LegHello, LegOwner, LegPort
from penstock.dialects.courier.sessions.front.lines import shard_of_stream, shard_suffix
from penstock.dialects.courier.sessions.front.session import FrontSession
from penstock.journal.port import MemoryJournal
from penstock.server.cell import Cell
from penstock.server.cells.leg_host import HostedLeg
from penstock.server.courier.front import open_front
from penstock.server.engine.machines import Machines, make_machine
from penstock.testing.clients import Frame, LineClient
from penstock.testing.clock import Life
from penstock.testing.disk import Mood, SimJournal
from penstock.testing.network import SimConnection
from penstock.testing.world import World
from tests.simulation.queue import checks
from tests.simulation.queue.conversation import Conversation
from tests.simulation.queue.history import History
from tests.simulation.queue.witness import Witness
from tests.simulation.spaces.witness import SpaceWitness
from tests.simulation.world import DEEP_EVERY, CheckedWorld, Checker


class CellsWitness(Witness):
    """Sees deliveries when the front writes them, which may be after the cell has settled the record."""

    def _delivered(
        self, pipe: SimConnection, talk: Conversation, stream: str, env: Frame, seq: int, attempt: int, lease_id: str
    ) -> None:
        self._leased(pipe, talk, stream, env, seq, attempt, lease_id)


class Journals:
    """The journals of all cells as one."""

    def __init__(self, journals: list[SimJournal]) -> None:
        self.all = journals

    @property
    def rows(self) -> list[Row]:
        return [row for journal in self.all for row in journal.rows]

    @property
    def mood(self) -> Mood:
        return self.all[0].mood

    @mood.setter
    def mood(self, mood: Mood) -> None:
        for journal in self.all:
            journal.mood = mood

    def crash(self) -> None:
        for journal in self.all:
            journal.crash()


class DelayedLeg:
    """A leg whose messages are under way for a while, in their order."""

    def __init__(self, world: CellsWorld, shard: int, hello: LegHello, owner: LegOwner) -> None:
        self.world, self.shard, self._owner = world, shard, owner
        self._clock, self._dice, self._latency_us = world.clock, world.leg_dice, world.leg_latency_us
        self._down_us = self._up_us = 0
        self.is_over = False
        self._hosted: HostedLeg | None = None
        self._down(lambda: self._open(hello))

    def _open(self, hello: LegHello) -> None:
        self._hosted = HostedLeg(self.world.cells[self.shard].runtime, hello, self)

    def _down(self, call: Callable[[], None]) -> None:
        self._down_us = max(self._down_us, self._clock.us + self._dice.randint(0, self._latency_us))
        self._clock.at(self._down_us, lambda: None if self.is_over else call())

    def _up(self, call: Callable[[], None]) -> None:
        self._up_us = max(self._up_us, self._clock.us + self._dice.randint(0, self._latency_us))
        self._clock.at(self._up_us, lambda: None if self.is_over else call())

    @property
    def hosted(self) -> HostedLeg:
        assert self._hosted is not None
        return self._hosted

    def send(self, lines: bytes) -> None:
        self._down(lambda: self.hosted.send(lines))

    def read(self, size: int) -> None:
        self._down(lambda: self.hosted.read(size))

    def identify(self, principal: Principal, agent: str | None) -> None:
        self._down(lambda: self.hosted.identify(principal, agent))

    def close(self) -> None:
        def close() -> None:
            self.is_over = True
            self.hosted.close()

        self._down(close)
        self._owner = _Gone()

    def arrived(self, messages: list[bytes]) -> None:
        self._up(lambda: self._owner.arrived(messages))

    def held(self, on: bool) -> None:
        self._up(lambda: self._owner.held(on))

    def ended(self, code: int, reason: str, refusal: Refusal | None = None) -> None:
        self._up(lambda: self._owner.ended(code, reason, refusal))

    def lose(self) -> None:
        """The process of the cell is gone."""
        self.is_over = True
        owner = self._owner
        self._clock.after(self._latency_us, lambda: owner.ended(*LEG_LOST))


class _Gone:
    """The owner of a leg whose client has left."""

    def arrived(self, messages: list[bytes]) -> None: ...

    def held(self, on: bool) -> None: ...

    def ended(self, code: int, reason: str, refusal: Refusal | None = None) -> None: ...


class CellsWorld(CheckedWorld):
    """A front and sixteen cells."""

    owners: OwnerMap | None = None

    def __init__(
        self,
        seed: int = 0,
        *,
        limits: Limits | None = None,
        policy_for: Callable[[str], Policy] | None = None,
        latency_us: int = 2_000,
        leg_latency_us: int = 0,
        step_cost: int = STEP_COST,
    ) -> None:
        self._step_cost = step_cost
        self.slices = 0
        self.copies = []
        self.chunk_requests_max = 250
        self.in_flight_max = 0
        self.is_calm = False
        self.history = History()
        self.witness = CellsWitness(self.history, policy_for or (lambda name: Policy()))
        self.witness.probe = self._probe
        self.space_witness = SpaceWitness([])
        self.leg_latency_us = leg_latency_us
        """How long a message between front and cell is under way; 0 makes it a call."""
        self.leg_dice = Random(f"{seed}/legs")
        self.legs: list[DelayedLeg] = []
        self.cells: list[Cell] = []
        self._cell_lives: list[Life] = []
        World.__init__(
            self,
            seed,
            limits=limits,
            policy_for=policy_for,
            latency_us=latency_us,
            observers=[CellsChecker(self, has_triggers=False, has_spaces=False)],
        )

    # The cells

    def restart(self) -> None:
        if not self.cells:
            disks = [
                SimJournal(self.clock, self.dice(f"disk {shard}"), self._committed, self._refused)
                for shard in range(SHARDS)
            ]
            self.journals = Journals(disks)
            self.journal = self.journals  # type: ignore[assignment]
        self.lives += 1
        self._life = Life(self.clock)
        self.cells = []
        self._cell_lives = []
        for shard in range(SHARDS):
            self._cell_lives.append(Life(self.clock))
            self.cells.append(self._start_cell(shard))
        self.machine = make_machine(self.limits, self._policy_for, self._entropy.randbytes)
        front = Cell(
            self.machine,
            lambda machines: MemoryJournal(self._life.soon),
            self._life,
            authenticate=lambda token: ANONYMOUS,
            version="simulated",
            log=self._log,
        )
        self.runtime = front.runtime
        self.up = True
        self.note("start", self.lives, len(self.journals.rows))
        for observer in self._observers:
            observer.started()

    def _start_cell(self, shard: int) -> Cell:
        machine = make_machine(self.limits, self._policy_for, self._entropy.randbytes)
        machine.boot += shard_suffix(shard)
        machine.is_here = lambda name: shard_of_stream(name) == shard
        machine.step_cost = self._step_cost
        now = self.clock.now()

        def open_journal(machines: Machines) -> SimJournal:
            for row in self.journals.all[shard].rows:
                machines.restore(now, row)
            machines.recovered(now)
            return self.journals.all[shard]

        life = self._cell_lives[shard]
        cell = Cell(machine, open_journal, life, authenticate=lambda token: None, version="simulated", log=self._log)
        cell.runtime.apply(now)
        return cell

    def crash(self, *, restart: bool = True) -> None:
        for life in self._cell_lives:
            life.over = True
        for leg in self.legs:
            leg.is_over = True
        self.legs.clear()
        super().crash(restart=restart)

    def crash_cell(self, shard: int) -> None:
        """Kill the process of one cell and start it again."""
        self.note("crash cell", shard)
        self._cell_lives[shard].over = True
        self.witness.ended_runs.add(self.cells[shard].machine.boot)
        self.journals.all[shard].crash()
        for leg in [leg for leg in self.legs if leg.shard == shard]:
            self.legs.remove(leg)
            leg.lose()
        self._cell_lives[shard] = Life(self.clock)
        self.cells[shard] = self._start_cell(shard)
        self._check_recovery(shard)

    def _check_recovery(self, shard: int) -> None:
        """A cell that started alone has what its journal says, and nothing that was promised is lost."""
        durable = History(self.journals.all[shard].rows)
        for (name, id_), seq in self.witness.acknowledged.items():
            if shard_of_stream(name) == shard and (name, seq) not in durable.ids:
                raise checks.Broken(checks.DURABLE, f"`{id_}` in `{name}` was acknowledged and is lost")
        channels = self.cells[shard].machine.channels.values()
        there = {(channel.name, record.seq): record.id for channel in channels for record in channel.live.values()}
        if there != durable.live:
            raise checks.Broken(checks.DURABLE, f"shard {shard} has {there} instead of {durable.live}")

    def machines(self) -> list[QueueMachine]:
        return [cell.machine for cell in self.cells]

    def machine_of(self, stream: str) -> QueueMachine:
        return self.cells[shard_of_stream(stream)].machine

    # Clients

    def open(self, shard: int, hello: LegHello, owner: LegOwner) -> LegPort:
        if not self.leg_latency_us:
            return HostedLeg(self.cells[shard].runtime, hello, owner)
        leg = DelayedLeg(self, shard, hello, owner)
        self.legs = [one for one in self.legs if not one.is_over]
        self.legs.append(leg)
        return leg

    def connect(self, name: str = "client", *, principal: Principal = ANONYMOUS) -> LineClient:
        pipe = self._new_pipe(framed=False)
        for observer in self._observers:
            observer.connected(pipe, principal, None)
        client = LineClient(pipe, name)
        if self.up:
            session = FrontSession(self.runtime, self, token_needed=False)
            self._attach(pipe, open_front(self.runtime, session, pipe, principal, name))
        else:
            pipe.cut()
        return client

    def _probe(self, pipe: SimConnection) -> tuple[object, int | None]:
        return [checks.digest(machine) for machine in self.machines()], None


class CellsChecker(Checker):
    """Runs the checks on every cell."""

    _world: CellsWorld

    def committed(self, rows: list[Row]) -> None:
        self._world.witness.committed(rows)

    def refused(self, rows: list[Row]) -> None:
        self._world.witness.refused(rows)

    def stepped(self) -> None:
        world = self._world
        self._steps += 1
        if not world.up:
            return
        world.slices += any(cell.runtime.is_behind for cell in world.cells)
        checks.bounds_hold(world)
        # One cell a step: a state that breaks an invariant stays.
        self._check(world.cells[self._steps % SHARDS].machine, is_deep=self._steps // SHARDS % DEEP_EVERY == 0)

    def _check(self, machine: QueueMachine, *, is_deep: bool) -> None:
        history = self._world.history
        checks.credit_is_never_overdrawn(machine)
        checks.channels_balance(machine)
        checks.leases_have_one_holder(machine)
        checks.keys_are_out_once(machine)
        checks.nothing_is_counted_early(machine, history)
        if is_deep:
            checks.counts_agree(machine)
            checks.keyed_lines_agree(machine)
            checks.failures_are_counted(machine, history, self._world.witness.brought_back)
            checks.nothing_is_there_early(machine, history)

    def crashed(self) -> None: ...

    def started(self) -> None:
        world = self._world
        world.witness.restarted()
        checks.promises_survived(world, world.machines())
        for machine in world.machines():
            self._check(machine, is_deep=True)
