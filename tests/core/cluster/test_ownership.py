"""One node's part in one shard: following, taking over, owning, and being deposed."""

import pytest

from penstock.core.cluster.lease import IDLE_EVERY_US, LEASE_US, READ_EVERY_US, SILENCE_US
from penstock.core.cluster.messages import LogMessage
from penstock.core.cluster.ownership import RETRY_US, ShardOwnership
from penstock.core.cluster.reader import LogFrame, ShardReader
from penstock.core.cluster.writer import REWOUND_AFTER_US, Found, Full, Kept, Passed, Publish, Seek, Unknown
from tests.core.cluster.logs import LONG, Log

SECOND = 1_000_000


class Node:
    """An ownership whose operations a test answers."""

    def __init__(self, log: Log, name: str) -> None:
        self.log = log
        self.shard = ShardOwnership(name, ShardReader("s"), lambda count: name.encode() * count)

    def step(self, us: int, *, may_take: bool = True) -> Publish | Seek | None:
        """Do what is next, at once."""
        step = self.shard.next(us, may_take=may_take)
        match step:
            case Publish(message=message, after=after):
                self.publish(us, message, after)
            case Seek(after=after):
                self.shard.sought(us, self.log.after(after))
            case None:
                pass
        return step

    def publish(self, us: int, message: LogMessage, after: int) -> None:
        if after == len(self.log.messages):
            self.log.add(message)
            self.shard.published(us, Kept(after + 1))
        else:
            self.shard.published(us, Passed())

    def commit(self, us: int, payload: bytes = b"rows", rows: int = 1) -> str | None:
        step = self.shard.append(us, payload, rows)
        while isinstance(step, Publish):
            self.publish(us, step.message, step.after)
            step = self.shard.next(us, may_take=True)
        verdict, self.shard.verdict = self.shard.verdict, None
        return verdict

    def own(self, us: int) -> None:
        while self.shard.state != "owning":
            assert us < 100 * SECOND
            self.step(us)
            us += RETRY_US


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def owner(log: Log) -> Node:
    node = Node(log, "a")
    node.own(0)
    return node


def test_an_empty_log_is_taken_at_once(owner: Node, log: Log) -> None:
    assert log.reader.end.owner == "a"
    assert owner.shard.takeovers == 1


def test_only_a_node_that_may_takes_over(log: Log) -> None:
    node = Node(log, "a")
    for us in range(0, 20 * SECOND, RETRY_US):
        node.step(us, may_take=False)
    assert node.shard.state == "following"
    assert node.shard.is_vacant(20 * SECOND)


def test_an_owner_that_is_idle_shows_that_it_lives(owner: Node, log: Log) -> None:
    owner.shard.next(SECOND, may_take=True)
    count = len(log.messages)
    start = 10 * SECOND
    owner.commit(start)
    assert owner.step(start + IDLE_EVERY_US - 1) is None
    owner.step(start + IDLE_EVERY_US)
    assert log.messages[-1].kind == "idle"
    assert len(log.messages) == count + 2


def test_an_owner_serves_until_its_lease_ends_and_again_after_the_next_kept_frame(owner: Node) -> None:
    sent = 10 * SECOND
    assert owner.commit(sent) == "kept"
    assert owner.shard.may_serve(sent + LEASE_US - 1)
    assert not owner.shard.may_serve(sent + LEASE_US)
    owner.step(sent + LEASE_US)
    assert owner.shard.may_serve(sent + LEASE_US)


@pytest.mark.promise("Cluster", "a shard is taken over only after five seconds without a new message in its log")
def test_a_candidate_waits_for_silence_that_it_has_seen_itself(owner: Node, log: Log) -> None:
    other = Node(log, "b")
    seen = 20 * SECOND
    other.step(seen)
    us = seen
    while other.shard.state == "following":
        us += RETRY_US
        other.step(us)
    assert us - seen >= SILENCE_US
    other.own(us)
    assert log.reader.end.owner == "b"
    assert owner.commit(us) is None
    owner.step(us + RETRY_US)
    assert (owner.shard.verdict, owner.shard.state) == ("deposed", "following")


def test_a_read_that_failed_begins_the_wait_again(owner: Node, log: Log) -> None:
    other = Node(log, "b")
    for us in range(0, SILENCE_US, READ_EVERY_US):
        other.step(us)
    assert isinstance(other.shard.next(SILENCE_US - 1 + READ_EVERY_US, may_take=False), Seek)
    other.shard.sought(SILENCE_US, Unknown())
    assert not other.shard.is_vacant(SILENCE_US + SECOND)


def test_reads_too_far_apart_prove_nothing(owner: Node, log: Log) -> None:
    other = Node(log, "b")
    other.step(0)
    assert not other.shard.is_vacant(10 * SILENCE_US)
    other.step(10 * SILENCE_US, may_take=False)
    assert not other.shard.is_vacant(10 * SILENCE_US)


