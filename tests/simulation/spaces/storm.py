"""A storm in spaces: participants join, leave, take over, send invalid input and stop reading, while the disk fails and the server crashes.

There are two spaces with the same names in them, because nothing may pass from one to the other. Every bound is so low that it is
reached in seconds.
"""

from __future__ import annotations

from random import Random

import msgspec

from penstock.core.limits import Limits
from penstock.dialects.mew.settings import ParticipantSettings, SpaceSettings, StreamSettings
from penstock.testing.clients import member
from penstock.testing.world import OPERATOR_TOKEN
from tests.simulation.queue.storm import Weather
from tests.simulation.spaces import checks as space_checks
from tests.simulation.spaces.actors import GUESTS, Boss, Guest, Liar, Participant
from tests.simulation.world import CheckedWorld

STEPS = 3_000
CALM_MS = 6_000
"""How long what is under way may take to come to its end."""
SPACES = ("one", "two")

LIMITS = Limits(
    envelope_max=4_000,
    space_envelope_max=4_000,
    pending_max=9_000,
    answers_max=12,
    outbox_max=20_000,
    outbox_hard_max=200_000,
    observations_max=20,
    participants_max=8,
    space_streams_max=5,
    space_request_max=1_000,
    space_frame_max=4_500,
    space_outbox_max=9_000,
    space_telemetry_max=6_000,
    space_wait_max=800,
    space_wait_ms=250,
    invites_max=4,
    grants_max=3,
    join_ms=400,
    join_pause_ms=50,
    owner_grace_ms=400,
    ping_ms=900,
)


def settings(space: str) -> SpaceSettings:
    """Some may everything and some little; one is the pipeline's, and two streams are there from the start."""
    participants = {
        "boss": member("boss", "*"),
        "ann": member("ann", "chat", "stream/*"),
        "bob": member("bob", "chat", "stream/*"),
        "cat": member("cat", "*"),
        "liar": member("liar", "chat", "stream/*", "system/*", "capability/grant"),
        "collector": ParticipantSettings(is_pipeline=True),
    }
    streams = {
        "results": StreamSettings("collector"),
        "sensors": StreamSettings("bob", ("collector", "ann")),
    }
    return SpaceSettings(space, space, participants, streams=streams)


def space_storm(seed: int) -> CheckedWorld:
    """A world of two spaces in which everything goes wrong that this seed can think of.

    >>> world = space_storm(seed=1)
    >>> world.run(200)
    >>> calm(world)
    """
    dice = Random(f"{seed}/spaces")
    world = CheckedWorld(
        seed,
        limits=msgspec.structs.replace(LIMITS, participants_max=dice.choice((5, 8, 20))),
        latency_us=dice.choice((500, 5_000, 50_000)),
        spaces=[settings(space) for space in SPACES],
    )
    world.chunk_requests_max = 20
    for space in SPACES if dice.random() < 0.5 else SPACES[:1]:
        boss = Boss(world, "boss", space)
        for name in ("ann", "bob", "cat"):
            Participant(world, name, space)
        for name in GUESTS[: dice.randint(1, len(GUESTS))]:
            Guest(world, name, space, boss)
        Liar(world, "liar", space)
    Weather(world, "w1", [])
    return world


def calm(world: CheckedWorld) -> None:
    """End a storm: some clients are disconnected, none acts, all read, the disk works.

    Then a new client sees the participants that are really present.
    """
    world.is_calm = True
    world.journal.mood = "well"
    while not world.up:
        world.step()
    for index, pipe in enumerate(world.pipes):
        pipe.resume()
        if index % 3 == 0:
            pipe.cut()
    world.advance(ms=CALM_MS)
    for space in world.spaces.spaces.values():
        visitor = world.join(space.id, "visitor", OPERATOR_TOKEN)
        world.advance(ms=CALM_MS)
        welcomes = [each for each in visitor.envelopes if each["kind"] == "system/welcome"]
        space_checks.nobody_is_a_ghost(world, space, welcomes[0]["payload"] if welcomes else None)
        visitor.send("chat", {"text": "is everybody still there?"})
        world.advance(ms=CALM_MS)
