"""The writer: one message in flight, and no outcome is guessed."""

import pytest

from penstock.core.cluster.messages import cut
from penstock.core.cluster.reader import LogDamage
from penstock.core.cluster.writer import (
    REWOUND_AFTER_US,
    Found,
    Full,
    Kept,
    Passed,
    Publish,
    Resolved,
    Seek,
    ShardWriter,
    Unknown,
)
from tests.core.cluster.logs import LONG, Log

KEPT, DEPOSED = Resolved("kept"), Resolved("deposed")


class Owner:
    """A writer and the stream it writes to."""

    def __init__(self, log: Log, name: str) -> None:
        self.log = log
        self.writer = ShardWriter(Log.reader_of(log))
        assert self.keep(self.writer.take_over(0, name, "aa")) == KEPT

    def keep(self, step: object) -> object:
        """The stream has room and answers."""
        assert isinstance(step, Publish)
        assert step.after == len(self.log.messages)
        self.log.add(step.message)
        return self.writer.published(10, Kept(step.after + 1))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def owner(log: Log) -> Owner:
    return Owner(log, "a")


def test_an_epoch_begins_with_a_marker(owner: Owner, log: Log) -> None:
    assert [message.header.split()[:3] for message in log.messages] == [["1.0.1/1", "epoch", "0+0"]]
    assert owner.writer.epoch == 1
    assert not owner.writer.is_busy


def test_the_parts_of_a_frame_go_one_by_one(owner: Owner, log: Log) -> None:
    step = owner.writer.append(20, "rows", LONG, 3)
    step = owner.keep(step)
    assert isinstance(step, Publish)
    assert step.message.part == 2
    assert owner.keep(step) == KEPT
    assert log.reader.end == owner.writer.reader.end
    assert log.reader.end.offset == 3


def test_the_lease_counts_from_when_a_kept_message_was_first_sent(owner: Owner, log: Log) -> None:
    writer = owner.writer
    step = writer.append(20, "rows", b"x", 1)
    assert writer.published(1_000, Unknown()) == Seek(1)
    again = writer.sought(2_000, log.after(1))
    assert again == step, "the same bytes"
    assert owner.keep(again) == KEPT
    assert writer.proven_us == 20


def test_an_unknown_outcome_that_was_kept_is_found(owner: Owner, log: Log) -> None:
    step = owner.writer.append(20, "rows", b"x", 1)
    log.add(step.message)
    assert owner.writer.published(30, Unknown()) == Seek(1)
    assert owner.writer.sought(40, log.after(1)) == KEPT


def test_a_refusal_may_be_the_work_of_an_earlier_copy(owner: Owner, log: Log) -> None:
    step = owner.writer.append(20, "rows", b"x", 1)
    owner.writer.published(30, Unknown())
    assert owner.writer.sought(40, log.after(1)) == step
    log.add(step.message)  # the first copy, late
    assert owner.writer.published(50, Passed()) == Seek(1)
    assert owner.writer.sought(60, log.after(1)) == KEPT


def test_fullness_is_no_refusal_while_an_earlier_copy_may_arrive(owner: Owner, log: Log) -> None:
    owner.writer.append(20, "rows", b"x", 1)
    owner.writer.published(30, Unknown())
    owner.writer.sought(40, log.after(1))
    assert owner.writer.published(50, Full()) == Seek(1)


def test_a_stream_without_room_refuses(owner: Owner, log: Log) -> None:
    owner.writer.append(20, "rows", b"x", 1)
    assert owner.writer.published(30, Full()) == Resolved("full")
    assert owner.keep(owner.writer.append(40, "idle")) == KEPT


def test_a_stream_that_fills_up_within_a_frame_needs_a_new_epoch(owner: Owner, log: Log) -> None:
    writer = owner.writer
    owner.keep(writer.append(20, "rows", LONG, 3))
    assert writer.published(30, Full()) == Resolved("full")
    assert writer.has_remains
    assert owner.keep(writer.take_over(40, "a", "bb")) == KEPT
    assert not writer.has_remains
    assert (log.reader.end.offset, log.reader.unfinished) == (0, 1)
    assert owner.keep(writer.append(50, "rows", b"x", 1)) == KEPT


