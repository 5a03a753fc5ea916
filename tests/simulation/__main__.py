"""`python -m tests.simulation --seed N`: replays one storm and prints it."""

from __future__ import annotations

import argparse
import sys
import traceback
from typing import Any

from tests.simulation.cells.storm import cells_storm
from tests.simulation.cluster.storm import Cluster
from tests.simulation.queue.checks import Broken
from tests.simulation.queue.storm import STEPS, storm
from tests.simulation.spaces.storm import calm, space_storm


def show(entry: tuple[Any, ...]) -> None:
    us, what, *more = entry
    words = [item.decode(errors="replace").rstrip() if isinstance(item, bytes) else str(item) for item in more]
    sys.stdout.write(f"{us / 1000:>12.3f} ms  {what:<8} {' '.join(words)}\n")


def cluster(seed: int, *, quiet: bool, has_queues: bool, is_rewound: bool) -> int:
    world = Cluster(seed, has_queues=has_queues)
    if not quiet:
        world.on_trace = show
    try:
        if is_rewound:
            world.run_rewound()
        else:
            world.run()
    except Exception as error:
        sys.stdout.write(f"seed {seed} broke {error}\n")
        traceback.print_exc()
        return 1
    kept = sum(len(model.acknowledged) for model in world.models)
    sys.stdout.write(f"seed {seed}: {len(world.trace)} events, {kept} acknowledged; every invariant held\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=STEPS, help="how many events to run (default %(default)s)")
    parser.add_argument("--spaces", action="store_true", help="a storm of participants in spaces, to its end")
    parser.add_argument("--cluster", action="store_true", help="a storm over three nodes and two shards, to its end")
    parser.add_argument(
        "--queues", action="store_true", help="the same, with the queues of the nodes and their clients"
    )
    parser.add_argument(
        "--rewound", action="store_true", help="with one of these: servers that lose what they acknowledged"
    )
    parser.add_argument("--cells", action="store_true", help="a storm over several cells behind a front")
    parser.add_argument("--quiet", action="store_true", help="say only how it ended")
    options = parser.parse_args()
    if options.cluster or options.queues:
        return cluster(options.seed, quiet=options.quiet, has_queues=options.queues, is_rewound=options.rewound)
    make = cells_storm if options.cells else space_storm if options.spaces else storm
    world = make(options.seed)
    if not options.quiet:
        world.on_trace = show
    try:
        world.run(options.steps)
        if options.spaces:
            calm(world)
    except Broken as broken:
        sys.stdout.write(f"seed {options.seed} broke {broken}\n")
        traceback.print_exc()
        return 1
    witness, space_witness = world.witness, world.space_witness
    done = (
        f"{len(witness.acknowledged)} acknowledged, {witness.deliveries} delivered, {len(witness.confirmed)} confirmed"
    )
    if options.spaces:
        done = f"{len(space_witness.talks)} connections, {space_witness.delivered} frames delivered, {space_witness.lost} dropped"
    sys.stdout.write(
        f"seed {options.seed}: {len(world.trace)} events in {world.clock.us / 1e6:.1f} s of its time, "
        f"{world.lives} lives, {done}; every invariant held\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
