"""A storm: one world for each seed, with unusual policies, tight limits, busy actors and many faults.

Every bound is so low that it is reached in seconds, because a bound that is never reached is never tested.
"""

from __future__ import annotations

from random import Random

import msgspec

from penstock.core.limits import Limits
from penstock.core.queue.policy import Policy, Retry
from penstock.core.steps import STEP_COST
from penstock.dialects.courier.triggers.config import Trigger
from penstock.testing.disk import Mood
from tests.simulation.queue.actors import Actor, Operator, Producer, Puller
from tests.simulation.queue.consumers import Consumer, SocketConsumer
from tests.simulation.queue.trigger_checks import AUDIT, AUDIT_STREAM, AUDITED
from tests.simulation.queue.vandals import Vandal
from tests.simulation.queue.view_follower import Follower
from tests.simulation.world import CheckedWorld

STREAMS = [*AUDITED]
OTHER_INBOX = "agents/c/inbox"
"""Only there to push the other one out of the view, where it has one row."""
DEAD = [f"dlq/{name}" for name in STREAMS]
STEPS = 2_500
RULED_EVERY = 2
"""One storm in so many has triggers."""

LIMITS = Limits(
    idle_unload_ms=400,
    lease_min_ms=50,
    lease_max_ms=1_500,
    dedup_max=120,
    pending_max=6_000,
    envelope_max=4_000,
    memory_max=20_000,
    credit_max=200,
    waiters_max=1,
    outbox_max=1_000,
    outbox_hard_max=4_000,
    outbox_total_max=6_000,
    answers_max=10,
    observations_max=8,
    subscriptions_max=4,
    trigger_hops_max=3,
    trigger_fanout_max=6,
    cooldowns_max=2,
    breaker_failures=2,
    breaker_ms=200,
    view_log_max=2,
    view_flush_ms=20,
)


def policy(dice: Random) -> Policy:
    """How one stream behaves in this storm."""
    line = dice.choice(("plain", "plain", "partitioned", "priority"))
    drawn = Policy(
        lease_us=dice.choice((150_000, 800_000)),
        max_depth=dice.choice((6, 20, 60)),
        max_bytes=dice.choice((3_000, 50_000)),
        overflow=dice.choice(("reject", "drop-oldest")),
        redelivery=dice.choice(("tail", "head")),
        max_deliveries=dice.choice((0, 2, 4)),
        max_inflight=dice.choice((0, 0, 1, 5)),
        on_disconnect=dice.choice(("release", "hold")),
        late_ack=dice.choice(("reject", "accept")),
        dedup_count=dice.choice((2, 20, 60)),
        dedup_us=dice.choice((100_000, 1_000_000, 600_000_000)),
        retry=dice.choice((None, Retry(20_000, max_us=300_000, jitter=0.5))),
        partitioned=line == "partitioned",
        priority=line == "priority",
        priority_wait_us=dice.choice((50_000, 2_000_000)),
    )
    # From what is drawn already, so that the seeds that found something keep their course.
    retry = drawn.retry and msgspec.structs.replace(drawn.retry, immediate=drawn.max_deliveries // 2)
    return msgspec.structs.replace(drawn, retry=retry, max_abandoned={2: 0, 20: 2, 60: 6}[drawn.dedup_count])


class Weather(Actor):
    """What happens to everybody: a bad disk, a corrected clock, and crashes."""

    pace_ms = 150

    def act(self) -> None:
        world, dice = self.world, self.dice
        moods: tuple[Mood, ...] = ("well", "well", "well", "slow", "full", "failing")
        world.journal.mood = dice.choice(moods)
        match dice.randint(0, 11):
            case 0:
                world.clock.step_wall(dice.randint(-5_000_000, 5_000_000))
            case 1:
                world.crash(restart=False)
                world.clock.after(dice.randint(0, 300_000), world.restart)
            case 2 if world.pipes:
                dice.choice(world.pipes).cut()


def rules(dice: Random) -> list[Trigger]:
    """Triggers of every hook and action, one of them in a circle and some aimed at streams without room."""
    cooldown = dice.choice((0, 50, 400))
    wanted = [
        {"id": AUDIT, "when": {"to": AUDITED, "type": "t"}, "do": [notify(AUDIT_STREAM)]},
        {"id": "circle", "when": {"type": "notify"}, "do": [notify(STREAMS[0]), notify(AUDIT_STREAM)]},
        {"id": "late", "hook": "on_timeout", "when": {"to": STREAMS}, "do": [notify("small/late")]},
        {"id": "acked", "hook": "on_ack", "when": {"to": "*"}, "do": [notify(AUDIT_STREAM)]},
        {"id": "dead", "hook": "on_dead", "when": {"to": "*"}, "do": [notify(STREAMS[1])]},
        {"id": "copied", "when": {"type": "copied"}, "do": [{"action": "route", "to": STREAMS[1]}]},
        {
            "id": "moved",
            "when": {"type": "moved", "to": STREAMS[0]},
            "do": [{"action": "route", "to": dice.choice(("small/moved", STREAMS[1])), "mode": "move"}],
        },
        {
            "id": "enriched",
            "when": {"type": "enriched"},
            "do": [{"action": "enrich", "headers": {"x-at": "${now}"}, "payload": {"id": "${env.id}"}}],
        },
        {
            "id": "cooled",
            "when": {"type": ["note", "copied"]},
            "do": [{"action": "emit", "to": AUDIT_STREAM, "type": "summary", "payload": "${suppressed}"}],
            "limits": {"cooldownMs": cooldown, "cooldownKey": "${env.from}", "trailing": cooldown > 0},
        },
    ]
    return [msgspec.convert(rule, Trigger) for rule in wanted]


def notify(to: str) -> dict[str, str]:
    return {"action": "notify", "to": to}


def storm(seed: int) -> CheckedWorld:
    """A world in which everything goes wrong that this seed can think of.

    >>> world = storm(seed=1)
    >>> world.run(200)
    """
    dice = Random(f"{seed}/storm")
    policies = {name: policy(dice) for name in (*STREAMS, *DEAD)}
    policies[AUDIT_STREAM] = Policy(max_depth=10, overflow="drop-oldest")
    policies["small/late"] = policies["small/moved"] = Policy(max_depth=3)
    policies[OTHER_INBOX] = Policy(max_depth=5, overflow="drop-oldest")
    fallback = Policy(max_depth=20)
    world = CheckedWorld(
        seed,
        limits=msgspec.structs.replace(LIMITS, view_rows_max=dice.choice((1, 10))),
        policy_for=lambda name: policies.get(name, fallback),
        latency_us=dice.choice((500, 5_000, 50_000)),
        triggers=rules(dice) if seed % RULED_EVERY == 0 else (),
        step_cost=1 + seed % 6 if seed % 4 < 2 else STEP_COST,
    )
    world.chunk_requests_max = 20  # actors send at most eight at once
    Producer(world, "p1", STREAMS)
    Producer(world, "p2", [*STREAMS, *STREAMS, OTHER_INBOX])
    for index in range(dice.randint(1, 3)):
        Consumer(world, f"c{index}", STREAMS + DEAD)
    SocketConsumer(world, "s1", STREAMS)
    Puller(world, "q1", STREAMS + DEAD)
    Operator(world, "o1", STREAMS)
    Follower(world, "f1", [])
    Follower(world, "f2", [])
    Vandal(world, "v1", STREAMS)
    Weather(world, "w1", [])
    return world
