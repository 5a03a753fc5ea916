"""Each checker of spaces must name the invariant that a planted fault breaks."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.clock import Now
from penstock.core.fanout.frame_router import FrameRouter
from penstock.core.fanout.outbox import Outbox
from penstock.dialects.mew import accept, frames, join, stream_requests, stream_writers
from penstock.dialects.mew.gateway_messages import MewRefusal
from penstock.dialects.mew.machine import SpaceMachine
from penstock.dialects.mew.participants import Participant
from penstock.dialects.mew.state import SpaceMemory, SpaceState
from penstock.server.spaces.connection import SpaceConnection, StreamWaits
from tests.simulation.queue import checks
from tests.simulation.queue.checks import Broken
from tests.simulation.spaces import checks as space_checks
from tests.simulation.spaces.storm import STEPS, calm, space_storm

SEEDS = 20
"""A fault that needs more storms than this to show is not caught."""

Plant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: list[tuple[tuple[str, ...], Plant]] = []


def breaks(*invariants: str) -> Callable[[Plant], Plant]:
    """The fault breaks each of these; which one shows first is the storm's business."""

    def add(plant: Plant) -> Plant:
        MUTANTS.append((invariants, plant))
        return plant

    return add


@breaks(space_checks.TARGETS)
def targets_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FrameRouter, "receivers", lambda router, route: list(router.members.values()))


@breaks(space_checks.TARGETS)
def frames_lose_a_byte(patch: pytest.MonkeyPatch) -> None:
    publish = FrameRouter.publish

    def trim(router: FrameRouter, writer: str, data: bytes, end: int) -> bool:
        return publish(router, writer, data.rstrip(b"\x00"), end)

    patch.setattr(FrameRouter, "publish", trim)


@breaks(space_checks.TARGETS)
def frames_come_twice(patch: pytest.MonkeyPatch) -> None:
    put = Outbox.put

    def twice(outbox: Outbox, data: bytes, source: Any = None, count: int = 1) -> None:
        put(outbox, data, source, count)
        if source is not None:
            put(outbox, data, source, count)

    patch.setattr(Outbox, "put", twice)


@breaks(space_checks.TARGETS)
def drops_are_not_announced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outbox, "take_lost", lambda outbox: {})


@breaks(space_checks.TARGETS)
def a_target_that_returns_hears_nothing(patch: pytest.MonkeyPatch) -> None:
    enter = FrameRouter.enter

    def unnoticed(router: FrameRouter, member: Any) -> None:
        before = router._version
        enter(router, member)
        router._version = before

    patch.setattr(FrameRouter, "enter", unnoticed)


@breaks(space_checks.ORDER)
def frames_overtake_envelopes(patch: pytest.MonkeyPatch) -> None:
    publish = frames.publish

    def at_once(space: SpaceMachine, now: Now, sender: Participant, data: bytes, end: int) -> None:
        last, sender.last = sender.last, None
        publish(space, now, sender, data, end)
        sender.last = last

    patch.setattr(frames, "publish", at_once)


@breaks(space_checks.ORDER)
def errors_overtake_envelopes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpaceMachine, "fail", SpaceMachine.fail_now)


def _overlook(patch: pytest.MonkeyPatch, error: str, text: str) -> None:
    check = accept._check

    def lenient(space: SpaceMachine, *given: Any) -> MewRefusal | None:
        fault = check(space, *given)
        return None if fault is not None and fault.error == error and text in fault.message else fault

    patch.setattr(accept, "_check", lenient)


@breaks(space_checks.SENDER)
def anybody_may_say_they_are_somebody_else(patch: pytest.MonkeyPatch) -> None:
    _overlook(patch, "invalid_from", "")


@breaks(space_checks.SENDER)
def the_kinds_of_the_gateway_are_everybodys(patch: pytest.MonkeyPatch) -> None:
    _overlook(patch, "invalid_request", "reserved")


@breaks(space_checks.AUTHORITY)
def everybody_writes(patch: pytest.MonkeyPatch) -> None:
    publish = FrameRouter.publish

    def open_to_all(router: FrameRouter, writer: str, data: bytes, end: int) -> bool:
        route = router.routes.get(data[1:end])
        owner = writer if route is None or writer in route.writers else route.owner
        return publish(router, owner, data, end)

    patch.setattr(FrameRouter, "publish", open_to_all)


@breaks(space_checks.AUTHORITY)
def everybody_decides_about_streams(patch: pytest.MonkeyPatch) -> None:
    owned = stream_writers._owned

    def everybodys(space: SpaceMachine, sender: Participant, envelope: Any, what: str) -> Any:
        stream = space.state.streams.get(envelope.text("stream_id") or "")
        return stream or owned(space, sender, envelope, what)

    patch.setattr(stream_writers, "_owned", everybodys)


@breaks(space_checks.AUTHORITY)
def an_owner_decides_after_giving_a_stream_away(patch: pytest.MonkeyPatch) -> None:
    for module in (stream_requests, stream_writers):
        patch.setattr(module, "is_leaving", lambda space, stream: False)


@breaks(checks.DURABLE)
def changes_are_made_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    commit = SpaceMachine.commit

    def eager(space: SpaceMachine, sender: Any, entries: Any, *given: Any, **more: Any) -> None:
        commit(space, sender, entries, *given, **more)
        for entry in entries:
            if entry.event in ("grant", "revoke"):
                space.state.apply(entry)

    patch.setattr(SpaceMachine, "commit", eager)


