"""A topic: the numbers of its messages follow from what it holds, and its costs are counted."""

from __future__ import annotations

from hashlib import sha256

import pytest

from penstock.core.relay.topic import HELD_COST, Remembered, Topic, cost_of, hash_of
from tests.core.relay.test_machine import T, at, message, publish, registered


def topic(count_max: int = 3, **facts: int) -> Topic:
    return Topic(T, Remembered("hash", "signer", 10, **facts), 0, count_max)


def test_the_next_message_of_an_empty_topic_is_the_first() -> None:
    empty = topic(seq=7)
    assert (empty.first, empty.seq, empty.newest_sent, empty.forwarded) == (1, 0, 0, 0)
    assert empty.base == 7


def test_the_oldest_held_message_has_the_number_after_the_dropped_ones() -> None:
    relay = registered(max_pending_per_topic=3)
    for number in range(5):
        publish(relay, number, number)
    held = relay.topics[T]
    assert (held.first, held.seq, len(held.held)) == (3, 5, 3)
    assert list(held.held) == [message(number) for number in (2, 3, 4)]


def test_bytes_in_leaves_out_the_overhead_of_holding() -> None:
    relay = registered()
    for number in range(3):
        publish(relay, number, number, size=20)
    held = relay.topics[T]
    assert held.bytes_in == 60
    assert held.bytes == 3 * (20 + HELD_COST)


def test_messages_count_as_forwarded_once_they_are_sent() -> None:
    relay = registered()
    publish(relay, 0, 0)
    held = relay.topics[T]
    assert (held.forwarded, held.newest_sent) == (0, 0)
    relay.subscribe(at(10), T)
    publish(relay, 20, 1)
    assert (held.forwarded, held.newest_sent) == (2, 2)


@pytest.mark.parametrize("parts", [b"abc", (b"a", b"bc")])
def test_the_cost_of_a_message_is_its_bytes_and_the_overhead(parts: bytes | tuple[bytes, ...]) -> None:
    assert cost_of(parts) == 3 + HELD_COST


def test_reports_name_a_topic_by_a_hash_that_does_not_reveal_it() -> None:
    assert hash_of(T) == hash_of(T) != hash_of(b"b" * 64)
    assert T.decode() not in hash_of(T)
    assert hash_of(T) == sha256(T).hexdigest()
