"""The invariants of spaces as functions that run after every step; the witness checks what is visible from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.dialects.mew.machine import SpaceMachine
from penstock.dialects.mew.session import MewSession
from penstock.dialects.mew.state import SpaceMemory, SpaceState
from penstock.server.spaces.connection import OVERRUN
from penstock.testing.network import HIGH_WATER
from tests.simulation.queue import checks
from tests.simulation.queue.checks import Broken

if TYPE_CHECKING:
    from tests.simulation.spaces.model import SpaceModel
    from tests.simulation.spaces.witness import SpaceTalk
    from tests.simulation.world import CheckedWorld

TARGETS = "5: a frame reaches its targets and nobody else, whole and once"
ORDER = "5: what one participant sends keeps its order, frames and envelopes together"
SENDER = "6: `from` is who sent it, and the gateway alone speaks for the gateway"
AUTHORITY = "6: only writers write and only owners decide, as everybody was told"
EVERYBODY = "an envelope that is durable reaches everybody, as it was sent"
REFUSED = "what the journal refused is told to its sender and changes nothing"
NUMBERS = "the ids of streams never repeat in a space's life"
WAITING = "8: a writer waits for a target no longer than the target may stand still"
GHOSTS = "whoever is present has an open connection, and the other way round"


def debts_are_paid(world: CheckedWorld) -> None:
    """What became of frames and envelopes shows as soon as time passes, unless the peer does not read."""
    now_us = world.clock.us
    for talk in world.space_witness.talks.values():
        if not talk.is_there:
            talk.owed.clear()
            talk.errors.clear()
            continue
        if talk.pipe.is_congested or talk.is_stuck:
            # Where it just began to read again, what waits comes at the end of this turn.
            talk.stuck_us, talk.is_stuck = now_us, talk.pipe.is_congested
        if talk.stuck_us == now_us:
            continue
        if talk.owed:
            _collect(talk, now_us)
        late = [id_ for id_, since_us in talk.errors.items() if since_us < now_us]
        if late:
            raise Broken(REFUSED, f"`{talk.id}` was not told that {late} could not be written down")


def _collect(talk: SpaceTalk, now_us: int) -> None:
    late = [what for what, since_us in talk.owed.items() if since_us < now_us]
    for what in late:
        del talk.owed[what]
        if isinstance(what, str):
            raise Broken(EVERYBODY, f"`{talk.id}` on pipe {talk.pipe.no} did not receive `{what}`")
        stream = what[1 : what.index(b"#", 1)].decode()
        talk.missed[stream] = talk.missed.get(stream, 0) + 1
        if talk.missed[stream] > talk.dropped.get(stream, 0):
            told = f"and was told of {talk.dropped.get(stream, 0)} that were dropped"
            raise Broken(TARGETS, f"`{talk.id}` on pipe {talk.pipe.no} did not receive {what[:60]!r}, {told}")


def nobody_waits_for_ever(world: CheckedWorld) -> None:
    """A writer is not read while a target is behind, and no longer than that target takes to make progress or be removed."""
    held = world.space_witness.held
    patience_us = 2 * world.limits.space_wait_ms * 1000
    for session in world.spaces.sessions:
        connection = world.spaces.runtime.peers.find(session)
        unread = {} if connection is None or not session.is_blocked else _behind(world, session)
        before = held.get(session.link.no)
        if not unread:
            held.pop(session.link.no, None)
        elif before is None or before[1] != unread:
            held[session.link.no] = (world.clock.us, unread)
        elif world.clock.us - before[0] > patience_us:
            raise Broken(WAITING, f"`{session.link.no}` waits for {list(unread)}, which take nothing")


def _behind(world: CheckedWorld, session: MewSession) -> dict[tuple[str, int], int]:
    """What the targets that a writer waits for have not read, by stream and connection."""
    assert session.space is not None and session.participant is not None
    found: dict[tuple[str, int], int] = {}
    for route in session.space.router.routes.values():
        for outbox in route.full if session.participant.id in route.writers else ():
            connection = world.spaces.runtime.peers.find(outbox.owner)
            found[route.id, outbox.owner.link.no] = 0 if connection is None else connection.wire.buffered
    return found


def bounds_hold(world: CheckedWorld) -> None:
    limits = world.limits
    piece = limits.space_frame_max + HIGH_WATER
    over = world.space_witness.over
    for session in world.spaces.sessions:
        outbox = session.outbox
        firm, telemetry = outbox.firm, outbox.size - outbox.firm - outbox.waits
        if outbox.stuck and outbox.waits > (OVERRUN + 1) * limits.space_wait_max + piece:
            raise Broken(checks.BOUNDS, f"{outbox.waits} bytes of streams that wait are there for `{session.link.no}`")
        if outbox.stuck and firm > limits.space_outbox_max and not outbox.is_over:
            raise Broken(checks.BOUNDS, f"{firm} bytes of envelopes wait for `{session.link.no}`")
        if not outbox.is_over or session.closing is not None:
            over.pop(session.link.no, None)
        elif over.setdefault(session.link.no, world.clock.us) < world.clock.us:
            raise Broken(checks.BOUNDS, f"`{session.link.no}` does not read and was not let go")
        if outbox.stuck and telemetry > limits.space_telemetry_max + piece:
            raise Broken(checks.BOUNDS, f"{telemetry} bytes of frames wait for `{session.link.no}`")
    for space in world.spaces.spaces.values():
        state = space.state
        if space.pending_bytes > limits.pending_max:
            raise Broken(checks.BOUNDS, f"{space.pending_bytes} bytes wait for the journal")
        grants = max((len(each) for each in state.grants.values()), default=0)
        there = (len(space.present), len(state.streams), len(state.invited), grants)
        most = (limits.participants_max, limits.space_streams_max, limits.invites_max, limits.grants_max)
        if any(count > bound for count, bound in zip(there, most, strict=True)):
            raise Broken(checks.BOUNDS, f"(participants, streams, invited, grants) are {there}, at most {most}")


def spaces_are_their_rows(world: CheckedWorld) -> None:
    """What a space acts upon is what is durable: it is the same before a crash and after it."""
    for space in world.spaces.spaces.values():
        compare(world.space_witness.models[space.id], space.state, "runs on")
        routes = sorted(route.id for route in space.router.routes.values())
        if routes != sorted(space.state.streams):
            raise Broken(checks.DURABLE, f"frames pass on {routes}, and {sorted(space.state.streams)} are open")


def compare(model: SpaceModel, state: SpaceState, how: str) -> None:
    said = _remembered(state)
    durable = {
        "invited": model.invited,
        "kicked": sorted(model.kicked),
        "grants": model.grants,
        "streams": {id_: (each.owner, sorted(each.writers), each.target) for id_, each in model.streams.items()},
    }
    for name, value in durable.items():
        if said[name] != value:
            raise Broken(
                checks.DURABLE,
                f"`{model.settings.id}` {how} {name} {said[name]}, and {value} is durable",
            )


def _remembered(state: SpaceState) -> dict[str, Any]:
    return {
        "invited": {name: each.digest for name, each in state.invited.items()},
        "kicked": sorted(state.kicked),
        "grants": {name: {id_: list(each) for id_, each in granted.items()} for name, granted in state.grants.items()},
        "streams": {
            id_: (each.route.owner, sorted(each.route.writers), list(each.route.targets))
            for id_, each in state.streams.items()
        },
    }


def after_restart(world: CheckedWorld) -> None:
    """What spaces remember is what is durable, and a snapshot of it says the same."""
    again = SpaceMemory()
    for row in world.spaces.memory.snapshot():
        again.restore(row)
    for name, model in world.space_witness.models.items():
        state = world.spaces.memory.of(name)
        compare(model, state, "remembers")
        compare(model, again.of(name), "has in its snapshot")
        if state.stream_no < model.newest or again.of(name).stream_no != state.stream_no:
            raise Broken(NUMBERS, f"`{name}` counts {state.stream_no} streams, and {model.newest} there were")


def nobody_is_a_ghost(world: CheckedWorld, space: SpaceMachine, welcome: dict[str, Any] | None) -> None:
    """The participants in the welcome of a new client: exactly those with an open connection, and the virtual ones.

    A client without a welcome finds the space full of them.
    """
    you = None if welcome is None else welcome["you"]["id"]
    talks = [each for each in world.space_witness.talks.values() if each.space == space.id and each.is_welcome]
    connected = [each.id for each in talks if not each.pipe.is_over and each.id != you]
    virtual = [name for name, each in space.settings.participants.items() if each.is_pipeline]
    expected = sorted(id_ for id_ in (*connected, *virtual) if id_ is not None)
    if welcome is None and len(expected) < world.limits.participants_max:
        raise Broken(GHOSTS, f"nobody can come into `{space.id}`, and only {expected} have a connection")
    if welcome is not None and (there := sorted(each["id"] for each in welcome["participants"])) != expected:
        raise Broken(GHOSTS, f"`{space.id}` has {there}, and {expected} have a connection")


def every_step(world: CheckedWorld) -> None:
    world.space_witness.settle()
    debts_are_paid(world)
    bounds_hold(world)
    nobody_waits_for_ever(world)
    spaces_are_their_rows(world)