@breaks(checks.DURABLE)
def a_restart_forgets_who_was_put_out(patch: pytest.MonkeyPatch) -> None:
    restore = SpaceMemory.restore

    def forget(memory: SpaceMemory, row: Any) -> None:
        if row.event != "kick":
            restore(memory, row)

    patch.setattr(SpaceMemory, "restore", forget)


@breaks(checks.DURABLE)
def a_snapshot_leaves_grants_out(patch: pytest.MonkeyPatch) -> None:
    snapshot = SpaceState.snapshot
    patch.setattr(
        SpaceState,
        "snapshot",
        lambda state, space: (row for row in snapshot(state, space) if row.event != "grant"),
    )


@breaks(checks.VISIBLE)
def envelopes_are_told_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    commit = SpaceMachine.commit

    def eager(space: SpaceMachine, sender: Any, entries: Any, announce: Any, done: Any = None, **more: Any) -> None:
        if all(entry.event == "envelope" for entry in entries):
            space.commit_log.facts.extend(entries)
            announce(None)
        else:
            commit(space, sender, entries, announce, done, **more)

    def relay(space: SpaceMachine, sender: Any, envelope: Any, done: Any, *given: Any, **more: Any) -> None:
        data = envelope.encode()
        eager(
            space,
            sender,
            [space.envelope_entry(sender, envelope, data)],
            lambda now: space.broadcast(now, data, envelope.id),
        )

    patch.setattr(SpaceMachine, "relay", relay)


@breaks(space_checks.REFUSED)
def a_refusal_is_kept_from_its_sender(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        SpaceMachine, "_refuse", lambda space, now, pending, reason: MewRefusal("journal_unavailable", reason)
    )


@breaks(space_checks.EVERYBODY)
def somebody_is_left_out(patch: pytest.MonkeyPatch) -> None:
    broadcast = FrameRouter.broadcast

    def forget(router: FrameRouter, data: bytes, but: str | None = None) -> None:
        is_chat = b'"kind":"chat"' in data
        broadcast(router, data, but or (next(iter(reversed(router.members)), None) if is_chat else None))

    patch.setattr(FrameRouter, "broadcast", forget)


@breaks(space_checks.NUMBERS)
def a_restart_counts_streams_anew(patch: pytest.MonkeyPatch) -> None:
    begin = join.begin

    def anew(space: SpaceMachine, now: Any) -> None:
        space.state.stream_no = len(space.state.streams)
        begin(space, now)

    patch.setattr(join, "begin", anew)


@breaks(space_checks.GHOSTS)
def nobody_ever_leaves(patch: pytest.MonkeyPatch) -> None:
    def gone(connection: SpaceConnection, now: Any) -> None:
        connection.spaces.sessions.pop(connection.session, None)

    patch.setattr(SpaceConnection, "gone", gone)


@breaks(space_checks.EVERYBODY, space_checks.TARGETS, space_checks.GHOSTS)
def an_old_connection_takes_the_new_one_with_it(patch: pytest.MonkeyPatch) -> None:
    leave = join.leave

    def by_name(space: SpaceMachine, now: Any, participant: Participant, reason: str) -> None:
        leave(space, now, space.present.get(participant.id, participant), reason)

    patch.setattr(join, "leave", by_name)


@breaks(checks.BOUNDS)
def slow_readers_of_envelopes_are_kept(patch: pytest.MonkeyPatch) -> None:
    put = Outbox.put

    def patient(outbox: Outbox, *given: Any) -> None:
        put(outbox, *given)
        outbox.is_over = False

    patch.setattr(Outbox, "put", patient)


@breaks(checks.BOUNDS)
def frames_pile_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outbox, "_drop", lambda outbox: None)


@breaks(space_checks.TARGETS)
def streams_that_wait_lose_frames(patch: pytest.MonkeyPatch) -> None:
    wait = Outbox._wait

    def lose(outbox: Outbox, data: bytes, source: Any, count: int, cost: int) -> None:
        wait(outbox, data, source, count, cost)
        if outbox.stuck and outbox.waiting[source] > outbox.wait_max:
            outbox.withdraw(source)

    patch.setattr(Outbox, "_wait", lose)


@breaks(space_checks.WAITING)
def writers_wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamWaits, "_look", lambda waits: None)


@breaks(checks.BOUNDS)
def there_is_always_room_for_another_stream(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stream_requests, "_fullness", lambda space, size=0: None)


@breaks(checks.BOUNDS)
def grants_that_wait_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    undecided = SpaceMachine.undecided

    def forget(space: SpaceMachine, kind: str, **about: str) -> int:
        return 0 if kind == "capability/grant" else undecided(space, kind, **about)

    patch.setattr(SpaceMachine, "undecided", forget)


@pytest.mark.promise("Invariants", "every invariant checker detects a planted fault")
@pytest.mark.parametrize(("invariants", "plant"), MUTANTS, ids=[plant.__name__ for _, plant in MUTANTS])
def test_a_planted_fault_in_spaces_is_named(
    invariants: tuple[str, ...], plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Broken) as caught:
        weather_storms()
    assert caught.value.invariant in invariants


def weather_storms() -> None:
    for seed in range(SEEDS):
        world = space_storm(seed)
        world.run(STEPS)
        calm(world)
