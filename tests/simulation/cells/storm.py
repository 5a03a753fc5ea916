"""A storm over several cells: the actors of the queue's storms behind a front."""

from __future__ import annotations

from random import Random

from penstock.core.queue.policy import Policy
from penstock.core.scopes import OPERATOR
from penstock.core.steps import STEP_COST, Steps
from penstock.dialects.courier.operations.redrive_and_purge import StreamRequest, purge_steps
from penstock.dialects.courier.sessions.front.lines import shard_of_stream
from penstock.testing.clients import Frame, LineClient
from penstock.testing.disk import Mood
from tests.simulation.cells.world import CellsWorld
from tests.simulation.queue.actors import Actor, Operator, Producer, Puller
from tests.simulation.queue.consumers import Consumer
from tests.simulation.queue.storm import LIMITS, policy
from tests.simulation.queue.vandals import Vandal

STREAMS = ["jobs/a", "jobs/b", "{tag}/c", "agents/d/inbox"]
DEAD = [f"dlq/{name}" for name in STREAMS]
STEPS = 2_500


class CellsOperator(Operator):
    """Purges at the cell of the stream."""

    world: CellsWorld

    def purge(self, stream: str) -> None:
        world, now = self.world, self.world.clock.now()
        machine = world.machine_of(stream)
        Steps(purge_steps(machine, now, OPERATOR, StreamRequest(stream))).all(now)
        world.cells[shard_of_stream(stream)].runtime.apply(now)


class PlainConsumer(Consumer):
    """Leaves out labels and lease ids, as clients of the first Courier do."""

    def join(self) -> None:
        self._sub_no += 1
        self.line().request("subscribe", stream=self.stream())
        self.subs.append("")
        self.line().request("grant", n=self.dice.randint(1, 20))

    def act(self) -> None:
        line = self.line()
        match self.dice.randint(0, 6):
            case 0:
                self.join()
            case 1:
                line.request("grant", n=self.dice.randint(1, 5))
            case 2 | 3 if self.held:
                ids = [one["id"] for one in self.held[:4]]
                del self.held[:4]
                self.past += ids
                if self.dice.random() < 0.5:
                    line.request("ack", id=ids)
                else:
                    line.send_line(*[{"type": "ack", "id": id_} for id_ in ids])
            case 4 if self.past:
                line.request("ack", id=self.dice.choice(self.past))
            case _ if self.held:
                self.settle(line, self.held.pop(0))

    def settle(self, line: LineClient, one: Frame) -> None:
        super().settle(line, {"id": one["id"], "leaseId": one["leaseId"], "subId": one["subId"]})


class CellsWeather(Actor):
    """A bad disk, a corrected clock, and crashes of one cell or of all."""

    pace_ms = 150
    world: CellsWorld

    def act(self) -> None:
        world, dice = self.world, self.dice
        moods: tuple[Mood, ...] = ("well", "well", "well", "slow", "full", "failing")
        for journal in world.journals.all:
            journal.mood = dice.choice(moods)
        match dice.randint(0, 11):
            case 0:
                world.clock.step_wall(dice.randint(-5_000_000, 5_000_000))
            case 1 if dice.random() < 0.5:
                world.crash()
            case 2 if world.pipes:
                dice.choice(world.pipes).cut()
            case 3 | 4 if world.leg_latency_us:
                world.crash_cell(shard_of_stream(dice.choice(STREAMS)))


def cells_storm(seed: int) -> CellsWorld:
    """A storm; in every second one, messages between front and cells take a while, and cells crash alone."""
    dice = Random(f"{seed}/cells storm")
    policies = {name: policy(dice) for name in (*STREAMS, *DEAD)}
    world = CellsWorld(
        seed,
        limits=LIMITS,
        policy_for=lambda name: policies.get(name, Policy(max_depth=20)),
        latency_us=dice.choice((500, 5_000, 50_000)),
        leg_latency_us=dice.choice((300, 3_000)) * (seed % 2),
        step_cost=1 + seed % 6 if seed % 4 < 2 else STEP_COST,
    )
    world.chunk_requests_max = 40
    Producer(world, "p1", STREAMS)
    Producer(world, "p2", STREAMS)
    for index in range(dice.randint(1, 2)):
        Consumer(world, f"c{index}", STREAMS + DEAD)
    PlainConsumer(world, "c9", STREAMS)
    Puller(world, "q1", STREAMS + DEAD)
    CellsOperator(world, "o1", STREAMS)
    Vandal(world, "v1", STREAMS)
    CellsWeather(world, "w1", [])
    return world