def test_an_owner_is_deposed_by_a_higher_epoch(owner: Owner, log: Log) -> None:
    owner.writer.append(20, "rows", b"x", 1)
    log.begin(2, "b")
    assert owner.writer.published(30, Passed()) == Seek(1)
    assert owner.writer.sought(40, log.after(1)) == DEPOSED
    assert owner.writer.reader.end.seq == 1, "what the other wrote is still to be read"


def test_of_two_candidates_one_wins(log: Log) -> None:
    first, second = ShardWriter(Log.reader_of(log)), ShardWriter(Log.reader_of(log))
    log.add(first.take_over(0, "a", "aa").message)
    second.take_over(0, "a", "bb")  # even of the same name
    second.published(10, Unknown())
    assert second.sought(20, log.after(0)) == DEPOSED
    first.published(10, Unknown())
    assert first.sought(20, log.after(0)) == KEPT


def test_a_void_message_is_stepped_over(log: Log) -> None:
    first = Owner(log, "a")
    late = first.writer.append(20, "rows", b"late", 1).message
    second = Owner(log, "b")
    log.add(late)
    step = second.writer.append(30, "rows", b"x", 1)
    assert second.writer.published(40, Passed()) == Seek(2)
    assert second.writer.sought(50, log.after(2)) == Publish(step.message, 3)
    assert second.keep(Publish(step.message, 3)) == KEPT
    assert second.writer.reader.voids == 1


def test_a_place_that_was_purged_leaves_the_outcome_unknown(owner: Owner) -> None:
    owner.writer.append(20, "rows", b"x", 1)
    owner.writer.published(30, Unknown())
    assert owner.writer.sought(40, Found([], 90, first=80)) == Resolved("behind")


def test_a_second_writer_of_the_epoch_is_damage(owner: Owner, log: Log) -> None:
    owner.writer.append(20, "rows", b"x", 1)
    log.write("rows", b"other", rows=1)
    owner.writer.published(30, Passed())
    step = owner.writer.sought(40, log.after(1))
    assert isinstance(step, Resolved)
    assert isinstance(step.verdict, LogDamage)
    assert "owner of that epoch did not write it" in step.verdict.what


def test_a_higher_epoch_that_does_not_follow_what_was_kept_is_damage(owner: Owner, log: Log) -> None:
    """The servers lost what they had acknowledged, and another node went on without it."""
    owner.keep(owner.writer.append(20, "rows", b"kept", 1))
    owner.writer.append(30, "rows", b"x", 1)
    [marker] = cut("epoch", b"b 00", epoch=2, number=0, first=1, previous=123)
    owner.writer.published(40, Passed())
    step = owner.writer.sought(50, Found([(3, marker)], 3))
    assert isinstance(step, Resolved)
    assert isinstance(step.verdict, LogDamage)


@pytest.mark.promise("Cluster", "a stream that lost what it had acknowledged halts its shard")
def test_a_stream_that_stays_short_of_what_was_kept_is_damage(owner: Owner, log: Log) -> None:
    owner.keep(owner.writer.append(20, "rows", b"kept", 1))
    owner.writer.append(30, "rows", b"x", 1)
    owner.writer.published(40, Passed())
    short = Found([], 1)
    assert owner.writer.sought(50, short) == Seek(2), "a leader without a majority may say so"
    step = owner.writer.sought(50 + REWOUND_AFTER_US, short)
    assert step == Resolved(LogDamage("s", 2, "it ends at 1, and 2 was kept"))


def test_a_stream_that_was_short_for_a_moment_is_sound(owner: Owner, log: Log) -> None:
    owner.keep(owner.writer.append(20, "rows", b"kept", 1))
    step = owner.writer.append(30, "rows", b"x", 1)
    owner.writer.published(40, Passed())
    assert owner.writer.sought(50, Found([], 1)) == Seek(2)
    assert owner.writer.sought(REWOUND_AFTER_US, Unknown()) == Seek(2)
    assert owner.writer.sought(2 * REWOUND_AFTER_US, Found([], 1)) == Seek(2)
    assert owner.writer.sought(2 * REWOUND_AFTER_US, log.after(2)) == step
