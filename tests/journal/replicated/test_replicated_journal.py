"""The journal of a shard: a majority first, then the spool, then the answer."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from penstock.core.clock import Now
from penstock.core.cluster.ownership import ShardOwnership
from penstock.core.cluster.reader import LogEnd, ShardReader
from penstock.core.cluster.stream_space import STREAM_FULL, StreamSpace
from penstock.core.cluster.writer import Found, Full, Publish, Published, Seek, Unknown
from penstock.core.records import Entry
from penstock.journal.port import Committed, Outcome, Refused
from penstock.journal.replicated.live_files import LiveFiles
from penstock.journal.replicated.replicated_journal import MOVED, NOT_OWNED, ReplicatedJournal
from penstock.journal.replicated.shard_log import StoredLive
from penstock.journal.replicated.spool import Spool
from penstock.testing.clock import Clock
from penstock.testing.disk import LyingDisk
from tests.simulation.cluster.servers import SimServers, SimStream

JOURNAL = "ab" * 16
SECOND = 1_000_000


class Servers:
    """Servers that answer at once, or when they are let to. `ShardLog`."""

    def __init__(self, clock: Clock) -> None:
        servers = SimServers(clock, Random(0))
        self.sim = SimStream(servers, "s", 1 << 40)
        servers.streams = [self.sim]
        self.stream = "s"
        self.held: list[Callable[[], None]] = []
        self.holds = False
        self.is_full = False
        self.forgotten: list[int] = []

    def _do(self, call: Callable[[], None]) -> None:
        if self.holds:
            self.held.append(call)
        else:
            call()

    def publish(self, step: Publish, done: Callable[[Published], None]) -> None:
        if self.is_full and step.message.kind == "rows":
            done(Full())
        else:
            self._do(lambda: self.sim.publish(0, step, done))

    def tail(self, step: Seek, done: Callable[[Found | Unknown], None]) -> None:
        self._do(lambda: self.sim.read(0, step, done))

    def forget(self, through: int, done: Callable[[bool], None]) -> None:
        self.forgotten.append(through)
        done(True)

    def measure(self, done: Callable[[int | None], None]) -> None:
        done(self.sim.used)

    def release(self) -> None:
        self.holds = False
        held, self.held = self.held, []
        for call in held:
            call()


class Node:
    """A journal on a disk of its own; time moves by hand."""

    def __init__(self, clock: Clock, servers: Servers, name: str, disk: LyingDisk, *, may_take: bool = True) -> None:
        self.clock = clock
        self.disk = disk
        self.events: list[str] = []
        self.outcomes: list[Outcome] = []
        self.may_take = may_take
        spool = Spool(disk, JOURNAL)
        self.rows = [row.id for _, row in spool.rows()]
        reader = ShardReader("s", spool.log_end())
        self.space = StreamSpace(1 << 40)
        self.journal = ReplicatedJournal(
            JOURNAL,
            ShardOwnership(name, reader, name.encode().__mul__, kept_offset=spool.offset),
            servers,
            spool,
            self.space,
            now=lambda: Now(clock.us, clock.us),
            at=clock.at,
            encode=self._work,
            write=self._work,
            may_take=lambda ownership: self.may_take,
            on_owned=lambda: self.events.append("owned"),
            on_ended=self.events.append,
        )
        self.journal.pump()

    def _work(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        result = call()
        self.clock.after(1, lambda: done(result))

    def send(self, *entries: Entry) -> None:
        self.journal.append(0, 0, entries, self.outcomes.append)

    def wait(self, us: int) -> None:
        until = self.clock.us + us
        while (next_us := self.clock.next_us()) is not None and next_us <= until:
            self.clock.step()
        self.clock.us = until


def record(name: str) -> Entry:
    return Entry("courier", "enqueue", "q", id=name)


def ack(name: str) -> Entry:
    return Entry("courier", "ack", "q", id=name, fresh=False)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def servers(clock: Clock) -> Servers:
    return Servers(clock)


@pytest.fixture
def node(clock: Clock, servers: Servers) -> Node:
    node = Node(clock, servers, "a", LyingDisk(1))
    node.wait(SECOND)
    assert node.events == ["owned"]
    return node


def ids(node: Node) -> list[str | None]:
    return [row.id for _, row in node.journal.rows()]


@pytest.mark.promise("Cluster", "a commit is answered when a majority of the servers and the local disk have it")
def test_appends_are_answered_in_order_with_dense_offsets(node: Node, servers: Servers) -> None:
    node.send(record("a"), record("b"))
    node.send(record("c"))
    node.send()
    assert node.outcomes == []
    node.wait(SECOND // 10)
    firsts = [(outcome.first_offset, outcome.refused) for outcome in node.outcomes if isinstance(outcome, Committed)]
    assert firsts == [(0, None), (2, None), (3, None)]
    assert ids(node) == ["a", "b", "c"]


def test_what_comes_while_a_commit_is_under_way_is_one_commit(node: Node, servers: Servers) -> None:
    servers.holds = True
    for name in "abcd":
        node.send(record(name))
    node.wait(SECOND // 10)
    assert len(servers.held) == 1, "one message in flight"
    servers.release()
    node.wait(SECOND // 10)
    assert len(node.outcomes) == 4
    rows = [message.rows for message in servers.sim.truth if message.kind == "rows"]
    assert rows == [1, 3]


def test_a_node_that_does_not_own_the_shard_refuses(clock: Clock, servers: Servers) -> None:
    node = Node(clock, servers, "b", LyingDisk(1), may_take=False)
    node.send(record("a"))
    node.wait(SECOND)
    assert node.outcomes == [Refused(NOT_OWNED)]


def test_a_follower_keeps_what_the_owner_writes_and_takes_over_with_it(node: Node, servers: Servers) -> None:
    other = Node(node.clock, servers, "b", LyingDisk(2))
    node.send(record("a"))
    node.wait(3 * SECOND)
    assert ids(other) == ["a"]
    node.journal.close()  # a crash
    node.wait(10 * SECOND)
    assert other.events == ["owned"]
    other.send(ack("a"))
    node.wait(SECOND)
    assert isinstance(other.outcomes[0], Committed)
    assert ids(other) == ["a", "a"]


def test_a_deposed_owner_refuses_what_never_counts(node: Node, servers: Servers) -> None:
    servers.holds = True
    node.send(record("a"))
    node.wait(SECOND // 10)
    late = servers.held.pop()
    servers.holds = False
    other = Node(node.clock, servers, "b", LyingDisk(2))
    node.wait(10 * SECOND)
    assert other.events == ["owned"]
    late()
    node.wait(SECOND)
    assert node.outcomes == [Refused(MOVED)]
    assert node.events == ["owned", MOVED]
    assert ids(other) == []


def test_a_released_shard_moves_at_once(node: Node, servers: Servers) -> None:
    other = Node(node.clock, servers, "b", LyingDisk(2))
    node.send(record("a"))
    node.wait(SECOND // 2)
    node.may_take = False
    node.journal.release()
    node.wait(SECOND + SECOND // 2)
    assert node.events == ["owned", MOVED]
    assert other.events == ["owned"]


def test_a_spool_that_fails_ends_the_cell_and_not_the_record(node: Node, servers: Servers) -> None:
    node.disk.space = 0
    node.send(record("a"))
    node.wait(SECOND)
    assert node.outcomes == [], "what became of it is unknown to its client, as after a crash"
    assert node.events[1].startswith("the spool does not take a commit that was kept")
    other = Node(node.clock, servers, "b", LyingDisk(2))
    node.wait(10 * SECOND)
    assert ids(other) == ["a"]


def test_a_short_stream_takes_settles_and_no_records(node: Node, servers: Servers) -> None:
    node.send(record("a"))
    node.wait(SECOND // 10)
    node.space.measured(node.space.bytes_max * 95 // 100)
    node.send(record("b"), ack("a"))
    node.wait(SECOND // 10)
    assert isinstance(node.outcomes[1], Committed)
    assert node.outcomes[1].refused == STREAM_FULL
    assert ids(node) == ["a", "a"]


def test_a_full_stream_refuses_and_goes_on_when_it_has_room(node: Node, servers: Servers) -> None:
    servers.is_full = True
    node.send(record("a"))
    node.send(ack("z"))
    node.wait(SECOND)
    assert node.outcomes == [Refused(STREAM_FULL), Refused(STREAM_FULL)]
    servers.is_full = False
    node.wait(3 * SECOND)
    node.send(record("b"))
    node.wait(SECOND)
    assert node.outcomes[2] == Committed(0, None, node.outcomes[2].recorded_us)  # type: ignore[union-attr]


def test_a_restart_skips_what_its_spool_has(node: Node, servers: Servers) -> None:
    node.send(record("a"))
    node.wait(SECOND // 10)
    node.journal.rotate(lambda name, end: None)
    node.send(record("b"))
    node.wait(SECOND // 10)
    node.journal.close()
    again = Node(node.clock, servers, "a", node.disk.crash())
    assert again.rows == ["a", "b"]
    again.wait(10 * SECOND)
    assert again.events == ["owned"]
    assert ids(again) == ["a", "b"]


def test_a_log_that_ends_before_the_spool_halts(node: Node, servers: Servers) -> None:
    node.send(record("a"))
    node.wait(SECOND // 10)
    node.journal.close()
    servers.sim.lose_tail(1)
    again = Node(node.clock, servers, "a", node.disk.crash())
    again.wait(30 * SECOND)
    assert [event.partition(": ")[2] for event in again.events] == [
        "the log ends before row 0, and rows up to 0 were kept"
    ]
    assert again.journal.ownership.state == "halted"


class Store:
    """A store of live files that answers when it is let to."""

    def __init__(self) -> None:
        self.pending: list[Callable[[bool], None]] = []
        self.removed: list[int] = []

    def put(self, file: StoredLive, data: bytes | memoryview, done: Callable[[bool], None]) -> None:
        self.pending.append(done)

    def remove_before(self, offset: int) -> None:
        self.removed.append(offset)


def test_the_log_is_purged_when_a_live_file_is_stored(servers: Servers) -> None:
    store: Any = Store()
    files = LiveFiles(servers, store, readers=lambda: [15])
    files.offer("x", LogEnd(seq=3, offset=10), b"")
    assert servers.forgotten == []
    store.pending.pop()(True)
    assert servers.forgotten == [3]
    files.offer("y", LogEnd(seq=5, offset=12), b"")
    store.pending.pop()(False)
    assert (servers.forgotten, files.failures) == ([3], 1)
    files.offer("z", LogEnd(seq=9, offset=20), b"")
    store.pending.pop()(True)
    assert servers.forgotten == [3], "a named reader has not read so far"
