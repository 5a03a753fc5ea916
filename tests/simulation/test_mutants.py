"""Each checker must name the invariant that a planted fault breaks."""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.core.commit_log import CommitLog
from penstock.core.errors import Refusal
from penstock.core.queue import dead_letters, enqueue, settle
from penstock.core.queue.channel import Channel
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.ready_order import KeyedOrder, PriorityOrder
from penstock.core.queue.views import View
from penstock.core.records import READY
from penstock.core.rows import Row
from penstock.core.rules import firing
from penstock.dialects.courier.sessions.answers import Answers
from penstock.dialects.courier.sessions.control.session import ControlSession
from penstock.dialects.courier.sessions.view_feed import ViewFeed
from penstock.dialects.courier.triggers.script import TriggerEnvelope
from penstock.server.engine.connections import ConnectionTable
from penstock.testing.disk import SimJournal
from penstock.testing.network import SimConnection
from tests.simulation.queue import checks
from tests.simulation.queue.checks import Broken
from tests.simulation.queue.storm import STEPS, storm

SEEDS = 25
"""A fault that needs more storms than this to show is not caught."""

Plant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: list[tuple[str, Plant]] = []


def breaks(invariant: str) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        MUTANTS.append((invariant, plant))
        return plant

    return add


@breaks(checks.CREDIT)
def every_grant_counts_twice(patch: pytest.MonkeyPatch) -> None:
    grant = QueueMachine.grant
    patch.setattr(QueueMachine, "grant", lambda state, now, consumer, n: grant(state, now, consumer, 2 * n))


@breaks(checks.CREDIT)
def credit_is_not_used_up(patch: pytest.MonkeyPatch) -> None:
    writable = QueueMachine.writable

    def refill(state: Any, now: Any, link: Any) -> None:
        for consumer in link.consumers:
            consumer.credit += 3
        writable(state, now, link)

    patch.setattr(QueueMachine, "writable", refill)


@breaks(checks.TIMES)
def a_record_has_the_time_of_its_arrival(patch: pytest.MonkeyPatch) -> None:
    committed = QueueMachine.committed
    patch.setattr(
        QueueMachine, "committed", lambda state, now, first, why, _recorded: committed(state, now, first, why)
    )


@breaks(checks.TRIGGERS)
def a_rule_now_and_then_looks_away(patch: pytest.MonkeyPatch) -> None:
    look = firing.attempt

    def seldom(state: Any, now: Any, rules: Any, record: Any, *more: Any) -> Any:
        return look(state, now, rules if record.seq % 5 else (), record, *more)

    patch.setattr(firing, "attempt", seldom)


@breaks(checks.TRIGGERS)
def a_rule_sends_in_a_commit_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """What is sent a moment later may be lost between the two."""
    accept = dead_letters.accept

    def later(state: Any, now: Any, send: Any) -> Any:
        if send.firing is not None and send.record.kind == "notify":
            return None
        return accept(state, now, send)

    patch.setattr(dead_letters, "accept", later)


@breaks(checks.TRIGGERS)
def a_rule_fires_on_what_it_caused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TriggerEnvelope, "chain", property(lambda self: ()))


@breaks(checks.TRIGGERS)
def hops_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(firing, "_may_fire", lambda state, now, rule, source: True)


@breaks(checks.BALANCE)
def acks_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    ack = QueueMachine.ack

    def uncounted(state: Any, now: Any, consumer: Any, ids: list[str]) -> Any:
        before = consumer.channel.counters.ack
        denied = ack(state, now, consumer, ids)
        consumer.channel.counters.ack = before
        return denied

    patch.setattr(QueueMachine, "ack", uncounted)


@breaks(checks.BALANCE)
def drops_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    make_room = enqueue._make_room

    def quiet(state: Any, now: Any, channel: Channel, *more: int) -> Refusal | None:
        before = channel.counters.drop
        refusal = make_room(state, now, channel, *more)
        channel.counters.drop = before
        return refusal

    patch.setattr(enqueue, "_make_room", quiet)


@breaks(checks.BALANCE)
def the_metrics_leave_out_what_is_delayed(patch: pytest.MonkeyPatch) -> None:
    metrics = QueueMachine.metrics
    patch.setattr(QueueMachine, "metrics", lambda *given: {**metrics(*given), "q.delayed": 0})


