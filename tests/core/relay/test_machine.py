"""The relay's machine: what it holds, forwards, replays and drops, and when a topic ends."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.relay.bounds import RelayLimits
from penstock.core.relay.machine import Relay
from penstock.core.relay.topic import HELD_COST, Message, Remembered, Topic, cost_of, hash_of

T = b"a" * 64
OTHER = b"b" * 64
WALL_US = 1_700_000_000_000_000
LATER_S = WALL_US // 1_000_000 + 3_600
SIGNER = "signer"


def at(ms: int) -> Now:
    return Now(1_000_000 + ms * 1000, WALL_US + ms * 1000)


def mark_of(message: Message) -> bytes:
    """The messages of these tests begin with their mark."""
    return message[2] if isinstance(message, tuple) else message[:4]


def make(**limits: Any) -> Relay:
    return Relay(RelayLimits(**limits), mark_of)


def registered(now: Now | None = None, name: bytes = T, **limits: Any) -> Relay:
    relay = make(**limits)
    assert isinstance(relay.register(now or at(0), name, SIGNER, LATER_S), Topic)
    return relay


def message(no: int, size: int = 20) -> bytes:
    return b"%04d" % no + b"." * (size - 4)


def publish(relay: Relay, ms: int, no: int, name: bytes = T, size: int = 20) -> bool:
    """Whether it was to be forwarded."""
    return relay.publish(at(ms).us, name, message(no, size), size) is not None


# Hold, flush, forward


@pytest.mark.promise("Relay", "messages are held, flushed once, forwarded and kept, byte for byte")
def test_held_until_subscribed_then_flushed_once_in_order_then_forwarded():
    relay = registered()
    assert [publish(relay, no, no) for no in range(3)] == [False, False, False]
    assert relay.subscribe(at(10), T) == [message(no) for no in range(3)]
    assert publish(relay, 20, 3)
    sums = relay.sums()
    assert (sums.messages, sums.forwarded, sums.replayed, sums.lost) == (4, 4, 0, 0)
    assert list(relay.unsent()) == []


def test_an_unregistered_topic_receives_nothing():
    relay = registered()
    assert not publish(relay, 0, 1, OTHER)
    assert relay.totals.unregistered == 1
    assert relay.bytes == 0


def test_a_block_is_forwarded_as_its_frames():
    relay = registered()
    block = (T, b"body", b"m" * 16)
    relay.publish(at(0).us, T, block, sum(map(len, block)))
    assert relay.subscribe(at(1), T) == [block]
    assert relay.bytes == cost_of(block) == HELD_COST + 84


def test_unsent_messages_are_named_at_the_end():
    relay = registered()
    publish(relay, 0, 1)
    publish(relay, 0, 2)
    assert [(topic.name, count) for topic, count in relay.unsent()] == [(T, 2)]


# Bounds


@pytest.mark.promise("Relay", "lost messages are counted, and a missing mark is reported (flaws 13, 14)")
def test_beyond_the_count_the_oldest_go_and_are_counted_as_lost():
    relay = registered(max_pending_per_topic=3)
    for no in range(5):
        publish(relay, 0, no)
    assert relay.sums().lost == 2
    assert relay.subscribe(at(1), T) == [message(no) for no in (2, 3, 4)]
    for no in range(5, 9):  # these were sent: letting them go loses nothing
        assert publish(relay, 2, no)
    assert relay.sums().lost == 2
    assert len(relay.topics[T].held) == len(relay.topics[T].times) == 3


@pytest.mark.promise("Relay", "bytes, topics and messages are bounded (flaw 17)")
def test_beyond_a_topics_bytes_the_oldest_go():
    relay = registered(topic_bytes_max=3 * (HELD_COST + 20))
    for no in range(5):
        publish(relay, 0, no)
    assert [mark_of(held) for held in relay.topics[T].held] == [b"0002", b"0003", b"0004"]
    assert relay.sums().lost == 2


@pytest.mark.promise("Relay", "bytes, topics and messages are bounded (flaw 17)")
def test_beyond_all_bytes_a_topic_pays_with_its_own_messages():
    relay = registered(bytes_max=2 * (HELD_COST + 20))
    relay.register(at(0), OTHER, SIGNER, LATER_S)
    publish(relay, 0, 1)
    publish(relay, 0, 2, OTHER)
    publish(relay, 0, 3)
    assert [mark_of(held) for held in relay.topics[T].held] == [b"0003"]
    assert [mark_of(held) for held in relay.topics[OTHER].held] == [b"0002"]


def test_a_message_that_finds_no_room_is_forwarded_and_not_kept():
    relay = registered(bytes_max=HELD_COST + 20)
    relay.register(at(0), OTHER, SIGNER, LATER_S)
    publish(relay, 0, 1)
    relay.subscribe(at(0), OTHER)
    assert publish(relay, 1, 2, OTHER)
    assert relay.totals.unkept == 1
    assert not relay.topics[OTHER].held
    assert relay.bytes == HELD_COST + 20
    assert relay.sums().lost == 0


def test_an_oversized_message_is_dropped_and_counted():
    relay = registered(message_max=50)
    relay.subscribe(at(0), T)
    assert publish(relay, 0, 1, size=50)
    assert not publish(relay, 0, 2, size=51)
    assert relay.totals.oversized == 1


@pytest.mark.promise("Relay", "bytes, topics and messages are bounded (flaw 17)")
def test_topics_are_bounded_in_all_and_for_a_signer():
    relay = make(topics_max=2, signer_topics_max=1)
    assert isinstance(relay.register(at(0), T, "one", LATER_S), Topic)
    refusal = relay.register(at(0), OTHER, "one", LATER_S)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.ref) == ("QuotaExceeded", "signer_topics_max")
    assert isinstance(relay.register(at(0), OTHER, "two", LATER_S), Topic)
    refusal = relay.register(at(0), b"c" * 64, "three", LATER_S)
    assert isinstance(refusal, Refusal)
    assert refusal.ref == "topics_max"
    assert relay.totals.refused == 2


def test_old_messages_go_at_the_next_compaction_and_are_not_flushed_before_it():
    relay = registered(message_ttl=1.0)
    publish(relay, 0, 1)
    publish(relay, 900, 2)
    assert relay.subscribe(at(1_500), T) == [message(2)]
    assert relay.sums().lost == 1
    relay.compact(at(1_500))
    assert [mark_of(held) for held in relay.topics[T].held] == [b"0002"]
    assert relay.sums().lost == 1


# Registrations


@pytest.mark.promise("Relay", "the signer can extend its topic, and another signer cannot take it over (flaw 8)")
def test_the_same_signer_extends_its_topic_and_keeps_the_queue():
    relay = registered()
    publish(relay, 0, 1)
    topic = relay.register(at(1), T, SIGNER, LATER_S + 100)
    assert isinstance(topic, Topic)
    assert topic.expires_us == (LATER_S + 100) * 1_000_000
    relay.register(at(2), T, SIGNER, LATER_S - 100)
    assert topic.expires_us == (LATER_S + 100) * 1_000_000
    assert relay.subscribe(at(3), T) == [message(1)]


@pytest.mark.promise("Relay", "the signer can extend its topic, and another signer cannot take it over (flaw 8)")
def test_another_signer_is_refused_and_changes_nothing():
    relay = registered()
    publish(relay, 0, 1)
    refusal = relay.register(at(1), T, "thief", LATER_S + 100)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "Forbidden"
    assert relay.topics[T].expires_us == LATER_S * 1_000_000
    assert relay.subscribe(at(2), T) == [message(1)]


def test_a_registration_ends_with_its_time_and_lives_no_longer_than_allowed():
    relay = make(lifetime_max_s=10)
    assert isinstance(relay.register(at(0), T, SIGNER, WALL_US // 1_000_000), Refusal)
    relay.register(at(0), T, SIGNER, LATER_S)
    assert relay.compact(at(9_000)) == []
    assert [(ended.hash, ended.reason) for ended in relay.compact(at(10_001))] == [(hash_of(T), "expired")]
    assert not relay.topics
    assert relay._signers == {}


@pytest.mark.promise("Relay", "a slow first token keeps its topic (flaw 7)")
def test_a_slow_first_token_keeps_its_topic():
    relay = registered()
    assert relay.compact(at(59_000)) == []
    publish(relay, 59_500, 1)
    assert relay.compact(at(200_000)) == []  # it is used, however empty its queue has become
    assert not relay.topics[T].held


@pytest.mark.promise("Relay", "a slow first token keeps its topic (flaw 7)")
def test_an_unused_topic_ends():
    relay = registered()
    assert [ended.reason for ended in relay.compact(at(60_000))] == ["idle"]


# Subscribers that come and go


@pytest.mark.promise("Relay", "a subscriber that left can resume its stream (flaws 2, 4)")
def test_a_subscriber_that_is_gone_leaves_the_buffer_for_its_return():
    relay = registered()
    relay.subscribe(at(0), T)
    assert publish(relay, 1, 1)
    relay.unsubscribe(at(2), T)
    assert not publish(relay, 3, 2)
    assert relay.compact(at(20_000)) == []
    assert relay.subscribe(at(20_001), T) == [message(1), message(2)]
    sums = relay.sums()
    assert (sums.forwarded, sums.replayed, sums.lost) == (2, 1, 0)


@pytest.mark.promise("Relay", "a subscriber that left can resume its stream (flaws 2, 4)")
def test_a_topic_ends_when_its_subscriber_stays_away():
    relay = registered()
    relay.subscribe(at(0), T)
    relay.unsubscribe(at(1_000), T)
    assert relay.compact(at(30_999)) == []
    assert [ended.reason for ended in relay.compact(at(31_000))] == ["unsubscribed"]


def test_the_first_of_two_subscribers_to_leave_stops_nothing():
    relay = registered()
    relay.subscribe(at(0), T)
    relay.subscribe(at(0), T)
    relay.unsubscribe(at(1), T)
    assert publish(relay, 2, 1)
    assert relay.compact(at(100_000)) == []


def test_who_unsubscribes_without_having_subscribed_changes_nothing():
    relay = registered()
    relay.unsubscribe(at(0), T)
    relay.unsubscribe(at(0), OTHER)
    relay.subscribe(at(1), T)
    assert publish(relay, 2, 1)


@pytest.mark.promise("Relay", "subscribers may connect before the registration (flaw 6)")
def test_a_subscriber_that_comes_before_the_registration_is_remembered():
    relay = make()
    assert relay.subscribe(at(0), T) == []
    relay.register(at(1), T, SIGNER, LATER_S)
    assert publish(relay, 2, 1)


@pytest.mark.promise("Relay", "subscribers may connect before the registration (flaw 6)")
def test_early_subscribers_are_bounded_and_the_oldest_make_room_in_time():
    relay = make(early_max=1)
    relay.subscribe(at(0), T)
    relay.subscribe(at(0), OTHER)
    assert list(relay.early) == [T]
    assert relay.totals.early_forgotten == 1
    relay.subscribe(at(30_000), OTHER)
    assert list(relay.early) == [OTHER]
    assert relay.totals.early_forgotten == 2


@pytest.mark.promise("Relay", "subscribers may connect before the registration (flaw 6)")
def test_an_early_subscriber_that_waited_long_is_neither_missed_nor_counted_out_of_others():
    relay = make()
    relay.subscribe(at(0), T)
    relay.compact(at(60_000))
    relay.register(at(60_001), T, SIGNER, LATER_S)
    assert publish(relay, 60_002, 1)
    relay.subscribe(at(60_003), T)
    relay.unsubscribe(at(60_004), T)
    assert publish(relay, 60_005, 2)


def test_an_early_subscriber_that_leaves_is_not_waited_for():
    relay = make()
    relay.subscribe(at(0), T)
    relay.unsubscribe(at(1), T)
    relay.register(at(2), T, SIGNER, LATER_S)
    assert not publish(relay, 3, 1)


def test_subscribers_of_a_topic_that_expired_hear_it_when_it_is_registered_again():
    relay = make(lifetime_max_s=10)
    relay.register(at(0), T, SIGNER, LATER_S)
    relay.subscribe(at(1), T)
    assert len(relay.compact(at(11_000))) == 1
    relay.register(at(11_001), T, SIGNER, LATER_S)
    assert publish(relay, 11_002, 1)


# Replays


@pytest.mark.promise("Relay", "replays are spaced and combined (flaw 3)")
def test_replays_of_a_topic_are_spaced_and_become_one():
    relay = registered(replay_interval_ms=100)
    publish(relay, 0, 1)
    assert relay.subscribe(at(0), T) == [message(1)]
    publish(relay, 1, 2)
    publish(relay, 1, 3)
    assert relay.resume(at(10), T, b"0002").messages == []
    assert relay.subscribe(at(20), T) == []
    assert relay.next_replay_us() == at(100).us
    assert relay.due_replays(at(99)) == []
    due = relay.due_replays(at(100))
    assert [messages for _, messages in due] == [[message(1), message(2), message(3)]]
    assert relay.next_replay_us() is None
    assert relay.sums().replayed == 3


@pytest.mark.promise("Relay", "replays are spaced and combined (flaw 3)")
def test_what_comes_while_the_only_subscriber_waits_for_its_replay_goes_out_behind_it():
    relay = registered(replay_interval_ms=100)
    publish(relay, 0, 1)
    relay.subscribe(at(0), T)
    relay.unsubscribe(at(10), T)
    assert relay.subscribe(at(20), T) == []
    assert not publish(relay, 30, 2)
    assert relay.due_replays(at(100))[0][1] == [message(1), message(2)]
    assert publish(relay, 110, 3)
    sums = relay.sums()
    assert (sums.forwarded, sums.replayed) == (3, 1)


def test_a_replay_for_a_subscriber_that_left_is_not_sent():
    relay = registered()
    publish(relay, 0, 1)
    relay.subscribe(at(0), T)
    relay.unsubscribe(at(1), T)
    relay.subscribe(at(2), T)
    relay.unsubscribe(at(3), T)
    assert relay.due_replays(at(1_000)) == []


def test_resume_sends_what_followed_the_mark():
    relay = registered()
    relay.subscribe(at(0), T)
    for no in range(5):
        publish(relay, 1, no)
    outcome = relay.resume(at(200), T, b"0002")
    assert outcome.found
    assert outcome.messages == [message(3), message(4)]
    assert relay.resume(at(400), T, b"0004") == (True, [], False)


def test_a_mark_that_is_only_mentioned_is_not_found():
    relay = registered()
    relay.subscribe(at(0), T)
    relay.publish(at(1).us, T, b"0001 follows 0000", 17)
    assert not relay.resume(at(200), T, b"0000").found


def test_resume_finds_a_block_by_its_mac():
    relay = registered()
    relay.subscribe(at(0), T)
    blocks = [(T, b"body%d" % no, b"%016d" % no) for no in range(3)]
    for block in blocks:
        relay.publish(at(1).us, T, block, sum(map(len, block)))
    assert relay.resume(at(200), T, b"%016d" % 0).messages == blocks[1:]


@pytest.mark.promise("Relay", "lost messages are counted, and a missing mark is reported (flaws 13, 14)")
def test_a_missing_mark_is_reported_at_a_bounded_rate():
    relay = registered(max_pending_per_topic=2, replay_interval_ms=100)
    relay.subscribe(at(0), T)
    for no in range(4):
        publish(relay, 1, no)
    assert relay.resume(at(10), T, b"0000") == (False, [], True)
    assert relay.resume(at(20), T, b"0000") == (False, [], False)
    assert relay.resume(at(110), T, b"0000") == (False, [], True)
    assert relay.resume(at(120), OTHER, b"0000") == (False, [], True)
    assert relay.totals.resumes_missed == 4


def test_resume_without_a_subscriber_sends_nothing_and_costs_the_next_one_nothing():
    relay = registered()
    publish(relay, 0, 1)
    publish(relay, 0, 2)
    assert relay.resume(at(1), T, b"0001") == (True, [], False)
    assert relay.subscribe(at(2), T) == [message(1), message(2)]


# Restarts


def test_a_registration_is_known_by_its_hash_until_its_topic_is_named():
    for name_it in (
        lambda relay: publish(relay, 1, 1),
        lambda relay: relay.subscribe(at(1), T),
        lambda relay: relay.resume(at(1), T, b"0000"),
        lambda relay: relay.register(at(1), T, SIGNER, LATER_S),
    ):
        relay = make()
        relay.remember([Remembered(hash_of(T), SIGNER, LATER_S * 1_000_000, seq=41)])
        name_it(relay)
        assert list(relay.topics) == [T]
        assert not relay.remembered
        assert relay.topics[T].base == 41
        assert relay.topics[T].signer == SIGNER


def test_a_remembered_topic_is_still_its_signers():
    relay = make()
    relay.remember([Remembered(hash_of(T), SIGNER, LATER_S * 1_000_000)])
    assert isinstance(relay.register(at(0), T, "thief", LATER_S), Refusal)


def test_a_remembered_registration_expires_and_counts_against_the_bounds():
    relay = make(topics_max=1)
    expires_us = at(5_000).wall_us
    relay.remember([Remembered(hash_of(T), SIGNER, expires_us), Remembered(hash_of(OTHER), SIGNER, expires_us)])
    assert list(relay.remembered) == [hash_of(T)]
    assert isinstance(relay.register(at(0), OTHER, SIGNER, LATER_S), Refusal)
    assert relay.compact(at(4_999)) == []
    ended = relay.compact(at(5_000))
    assert [(each.hash, each.reason, each.topic) for each in ended] == [(hash_of(T), "expired", None)]
    assert isinstance(relay.register(at(6_000), OTHER, SIGNER, LATER_S), Topic)


def test_a_busy_topic_asks_to_be_counted():
    relay = registered()
    for no in range(600):
        publish(relay, 0, no % 10_000)
    assert list(relay.counted) == [relay.topics[T]]


# Whatever happens, in whatever order


class Driven(RuleBasedStateMachine):
    """A relay compared with a model: what each subscriber must have received, and what must be kept."""

    LIMITS = RelayLimits(
        max_pending_per_topic=4,
        message_ttl=2.0,
        topic_bytes_max=4 * HELD_COST + 90,
        bytes_max=6 * HELD_COST + 200,
        replay_interval_ms=50,
        detach_grace_ms=3_000,
        idle_grace_ms=3_000,
        early_ms=3_000,
    )

    def __init__(self) -> None:
        super().__init__()
        self.relay = Relay(self.LIMITS, mark_of)
        self.ms = 0
        self.no = 0
        self.sent: dict[bytes, list[bytes]] = {T: [], OTHER: []}
        self.published: dict[bytes, list[bytes]] = {T: [], OTHER: []}

    names = st.sampled_from([T, OTHER])

    def heard(self, name: bytes, messages: list[Message]) -> None:
        for each in messages:
            self.sent[name].append(mark_of(each) if isinstance(each, tuple) else each)

    @rule(name=names, exp=st.integers(1, 20))
    def register(self, name: bytes, exp: int) -> None:
        self.relay.register(at(self.ms), name, SIGNER, at(self.ms).wall_us // 1_000_000 + exp)

    @rule(name=names, size=st.integers(4, 80))
    def publish(self, name: bytes, size: int) -> None:
        self.no += 1
        data = message(self.no, size)
        was_known = name in self.relay.topics or hash_of(name) in self.relay.remembered
        topic = self.relay.publish(at(self.ms).us, name, data, size)
        if was_known:
            self.published[name].append(data)
        if topic is not None:
            assert topic.subscribers
            self.heard(name, [data])

    @rule(burst=st.lists(st.tuples(names, st.integers(4, 60)), min_size=1, max_size=6), is_run=st.booleans())
    def publish_all(self, burst: list[tuple[bytes, int]], is_run: bool) -> None:
        names = [burst[0][0] if is_run else name for name, _ in burst]
        messages = [message(self.no + 1 + index, size) for index, (_, size) in enumerate(burst)]
        self.no += len(burst)
        for name, data in zip(names, messages, strict=True):
            if name in self.relay.topics or hash_of(name) in self.relay.remembered:
                self.published[name].append(data)
        forwarded = self.relay.publish_all(at(self.ms).us, names, messages)
        for name, data in zip(names, messages, strict=True):
            if data in forwarded:
                self.heard(name, [data])

    @rule(name=names, size=st.integers(4, 40))
    def publish_block(self, name: bytes, size: int) -> None:
        self.no += 1
        if name in self.relay.topics or hash_of(name) in self.relay.remembered:
            self.published[name].append(b"%04d" % self.no)
        block = (name, b"." * size, b"%04d" % self.no)
        if self.relay.publish(at(self.ms).us, name, block, sum(map(len, block))) is not None:
            self.heard(name, [block])

    @rule(name=names)
    def subscribe(self, name: bytes) -> None:
        self.heard(name, self.relay.subscribe(at(self.ms), name))

    @rule(name=names)
    def unsubscribe(self, name: bytes) -> None:
        self.relay.unsubscribe(at(self.ms), name)

    @rule(name=names, no=st.integers(0, 60))
    def resume(self, name: bytes, no: int) -> None:
        outcome = self.relay.resume(at(self.ms), name, b"%04d" % no)
        assert outcome.found == any(mark_of(each) == b"%04d" % no for each in self.held(name))
        self.heard(name, outcome.messages)

    def held(self, name: bytes) -> deque[Message]:
        topic = self.relay.topics.get(name)
        return deque() if topic is None else topic.held

    @rule(ms=st.integers(1, 2_500))
    def wait(self, ms: int) -> None:
        self.ms += ms
        for topic, messages in self.relay.due_replays(at(self.ms)):
            self.heard(topic.name, messages)

    @rule()
    def compact(self) -> None:
        self.relay.compact(at(self.ms))

    @precondition(lambda self: self.no > 3)
    @rule()
    def restart(self) -> None:
        known = [Remembered(topic.hash, topic.signer, topic.expires_us) for topic in self.relay.topics.values()]
        self.relay = Relay(self.LIMITS, mark_of)
        self.relay.remember(known)

    @invariant()
    def sends_only_what_was_published_each_in_its_order(self) -> None:
        for name, sent in self.sent.items():
            positions = {data: index for index, data in enumerate(self.published[name])}
            firsts = list(dict.fromkeys(positions[data] for data in sent))  # a KeyError: it was never published
            assert firsts == sorted(firsts)

    @invariant()
    def keeps_every_bound(self) -> None:
        relay, limits = self.relay, self.LIMITS
        assert relay.bytes == sum(topic.bytes for topic in relay.topics.values()) <= limits.bytes_max
        for topic in relay.topics.values():
            assert topic.bytes == sum(map(cost_of, topic.held)) <= limits.topic_bytes_max
            assert len(topic.held) == len(topic.times) <= limits.max_pending_per_topic
            assert list(topic.times) == sorted(topic.times)

    @invariant()
    def loses_track_of_nothing(self) -> None:
        for topic in self.relay.topics.values():
            waiting = min(len(topic.held), topic.seq - topic.newest_sent)
            assert topic.seq == topic.forwarded + topic.lost + waiting
            assert topic.live <= (topic.subscribers > 0)
            if topic.subscribers and not topic.live:
                assert topic.name in self.relay._replays


TestDriven = Driven.TestCase
TestDriven.pytestmark = [
    pytest.mark.promise("Relay", "messages are held, flushed once, forwarded and kept, byte for byte")
]
TestDriven.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("names", [[T] * 4, [T, OTHER, T, OTHER], [OTHER] * 4])
@pytest.mark.parametrize("is_live", [False, True])
@pytest.mark.parametrize("has_block", [False, True])
@pytest.mark.parametrize("bounds", [{"max_pending_per_topic": 5}, {"topic_bytes_max": 400}, {"bytes_max": 700}])
def test_a_burst_is_taken_as_its_messages_would_be_one_by_one(
    names: list[bytes], is_live: bool, has_block: bool, bounds: dict[str, int]
) -> None:
    one, many = registered(**bounds), registered(**bounds)
    for relay in (one, many):
        if is_live:
            relay.subscribe(at(0), T)
        if has_block:
            relay.publish(at(0).us, T, (T, b"a block", b"mark"), 75)
    for first in range(0, 300, 4):
        burst = [message(no, 20 + no % 7) for no in range(first, first + 4)]
        pairs = zip(names, burst, strict=True)
        forwarded = [each for name, each in pairs if one.publish(at(1).us, name, each, len(each)) is not None]
        assert many.publish_all(at(1).us, names, burst) == forwarded
        assert bool(forwarded) == (is_live and T in names)
        assert many.topics[T].held == one.topics[T].held
        assert (many.bytes, many.sums(), len(many.counted)) == (one.bytes, one.sums(), len(one.counted))
    assert many.totals.unregistered == 75 * names.count(OTHER)


@pytest.mark.parametrize("is_one_topics", [False, True])
def test_a_full_relay_makes_room_for_each_message_of_a_burst_and_no_more(is_one_topics: bool) -> None:
    size, held = 20, 400
    relay = registered(bytes_max=held * (HELD_COST + size))
    names = [b"%064x" % number for number in range(1, 41)]
    for name in names:
        relay.register(at(0), name, SIGNER, LATER_S)
        relay.subscribe(at(0), name)
    filled = names[:1] if is_one_topics else names
    relay.publish_all(at(0).us, [filled[no % len(filled)] for no in range(held)], [message(0, size)] * held)
    before = {name: list(relay.topics[name].held) for name in names}
    assert relay.bytes == relay.limits.bytes_max
    wanted = [names[no % len(names)] for no in range(256)]
    burst = [message(no, size) for no in range(256)]
    assert relay.publish_all(at(1).us, wanted, burst) == burst
    assert relay.bytes <= relay.limits.bytes_max
    for number, name in enumerate(names):
        mine = [each for each, owner in zip(burst, wanted, strict=True) if owner == name]
        kept = len(before[name])  # each message takes the place of one of its topic, or finds none
        assert list(relay.topics[name].held) == ((before[name] + mine)[-kept:] if kept else []), number
    assert relay.totals.unkept == (256 - len(burst[:: len(names)]) if is_one_topics else 0)


@pytest.mark.promise("Relay", "a full relay keeps the same messages whether they arrive alone or in bursts")
def test_in_a_full_relay_each_of_several_topics_makes_room_for_its_own_messages() -> None:
    one, many = registered(bytes_max=2_000), registered(bytes_max=2_000)
    for relay in (one, many):
        assert isinstance(relay.register(at(0), OTHER, "anna", LATER_S), Topic)
        relay.subscribe(at(0), T)
        relay.subscribe(at(0), OTHER)
    for first in range(0, 400, 4):
        names = [OTHER if no % 3 else T for no in range(first, first + 4)]
        burst = [message(no, 20 + no % 40 + (1_900 if no == 201 else 0)) for no in range(first, first + 4)]
        forwarded = [
            each for name, each in zip(names, burst, strict=True) if one.publish(at(1).us, name, each, len(each))
        ]
        assert many.publish_all(at(1).us, names, burst) == forwarded == burst
        for name in (T, OTHER):
            assert many.topics[name].held == one.topics[name].held
            assert many.topics[name].bytes == one.topics[name].bytes == sum(map(cost_of, many.topics[name].held))
            assert len(many.topics[name].times) == len(many.topics[name].held)
        assert (many.bytes, many.sums()) == (one.bytes, one.sums())
        assert many.bytes <= 2_000


@pytest.mark.parametrize("name", ["message_ttl", "compact_interval", "max_pending_per_topic"])
def test_the_seeds_settings_have_the_seeds_values(name: str) -> None:
    assert (
        getattr(RelayLimits(), name)
        == {
            "message_ttl": 30,
            "compact_interval": 5,
            "max_pending_per_topic": 1_000,
        }[name]
    )


def test_a_clock_that_jumps_back_loses_no_message_and_ends_no_topic():
    relay = registered()
    assert relay.subscribe(at(0), T) == []
    assert publish(relay, 1, 1)
    back = Now(at(2).us, WALL_US - 86_400_000_000)
    assert relay.compact(back) == [] and relay.topics[T].held
    assert publish(relay, 3, 2)