def test_news_begin_the_wait_again(owner: Node, log: Log) -> None:
    other = Node(log, "b")
    for us in range(0, 30 * SECOND, SECOND):
        owner.step(us)
        other.step(us)
    assert other.shard.state == "following"
    assert log.reader.end.owner == "a"


def test_a_released_log_is_taken_without_a_wait(owner: Node, log: Log) -> None:
    owner.shard.release()
    assert not owner.shard.may_append(SECOND)
    owner.step(SECOND, may_take=False)
    assert owner.shard.state == "following"
    other = Node(log, "b")
    other.step(SECOND)
    other.step(SECOND)
    assert other.shard.state == "owning"


def test_an_owner_that_ends_its_epoch_does_not_serve_until_it_knows_what_came_of_it(owner: Node, log: Log) -> None:
    """The next owner waits for nothing, and the answer to this one may be lost."""
    owner.shard.release()
    assert owner.shard.may_serve(SECOND)
    step = owner.shard.next(SECOND, may_take=True)
    assert isinstance(step, Publish) and step.message.kind == "released"
    log.add(step.message)
    assert not owner.shard.may_serve(SECOND)
    owner.shard.published(SECOND, Unknown())
    assert not owner.shard.may_serve(SECOND + RETRY_US)


def test_an_owner_that_cannot_end_its_epoch_serves_on(owner: Node) -> None:
    owner.shard.release()
    assert isinstance(owner.shard.next(SECOND, may_take=True), Publish)
    owner.shard.published(SECOND, Full())
    assert owner.shard.may_serve(SECOND)


def test_a_follower_gets_whole_frames_in_order(owner: Node, log: Log) -> None:
    owner.commit(SECOND, b"one", 1)
    owner.commit(SECOND, LONG, 2)
    other = Node(log, "b")
    other.step(SECOND)
    kinds = [frame for frame in other.shard.frames if frame.kind == "rows"]
    assert kinds == [LogFrame("rows", 1, 0, 1, b"one"), LogFrame("rows", 1, 1, 2, LONG)]


def test_a_follower_of_a_purged_log_begins_again(log: Log) -> None:
    node = Node(log, "a")
    node.shard.next(0, may_take=True)
    node.shard.sought(0, Found([], 90, first=80))
    assert node.shard.state == "behind"
    assert node.shard.next(SECOND, may_take=True) is None


def test_a_damaged_log_halts(owner: Node, log: Log) -> None:
    node = Node(log, "b")
    node.shard.next(0, may_take=True)
    node.shard.sought(0, Found([(1, None)], 1))
    assert node.shard.state == "halted"
    assert node.shard.damage is not None
    assert node.shard.next(SECOND, may_take=True) is None


def test_a_follower_whose_log_lost_what_it_has_read_halts(log: Log) -> None:
    """It need not try to own the shard to notice: what it has may be all that is left."""
    log.begin(1, "a")
    log.write("rows", b"one", 1)
    node = Node(log, "b")
    us = 0
    node.step(us, may_take=False)
    log.messages.pop()
    while us < REWOUND_AFTER_US:
        us += READ_EVERY_US
        node.step(us, may_take=True)
        assert node.shard.state == "following"
    node.step(us + READ_EVERY_US, may_take=True)
    assert node.shard.state == "halted"
    assert str(node.shard.damage) == "stream `s` is damaged at message 2: it ends at 1, and 2 was kept"


def test_a_follower_that_sees_an_old_end_for_a_while_goes_on(log: Log) -> None:
    """A leader that has lost its majority answers from what it knew."""
    log.begin(1, "a")
    log.write("rows", b"one", 1)
    node = Node(log, "b")
    node.step(0, may_take=False)
    newest = log.messages.pop()
    for second in range(1, 10):
        node.step(second * SECOND, may_take=False)
    log.messages.append(newest)
    for second in range(10, 40):
        node.step(second * SECOND, may_take=False)
    assert node.shard.state == "following" and node.shard.damage is None


def test_an_owner_whose_stream_fills_up_within_a_frame_begins_an_epoch(owner: Node, log: Log) -> None:
    step = owner.shard.append(SECOND, LONG, 1)
    owner.publish(SECOND, step.message, step.after)
    assert isinstance(owner.shard.next(SECOND, may_take=True), Publish)
    owner.shard.published(SECOND, Full())
    assert owner.shard.verdict == "full"
    assert not owner.shard.may_append(2 * SECOND)
    owner.step(2 * SECOND)
    assert owner.shard.state == "owning"
    assert log.reader.end.epoch == 2
    assert owner.commit(3 * SECOND) == "kept"


def test_after_no_answer_the_next_operation_waits_a_moment(owner: Node) -> None:
    owner.shard.append(SECOND, b"x", 1)
    owner.shard.published(2 * SECOND, Unknown())
    assert owner.shard.next(2 * SECOND, may_take=True) is None
    assert owner.shard.next(2 * SECOND + RETRY_US, may_take=True) == Seek(1)
