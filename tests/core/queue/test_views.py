"""Views: their rows, their evictions, and what a late reader receives."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.clock import Now
from penstock.core.limits import Limits
from penstock.core.queue.machine import QueueMachine
from penstock.core.queue.views import View, ViewChange, is_inbox
from penstock.core.records import Record
from tests.core.driving import QueueDriver, body_of, record_of, redrive
from tests.core.queue.test_rebuild import Recorded

SAM, JEN = "agents/sam/inbox", "agents/jen/inbox"


def shown(machine: QueueMachine) -> dict[str, bytes]:
    return {addr: entry.data for addr, entry in machine.views.latest.rows.items()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (SAM, True),
        ("agents/sam/inbox/", False),
        ("agents/sam/x/inbox", False),
        ("agents//inbox", False),
        ("agents/inbox", False),
        ("dlq/agents/sam/inbox", False),
        ("agents/sam/outbox", False),
    ],
)
def test_an_inbox_has_exactly_three_parts(name: str, expected: bool) -> None:
    assert is_inbox(name) is expected


class TestLatest:
    @pytest.mark.promise("The document's testing strategy", "Unit: view updates")
    @pytest.mark.promise("Views", "`latestPerAgent` shows the last committed arrival, whatever happens to it later")
    def test_is_the_last_to_arrive_of_each_inbox(self) -> None:
        driver = QueueDriver()
        driver.put(SAM, "1", "2")
        driver.put(JEN, "9")
        driver.put("jobs", "3")
        driver.put(SAM, "4")
        assert shown(driver.machine) == {JEN: body_of("9"), SAM: body_of("4")}

    @pytest.mark.promise("Views", "`latestPerAgent` shows the last committed arrival, whatever happens to it later")
    def test_shows_nothing_before_it_is_committed_and_nothing_refused(self) -> None:
        driver = QueueDriver()
        driver.offer(SAM, record_of("1"))
        assert shown(driver.machine) == {}
        driver.refuse()
        assert shown(driver.machine) == {}
        driver.put(SAM, "2")
        assert shown(driver.machine) == {SAM: body_of("2")}

    def test_a_batch_is_one_change_an_inbox(self) -> None:
        driver = QueueDriver()
        view = driver.machine.views.latest
        before = view.version
        driver.put(SAM, *"abcdefgh")
        assert view.version == before + 1

    @pytest.mark.promise("The document's testing strategy", "Unit: view updates")
    @pytest.mark.promise("Views", "`latestPerAgent` shows the last committed arrival, whatever happens to it later")
    def test_acks_nacks_expiries_and_duplicates_do_not_change_it(self) -> None:
        driver = QueueDriver()
        driver.put(SAM, "1", "2")
        view = driver.machine.views.latest
        before = (view.version, shown(driver.machine))
        consumer = driver.subscribe(SAM, 10, lease_ms=1_000)
        driver.nack(consumer, "1")
        driver.advance(5_000)
        driver.put(SAM, "1")
        driver.offer(SAM, record_of("2", "other content"))
        driver.grant(consumer, 10)
        driver.ack(consumer, "1", "2")
        assert (view.version, shown(driver.machine)) == before

    @pytest.mark.promise("Views", "`latestPerAgent` shows the last committed arrival, whatever happens to it later")
    def test_dead_letters_and_their_way_back_do_not_change_it(self) -> None:
        driver = QueueDriver()
        driver.put(SAM, "1", "2")
        consumer = driver.subscribe(SAM, 1)
        view = driver.machine.views.latest
        before = (view.version, shown(driver.machine))
        driver.term(consumer, "1")
        redrive(driver.machine, driver.now, SAM, 10)
        driver.apply()
        driver.commit()
        assert driver.state(SAM)[0] == 2
        assert (view.version, shown(driver.machine)) == before

    def test_a_scheduled_one_counts_when_it_arrives(self) -> None:
        driver = QueueDriver()
        driver.put(SAM, "1")
        later = driver.now.wall_us + 60_000_000
        driver.offer(SAM, record_of("2", due_wall_us=later, scheduled_wall_us=later))
        driver.commit()
        assert shown(driver.machine) == {SAM: body_of("2")}


class TestRecovery:
    def test_the_rows_come_back_from_the_history(self) -> None:
        driver = Recorded()
        driver.put(SAM, "1", "2")
        consumer = driver.subscribe(SAM, 10)
        driver.ack(consumer, "1", "2")
        driver.put(JEN, "3")
        driver.term(driver.subscribe(JEN, 1), "3")
        driver.put(JEN, "4")
        redrive(driver.machine, driver.now, JEN, 10)
        driver.apply()
        driver.commit()
        assert shown(driver.restarted().machine) == shown(driver.machine) == {SAM: body_of("2"), JEN: body_of("4")}

    @pytest.mark.promise("Views", "rows survive a restart, also through the live file; versions are never reused")
    def test_the_rows_come_back_from_a_snapshot_where_the_records_are_gone(self) -> None:
        driver = Recorded()
        driver.put(JEN, "1")
        driver.put(SAM, "2")
        driver.ack(driver.subscribe(SAM, 10), "2")
        fresh = QueueDriver()
        for row in list(driver.machine.snapshot(driver.now)):
            fresh.machine.resume(fresh.now, row)
        fresh.machine.recovered(fresh.now)
        assert list(shown(fresh.machine).items()) == list(shown(driver.machine).items())

    @pytest.mark.promise("Views", "rows survive a restart, also through the live file; versions are never reused")
    def test_no_version_of_an_earlier_life_can_be_followed_on(self) -> None:
        driver = Recorded()
        driver.machine.views.begin(driver.now)
        driver.put(SAM, "1")
        told = driver.machine.views.latest.version
        fresh = driver.restarted(later_ms=1)
        view = fresh.machine.views.latest
        fresh.machine.views.begin(fresh.now)
        assert view.version > told
        assert view.changes(told) is None
        assert view.changes(view.version) == []


class TestBounds:
    @pytest.mark.promise("Views", "rows, bytes and removals of a view are bounded")
    def test_the_least_recently_changed_row_is_evicted_and_reported(self) -> None:
        view = View("v", "row", Limits(view_rows_max=2))
        view.put("a", "a", b"1")
        view.put("b", "b", b"1")
        view.put("a", "a", b"2")
        since = view.version
        view.put("c", "c", b"1")
        assert list(view.rows) == ["a", "c"]
        assert view.evicted == 1
        assert [(c.op, c.addr) for c in view.changes(since) or []] == [("add", "c"), ("remove", "b")]

    @pytest.mark.promise("Views", "rows, bytes and removals of a view are bounded")
    def test_bytes_are_bounded_too_and_counted_right(self) -> None:
        view = View("v", "row", Limits(view_bytes_max=100))
        for name in "abc":
            view.put(name, name, b"x" * 40)
        assert list(view.rows) == ["b", "c"]
        view.put("b", "b", b"x" * 90)
        assert list(view.rows) == ["b"]
        assert view.bytes == 90

    @pytest.mark.promise("Views", "rows, bytes and removals of a view are bounded")
    def test_who_was_away_longer_than_removals_are_remembered_takes_the_whole_table(self) -> None:
        view = View("v", "row", Limits(view_log_max=2))
        for name in "abc":
            view.put(name, name, b"1")
        since = view.version
        view.remove("a")
        view.remove("b")
        assert [c.addr for c in view.changes(since) or []] == ["a", "b"]
        view.remove("c")
        assert view.changes(since) is None
        assert [c.addr for c in view.changes(since + 1) or []] == ["b", "c"]

    def test_a_version_that_was_never_given_out_is_not_followed(self) -> None:
        view = View("v", "row", Limits())
        view.put("a", "a", b"1")
        assert view.changes(view.version + 1) is None


def test_a_row_that_came_and_went_unseen_is_not_reported() -> None:
    view = View("v", "row", Limits())
    since = view.version
    view.put("a", "a", b"1")
    view.remove("a")
    assert view.changes(since) == []


def test_a_row_that_went_and_came_back_is_an_update_to_who_knew_it() -> None:
    view = View("v", "row", Limits())
    view.put("a", "a", b"1")
    since = view.version
    view.remove("a")
    view.put("a", "a", b"2")
    assert [(c.op, c.data) for c in view.changes(since) or []] == [("update", b"2")]


# Any sequence of changes, any readers


@dataclass
class Reader:
    """A follower with its own pace that records every mistake."""

    rows: dict[str, bytes] = field(default_factory=dict)
    at: int | None = None
    base: int = 0
    told: dict[str, bool] = field(default_factory=dict)

    def read(self, view: View, most: int) -> None:
        changes = None if self.at is None else view.changes(self.at, self.base, self.told)
        if changes is None:
            self.rows = {addr: entry.data for addr, entry in view.rows.items()}
            self.at = self.base = view.version
            self.told = {}
            return
        for change in changes[:most]:
            self.apply(change)
        if len(changes) <= most:
            self.at = self.base = view.version
            self.told = {}

    def apply(self, change: ViewChange) -> None:
        assert self.at is not None and change.version > self.at
        match change.op:
            case "add":
                assert change.addr not in self.rows
            case _:
                assert change.addr in self.rows
        if change.op == "remove":
            del self.rows[change.addr]
        else:
            self.rows[change.addr] = change.data
        self.told[change.addr] = change.op != "remove"
        self.at = change.version


PUT = st.tuples(st.just("put"), st.sampled_from("abcd"), st.integers(0, 9))
DROP = st.tuples(st.just("drop"), st.sampled_from("abcd"), st.just(0))
READ = st.tuples(st.just("read"), st.sampled_from("123"), st.integers(0, 2))


@pytest.mark.promise("Views", "snapshot plus changes give the table, at any reading speed")
@settings(max_examples=400)
@given(st.lists(PUT | DROP | READ, max_size=60), st.integers(1, 7), st.integers(1, 4))
def test_a_reader_at_any_pace_ends_up_with_the_table(
    steps: list[tuple[str, str, int]], rows_max: int, log_max: int
) -> None:
    view = View("v", "row", Limits(view_rows_max=rows_max, view_log_max=log_max))
    model: dict[str, bytes] = {}
    readers = {name: Reader() for name in "123"}
    for what, name, number in steps:
        version = view.version
        match what:
            case "put":
                data = b"%d" % number
                model.pop(name, None)
                model[name] = data
                gone = list(model)[:-rows_max]
                for addr in gone:
                    del model[addr]
                view.put(name, name, data)
                assert view.version == version + 1 + len(gone)
            case "drop" if name in model:
                del model[name]
                view.remove(name)
                assert view.version == version + 1
            case "read":
                readers[name].read(view, number)
        assert [(addr, entry.data) for addr, entry in view.rows.items()] == list(model.items())
        assert view.bytes == sum(map(len, model.values()))
        assert len(view.gone) <= log_max
    for reader in readers.values():
        reader.read(view, 1_000)
        assert reader.rows == model


AGENTS = [SAM, JEN, "agents/ann/inbox", "jobs"]
ARRIVALS = st.lists(
    st.tuples(st.lists(st.tuples(st.sampled_from(AGENTS), st.integers(0, 20)), max_size=6), st.booleans()),
    max_size=12,
)


@pytest.mark.promise("Views", "`latestPerAgent` shows the last committed arrival, whatever happens to it later")
@given(ARRIVALS, st.integers(1, 3))
def test_the_view_is_that_of_the_committed_and_recovery_agrees(
    turns: list[tuple[list[tuple[str, int]], bool]], rows_max: int
) -> None:
    limits = Limits(view_rows_max=rows_max)
    driver = Recorded()
    driver.machine.views = type(driver.machine.views)(limits)
    model: dict[str, bytes] = {}
    for arrivals, is_refused in turns:
        fresh: list[tuple[str, Record]] = []
        for stream, number in arrivals:
            record = record_of(str(number))
            channel = driver.machine.channels.get(stream)
            known = channel is not None and (record.id in channel.live or record.id in channel.settled)
            driver.offer(stream, record)
            if not known:
                fresh.append((stream, record))
        if is_refused and fresh:
            driver.refuse()
            continue
        driver.commit()
        for stream, record in fresh:
            if stream != "jobs":
                model.pop(stream, None)
                model[stream] = record.body
        model = dict(list(model.items())[-rows_max:])
        assert list(shown(driver.machine).items()) == list(model.items())
    again = QueueDriver(limits=limits)
    for row in driver.rows:
        again.machine.restore(again.now, row)
    assert list(shown(again.machine).items()) == list(model.items())


def test_an_unknown_view_gets_the_known_ones_as_a_hint() -> None:
    refusal = QueueDriver().machine.views.find("nope")
    assert msgspec.structs.astuple(refusal)[0] == "UnknownView"
    for name in ("latestPerAgent", "inflight", "metrics:streams"):
        assert name in (getattr(refusal, "hint", "") or "")
        view = QueueDriver().machine.views.find(f"views/{name}")
        assert isinstance(view, View) and view.name == name


def test_a_life_begins_at_its_clock_or_behind_what_is_known() -> None:
    view = View("v", "row", Limits())
    view.begin(Now(0, 1_000).wall_us)
    assert view.version == 1_000
    view.begin(5)
    assert view.version == 1_001
