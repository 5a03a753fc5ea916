"""Small parts of the core, each compared with an obvious slow implementation."""

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from penstock.core.deadline_heap import SWEEP_MIN, Timers
from penstock.core.queue.counters import (
    LATENCY_HALF_US,
    RATE_WINDOW_S,
    SECOND_US,
    Latencies,
    MinuteRate,
    bucket_of,
    bucket_us,
)
from penstock.core.queue.policy import Retry
from penstock.core.queue.ready_order import SeqOrder
from penstock.core.records import Record

durations = st.integers(0, 1 << 36)


class Alarm:
    """Something that waits."""

    def __init__(self, no: int) -> None:
        self.no = no
        self.ticket = 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), st.integers(0, 5), st.integers(0, 100)),
        st.tuples(st.just("disarm"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("wake"), st.just(0), st.integers(0, 40)),
        st.tuples(st.just("sweep"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(steps)
def test_timers_wake_what_is_due_in_order_and_nothing_else(steps: list[tuple[str, int, int]]) -> None:
    timers: Timers[Alarm] = Timers()
    timers._sweep_at = 0
    alarms = [Alarm(no) for no in range(6)]
    armed: dict[int, tuple[int, int]] = {}
    now = 0
    for order, (what, no, us) in enumerate(steps):
        match what:
            case "arm":
                timers.arm(now + us, alarms[no])
                armed[no] = (now + us, order)
            case "disarm":
                alarms[no].ticket = 0
                armed.pop(no, None)
            case "sweep":
                timers.sweep()
                timers._sweep_at = 0
            case _:
                now += us
                due = sorted((when, no) for no, when in armed.items() if when[0] <= now)
                woken = []
                while (alarm := timers.pop_due(now)) is not None:
                    alarm.ticket = 0
                    woken.append(alarm.no)
                assert woken == [no for _, no in due]
                for no_ in woken:
                    del armed[no_]
        assert timers.next_deadline() == min((when for when, _ in armed.values()), default=None)


def test_stale_timers_are_swept_before_they_are_the_majority() -> None:
    timers: Timers[Alarm] = Timers()
    alarm = Alarm(0)
    for us in range(3 * SWEEP_MIN):
        timers.arm(us, alarm)
        timers.sweep()
    assert len(timers.heap) <= SWEEP_MIN


@given(st.lists(st.tuples(st.integers(0, 4 * SECOND_US), st.integers(1, 50)), max_size=40), st.integers(0, 30))
def test_a_rate_is_the_mean_of_the_whole_seconds_before(events: list[tuple[int, int]], later_s: int) -> None:
    rate = MinuteRate()
    now = 0
    seen: list[tuple[int, int]] = []
    for gap, n in events:
        now += gap
        rate.add(now, n)
        seen.append((now // SECOND_US, n))
    second = now // SECOND_US + later_s
    expected = sum(n for at, n in seen if second - RATE_WINDOW_S <= at < second)
    assert rate.per_second(second * SECOND_US) == expected / RATE_WINDOW_S


@given(durations, durations)
def test_buckets_keep_the_order_of_durations(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert bucket_of(low) <= bucket_of(high)


@given(durations)
def test_a_bucket_says_no_less_than_the_duration_and_hardly_more(us: int) -> None:
    told = bucket_us(bucket_of(us))
    assert us <= told <= us * 1.125


def test_every_bucket_follows_the_one_before_without_a_gap() -> None:
    for before, after in pairwise(range(bucket_of(1 << 36))):
        assert bucket_of(bucket_us(before) + 1) == after


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_that_of_the_sorted_list(waits: list[int], share: float) -> None:
    latencies = Latencies()
    for us in waits:
        latencies.add(0, us)
    rank = next(n for n in range(1, len(waits) + 1) if n >= share * len(waits))
    expected = bucket_us(bucket_of(sorted(waits)[rank - 1]))
    assert latencies.percentiles_us(0, (share,)) == [expected]
    assert latencies.percentiles_us(LATENCY_HALF_US, (share,)) == [expected]
    assert latencies.percentiles_us(3 * LATENCY_HALF_US, (share,)) == [0]


@given(
    st.builds(
        Retry,
        base_us=st.integers(1, 10**7),
        factor=st.floats(1.0, 10.0),
        max_us=st.integers(1, 10**9),
        jitter=st.floats(0.0, 1.0),
    ),
    st.integers(1, 10_000),
    st.floats(0.0, 1.0),
)
def test_a_retry_waits_longer_each_time_up_to_its_bound(retry: Retry, failures: int, draw: float) -> None:
    delay = retry.delay_us(failures, draw)
    assert 0 <= delay <= retry.max_us
    assert retry.delay_us(failures, 0.0) <= retry.delay_us(failures + 1, 0.0)
    assert delay <= retry.delay_us(failures, 0.0)
    assert delay >= int(retry.delay_us(failures, 0.0) * (1.0 - retry.jitter)) - 1
    assert retry.delay_us(1, 0.0) == min(retry.base_us, retry.max_us)


@given(st.lists(st.integers(0, 30), unique=True, max_size=20), st.data())
def test_head_first_is_a_sorted_list(seqs: list[int], data: st.DataObject) -> None:
    ready = SeqOrder()
    records = {}
    for seq in seqs:
        record = Record(str(seq), "t", b"", seq=seq)
        records[seq] = record
        (ready.append if seq % 2 else ready.appendleft)(record)
    gone = data.draw(st.lists(st.sampled_from(seqs), unique=True)) if seqs else []
    for seq in gone:
        ready.remove(records[seq])
    left = sorted(set(seqs) - set(gone))
    assert [record.seq for record in ready] == left
    assert len(ready) == len(left)
    assert [ready.popleft().seq for _ in left] == left
