"""A world that checks every step: it owns the witnesses and runs the checks of queue and spaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.core.limits import Limits
from penstock.core.links import Session
from penstock.core.queue.policy import Policy
from penstock.core.rows import Row
from penstock.core.scopes import Principal
from penstock.core.steps import STEP_COST
from penstock.dialects.courier.sessions.subscribe import SubscribeQuery
from penstock.dialects.courier.triggers.config import Trigger
from penstock.dialects.mew.settings import SpaceSettings
from penstock.dialects.mew.state import DOOR
from penstock.testing.network import SimConnection
from penstock.testing.world import LATENCY_US, Observer, World
from tests.simulation.queue import checks
from tests.simulation.queue.checks import Broken
from tests.simulation.queue.conversation import Conversation
from tests.simulation.queue.history import History
from tests.simulation.queue.trigger_checks import TriggerChecks
from tests.simulation.queue.witness import Witness
from tests.simulation.spaces import checks as space_checks
from tests.simulation.spaces.witness import SpaceWitness

if TYPE_CHECKING:
    from tests.simulation.queue.view_copy import ViewCopy

DEEP_EVERY = 16
"""Steps between two checks of every record."""


class CheckedWorld(World):
    """A world that raises `Broken` at the step that breaks an invariant."""

    def __init__(
        self,
        seed: int = 0,
        *,
        limits: Limits | None = None,
        policy_for: Callable[[str], Policy] | None = None,
        latency_us: int = LATENCY_US,
        triggers: Sequence[Trigger] = (),
        spaces: Sequence[SpaceSettings] = (),
        step_cost: int = STEP_COST,
    ) -> None:
        self._step_cost = step_cost
        self.slices = 0
        """Steps at which a backlog was being worked off."""
        self.copies: list[ViewCopy] = []
        """The followers' copies of `latestPerAgent`."""
        self.chunk_requests_max = 250
        """Requests that may be in the very chunk with which a connection passes `answers_max`."""
        self.in_flight_max = 0
        """The most facts that were with the journal at once."""
        self.is_calm = False
        """No actor acts any more: what is under way comes to its end."""
        self.history = History()
        self.witness = Witness(self.history, policy_for or (lambda name: Policy()))
        self.witness.probe = self._probe
        self.trigger_checks = TriggerChecks(self.history, limits or Limits())
        self.space_witness = SpaceWitness(spaces)
        super().__init__(
            seed,
            limits=limits,
            policy_for=policy_for,
            latency_us=latency_us,
            triggers=triggers,
            spaces=spaces,
            observers=[Checker(self, has_triggers=bool(triggers), has_spaces=bool(spaces))],
        )

    def restart(self) -> None:
        super().restart()
        self.machine.step_cost = self._step_cost

    def _probe(self, pipe: SimConnection) -> tuple[object, int | None]:
        state = checks.digest(self.machine)
        session: Session | None = getattr(pipe.endpoint, "session", None)
        if session is None or session.closing is not None:
            return state, None
        return state, len(session.out) + len(session.answers)


class Checker(Observer):
    """Passes on what it sees to the witnesses of a world, and runs the checks."""

    def __init__(self, world: CheckedWorld, *, has_triggers: bool, has_spaces: bool) -> None:
        self._world = world
        self._has_triggers = has_triggers
        self._has_spaces = has_spaces
        self._steps = 0

    def attached(self, world: World) -> None:
        self._world.space_witness.clock = world.clock

    def connected(self, pipe: SimConnection, principal: Principal, query: SubscribeQuery | None) -> None:
        self._world.witness.conversations[pipe.no] = Conversation(principal.name, query)

    def space_connected(self, pipe: SimConnection) -> None:
        self._world.space_witness.connected(pipe)

    def arriving(self, pipe: SimConnection, data: bytes) -> Callable[[], None] | None:
        if pipe.no in self._world.space_witness.talks:
            self._world.space_witness.arriving(pipe, data)
            return None
        return self._world.witness.arriving(pipe, data)

    def sent(self, pipe: SimConnection, messages: list[bytes]) -> None:
        if pipe.no in self._world.space_witness.talks:
            self._world.space_witness.sent(pipe, messages)
        else:
            self._world.witness.sent(pipe, messages)

    def committed(self, rows: list[Row]) -> None:
        world = self._world
        if self._has_triggers:
            world.trigger_checks.committed(rows, world.machine)
        world.witness.committed([row for row in rows if row.door != DOOR])
        world.space_witness.committed([row for row in rows if row.door == DOOR])

    def refused(self, rows: list[Row]) -> None:
        self._world.witness.refused([row for row in rows if row.door != DOOR])
        self._world.space_witness.refused([row for row in rows if row.door == DOOR])

    def logged(self, event: str, fields: dict[str, Any]) -> None:
        if event in {"session.failed", "backlog.failed"}:
            raise Broken(checks.BAD_INPUT, f"{event}: {fields['error']}")

    def stepped(self) -> None:
        world = self._world
        self._steps += 1
        if not world.up:
            return
        world.slices += world.runtime.is_behind
        checks.every_step(world)
        if self._has_spaces:
            space_checks.every_step(world)
        if self._steps % DEEP_EVERY == 0:
            checks.now_and_then(world)

    def crashed(self) -> None:
        self._world.trigger_checks.crashed(self._world.machine)
        self._world.space_witness.crashed()

    def started(self) -> None:
        world = self._world
        world.witness.restarted()
        checks.promises_survived(world)
        checks.every_step(world)
        checks.now_and_then(world)
        space_checks.after_restart(world)