@breaks(checks.ORDER)
def ready_records_are_shuffled(patch: pytest.MonkeyPatch) -> None:
    committed = QueueMachine.committed

    def shuffle(state: Any, *given: Any) -> None:
        for channel in state.channels.values():
            if isinstance(channel.ready, deque):
                channel.ready.rotate(1)
        committed(state, *given)

    patch.setattr(QueueMachine, "committed", shuffle)


@breaks(checks.ORDER)
def new_records_overtake_those_of_their_level(patch: pytest.MonkeyPatch) -> None:
    put = PriorityOrder.put
    patch.setattr(PriorityOrder, "put", lambda line, record, now_us, first: put(line, record, now_us, first=True))


@breaks(checks.KEYS)
def a_lease_does_not_block_its_key(patch: pytest.MonkeyPatch) -> None:
    take = KeyedOrder.take

    def unblocked(line: KeyedOrder) -> Any:
        record = take(line)
        key = line._key(record)
        if line._blocked.pop(key, key) is None:
            line.ring[key] = None
        return record

    patch.setattr(KeyedOrder, "take", unblocked)


@breaks(checks.KEYS)
def a_delay_does_not_block_its_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyedOrder, "block", lambda line, record: setattr(line._key(record), "busy", 1))


@breaks(checks.KEYS)
def a_freed_key_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    free = KeyedOrder.free

    def forget(line: KeyedOrder, record: Any) -> None:
        free(line, record)
        if len(line.ring) > 1:
            line.ring.popitem()

    patch.setattr(KeyedOrder, "free", forget)


@breaks(checks.HOLDER)
def anybody_may_ack(patch: pytest.MonkeyPatch) -> None:
    ack = QueueMachine.ack

    def generous(state: Any, now: Any, consumer: Any, ids: list[str]) -> Any:
        record = consumer.channel.live.get(ids[0])
        return ack(state, now, record.holder if record is not None and record.holder else consumer, ids)

    patch.setattr(QueueMachine, "ack", generous)


@breaks(checks.HOLDER)
def a_lapsed_lease_still_acks(patch: pytest.MonkeyPatch) -> None:
    def always(channel: Channel, consumer: Any, record: Any) -> Any:
        if record.state == READY:
            channel.leave(record)
            return record
        return None

    patch.setattr(settle, "_late", always)


@breaks(checks.HOLDER)
def an_ended_lease_stays_with_its_holder(patch: pytest.MonkeyPatch) -> None:
    unlease = settle._unlease

    def keep(record: Any) -> Any:
        lease = record.lease
        consumer = unlease(record)
        consumer.leases[lease] = record
        return consumer

    patch.setattr(settle, "_unlease", keep)


@breaks(checks.DURABLE)
def answers_do_not_wait_for_the_journal(patch: pytest.MonkeyPatch) -> None:
    def at_once(answers: Any, gate: int, render: Any, *, fresh: bool = False) -> None:
        answers.add(render(None))

    patch.setattr(Answers, "after", at_once)


@breaks(checks.DURABLE)
def a_refused_commit_is_answered_as_a_success(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Answers, "_refuse", lambda *given: None)


@breaks(checks.DURABLE)
def the_disk_loses_what_it_had_committed(patch: pytest.MonkeyPatch) -> None:
    crash = SimJournal.crash

    def forget(journal: SimJournal) -> None:
        crash(journal)
        del journal.rows[-30:]

    patch.setattr(SimJournal, "crash", forget)


@breaks(checks.DURABLE)
def recovery_skips_acks(patch: pytest.MonkeyPatch) -> None:
    restore = QueueMachine.restore

    def forgetful(state: Any, now: Any, row: Row) -> None:
        if row.event != "ack":
            restore(state, now, row)

    patch.setattr(QueueMachine, "restore", forgetful)


@breaks(checks.VIEWS)
def redriven_letters_count_as_arrivals_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    restore = QueueMachine.restore

    def naive(state: Any, now: Any, row: Row) -> None:
        restore(state, now, msgspec.structs.replace(row, meta=None) if row.event == "enqueue" else row)

    patch.setattr(QueueMachine, "restore", naive)


@breaks(checks.VIEWS)
def removals_are_forgotten_silently(patch: pytest.MonkeyPatch) -> None:
    remove = View.remove

    def forget(view: View, addr: str) -> None:
        floor = view.floor
        remove(view, addr)
        view.floor = floor

    patch.setattr(View, "remove", forget)


@breaks(checks.VIEWS)
def a_follower_short_of_credit_misses_the_rest(patch: pytest.MonkeyPatch) -> None:
    some = ViewFeed._some

    def skip(feed: ViewFeed, watcher: Any) -> bool:
        done = some(feed, watcher)
        feed._complete(watcher, watcher.sent_version)
        return done

    patch.setattr(ViewFeed, "_some", skip)


