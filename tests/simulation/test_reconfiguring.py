"""Storms that change every setting while they run: no invariant breaks, and nothing is lost."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from penstock.core.queue.policy import Policy
from penstock.core.rate_limits import Rate, Rates
from penstock.core.tenants import Quota
from tests.simulation.queue.actors import Actor
from tests.simulation.queue.checks import Broken
from tests.simulation.queue.storm import policy, storm
from tests.simulation.world import CheckedWorld

STEPS = 1_500
SEEDS = 12


class Reconfigurer(Actor):
    """An operator who cannot make up their mind."""

    pace_ms = 120

    def __init__(self, world: CheckedWorld, name: str, streams: list[str]) -> None:
        super().__init__(world, name, streams)
        self._first = world.machine.policy_for

    def act(self) -> None:
        world, draw = self.world, self.dice.randint(0, 1_000_000)
        rate = Rate.per_second(self.dice.choice((2, 20, 200)), self.dice.choice((1, 4, 30)))
        rates = self.dice.choice((None, Rates(token=rate), Rates(token=rate, address=rate)))

        def find(name: str) -> Policy:
            # The checks know the bounds of the first policy alone, and a restart brings that one back.
            first = self._first(name)
            return msgspec.structs.replace(
                policy(Random(f"{draw}/{name}")),
                max_depth=first.max_depth,
                max_bytes=first.max_bytes,
                dedup_count=first.dedup_count,
                dedup_us=first.dedup_us,
                max_deliveries=first.max_deliveries,
                max_abandoned=first.max_abandoned,
            )

        now = world.clock.now()
        world.machine.reconfigure(
            now,
            limits=world.limits,
            policy_for=find,
            auto_create=True,
            rates=rates,
            quota_for=lambda name: Quota(),
        )
        world.runtime.apply(now)
        world.note("reconfigured", draw)


def run(seed: int) -> CheckedWorld:
    world = storm(seed)
    Reconfigurer(world, "r1", [])
    try:
        world.run(STEPS)
    except Broken as broken:
        pytest.fail(f"seed {seed}: {broken}")
    return world


def test_every_invariant_holds_while_settings_change() -> None:
    worlds = [run(seed) for seed in range(SEEDS)]
    assert run(3).trace == worlds[3].trace
    said = [entry for world in worlds for entry in world.trace]
    assert sum(entry[1] == "reconfigured" for entry in said) > 5 * SEEDS
    limited = [entry for entry in said if entry[1] == "out" and any(b"RateLimited" in part for part in entry[3:])]
    assert len(limited) > SEEDS
