"""Storms over several cells: the invariants of the queue hold at every cell, and answers keep their order at the front."""

import pytest

from tests.simulation.cells.storm import STEPS, cells_storm
from tests.simulation.queue.checks import Broken
from tests.tiers import first_of

SEEDS, IN_EVERY_RUN = 60, 4


@pytest.mark.promise("Cells", "every invariant of the queue holds at every cell, while cells crash alone")
@pytest.mark.parametrize("seed", first_of(range(SEEDS), IN_EVERY_RUN))
def test_every_invariant_holds_behind_a_front(seed: int) -> None:
    world = cells_storm(seed)
    try:
        world.run(STEPS)
    except Broken as broken:
        pytest.fail(f"{broken}\nreplay: python -m tests.simulation --cells --seed {seed}")
    assert world.witness.acknowledged and world.witness.deliveries