@breaks(checks.BOUNDS)
def streams_are_never_full(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enqueue, "_make_room", lambda *given: None)


@breaks(checks.BOUNDS)
def slow_readers_go_unnoticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConnectionTable, "congested", lambda peers, connection, on: None)


@breaks(checks.BOUNDS)
def settled_ids_are_never_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Channel, "trim", lambda *given, **more: 0)


@breaks(checks.BOUNDS)
def observations_pile_up(patch: pytest.MonkeyPatch) -> None:
    observe = CommitLog.observe_settle

    def unbounded(log: Any, *given: Any) -> None:
        log.observed = 0
        observe(log, *given)

    patch.setattr(CommitLog, "observe_settle", unbounded)


@breaks(checks.BOUNDS)
def held_back_peers_are_read_anyway(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimConnection, "hold", lambda pipe, on: None)


@breaks(checks.FAILURES)
def a_failed_record_is_delivered_for_ever(patch: pytest.MonkeyPatch) -> None:
    has_failed = settle._has_failed
    patch.setattr(settle, "_has_failed", lambda record: has_failed(record) and False)


@breaks(checks.FAILURES)
def a_lost_connection_is_nobodys_business(patch: pytest.MonkeyPatch) -> None:
    lose = settle._lose

    def forget(state: Any, now: Any, record: Any, by: Any) -> None:
        lose(state, now, record, by)
        record.abandoned = 0

    patch.setattr(settle, "_lose", forget)


@breaks(checks.FAILURES)
def a_release_counts_as_a_lost_connection(patch: pytest.MonkeyPatch) -> None:
    give_back = settle._give_back

    def count(state: Any, now: Any, record: Any, by: Any, delay_us: int = 0) -> None:
        record.abandoned += 2
        give_back(state, now, record, by, delay_us)

    patch.setattr(settle, "_give_back", count)


@breaks(checks.FAILURES)
def recovery_forgets_failures(patch: pytest.MonkeyPatch) -> None:
    recovered = QueueMachine.recovered

    def forgetful(state: Any, now: Any) -> None:
        for channel in state.channels.values():
            for record in channel.live.values():
                record.failures = 0
        recovered(state, now)

    patch.setattr(QueueMachine, "recovered", forgetful)


@breaks(checks.BAD_INPUT)
def short_leases_are_accepted(patch: pytest.MonkeyPatch) -> None:
    for module in (
        "operations.settle",
        "sessions.pull",
        "sessions.subscribe",
        "sessions.control.subscriptions",
    ):
        patch.setattr(f"penstock.dialects.courier.{module}.check_lease", lambda machine, lease_ms: 0)


@breaks(checks.BAD_INPUT)
def a_bad_line_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControlSession, "_bad_line", lambda *given: None)


@breaks(checks.BAD_INPUT)
def errors_have_no_hint(patch: pytest.MonkeyPatch) -> None:
    wire = Refusal.wire
    patch.setattr(Refusal, "wire", lambda refusal: {**wire(refusal), "hint": ""})


@breaks(checks.ANSWERS)
def errors_overtake_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Answers, "add", lambda answers, data: answers.session.out.append(data))


@breaks(checks.VISIBLE)
def records_are_ready_before_their_commit(patch: pytest.MonkeyPatch) -> None:
    admit = enqueue.admit

    def eager(state: Any, now: Any, channel: Channel, fresh: list[Any], size: int) -> None:
        admit(state, now, channel, fresh, size)
        for record in fresh:
            channel.counters.in_ += 1
            channel.make_ready(record, 0)

    patch.setattr(enqueue, "admit", eager)


RARE = (a_lapsed_lease_still_acks,)
"""Faults that take many storms to show; others of the same checker show at once."""


@pytest.mark.promise("Invariants", "every invariant checker detects a planted fault")
@pytest.mark.parametrize(
    ("invariant", "plant"),
    [
        pytest.param(*mutant, id=mutant[1].__name__, marks=[pytest.mark.more] if mutant[1] in RARE else [])
        for mutant in MUTANTS
    ],
)
def test_a_planted_fault_is_named(invariant: str, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Broken) as caught:
        weather_storms()
    assert caught.value.invariant == invariant


def weather_storms() -> None:
    for seed in range(SEEDS):
        storm(seed).run(STEPS)
