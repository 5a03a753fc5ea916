"""The tail of the journal: the matching rows, each once and oldest first, within the bounds of an answer."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.errors import Refusal
from penstock.core.patterns import matches
from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.core.scopes import OPERATOR, Principal, require
from penstock.journal.disk import RealDisk
from penstock.journal.parquet_table import EventsTable
from penstock.journal.plain_values import records
from penstock.journal.reader import JournalReader, RangeGoneError
from penstock.server.admin import tail
from penstock.server.admin.tail import BODY_CHARS, Tail, TailQuery, look
from tests.journal.histories import START_US, ack, publish, reopened, sealer

CHANNELS = [Channel(name, Policy()) for name in ("jobs", "jobs/dead", "agents/jen/inbox")]
ROWS = 300
SEALED = 120


def written(data, facts, *, sealed=0):
    """A journal of these facts, a commit for every few; the first of them in the table."""
    disk = RealDisk(data / "journal")
    log, _ = reopened(disk)
    for first in range(0, len(facts), 7):
        if sealed and first >= sealed:
            log.rotate()
            publish(disk, first)
            sealer(data).seal(START_US)
            sealed = 0
        log.commit([facts[first : first + 7]], START_US + first)
    publish(disk, len(facts))
    return data


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """A journal in which every column has several values, some of them none."""
    dice = Random(8)
    facts = []
    for number in range(ROWS):
        channel = dice.choice(CHANNELS)
        if number % 5 == 4:
            facts.append(ack(f"e{dice.randrange(number)}", channel=channel))
            continue
        word = dice.choice(["alpha", "BETA", "Größe", "x" * 3_000])
        facts.append(
            Record(
                f"e{number}",
                dice.choice(["note", "task", "task/urgent"]),
                f'{{"n":{number},"word":"{word}"}}'.encode(),
                dice.choice([None, "jen", "sam"]),
                dice.choice([None, "c1", "c2"]),
                channel=channel,
                seq=number,
            )
        )
    return written(tmp_path_factory.mktemp("history"), facts, sealed=SEALED)


@pytest.fixture(scope="module")
def reader(history):
    return JournalReader(history)


@pytest.fixture(scope="module")
def everything(reader):
    return [row for batch in reader.batches(0, ROWS) for row in records(batch)]


def read(reader, **query):
    found = look(reader, TailQuery(**query))
    return found, [msgspec.json.decode(row) for row in found.rows]


def offsets(reader, **query):
    return [row["offset"] for row in read(reader, **query)[1]]


def passes(row, query):
    named = {"sender": "from"}
    for column in ("door", "channel", "event", "kind", "sender", "id", "corr"):
        wanted = query.get(column) or query.get(named.get(column, column))
        if wanted and (row[column] is None or not matches(wanted, row[column])):
            return False
    text = query.get("text")
    places = [row["id"] or "", row["corr"] or "", (row["body"] or b"").decode()]
    return not text or any(text.lower() in place.lower() for place in places)


QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "door": st.sampled_from(["courier", "mew"]),
        "channel": st.sampled_from(["jobs", "jobs*", "*/inbox", "nope", "*"]),
        "event": st.sampled_from(["enqueue", "ack", "nack"]),
        "kind": st.sampled_from(["note", "task*", "*urgent"]),
        "sender": st.sampled_from(["jen", "s*", "nobody"]),
        "id": st.sampled_from(["e7", "e123", "e*9"]),
        "corr": st.sampled_from(["c1", "c2"]),
        "text": st.sampled_from(["ALPHA", "beta", "gröSSe", "größe", '"n":1', "c1", "E29"]),
    },
)


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "the tail returns exactly the matching rows, once each and in order, sealed or not",
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(query=QUERIES, after=st.integers(0, ROWS), most=st.integers(20, 90))
def test_pages_are_exactly_the_rows_that_pass(reader, everything, query, after, most):
    expected = [row["offset"] for row in everything if row["offset"] >= after and passes(row, query)]
    seen, following = [], after
    for _ in range(ROWS + 2):
        found, rows = read(reader, after=following, max=most, **query)
        assert len(rows) <= most and found.missed == 0 and found.next >= following
        seen += [row["offset"] for row in rows]
        following = found.next
        if found.is_at_end:
            break
    assert seen == expected and following == ROWS


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "the tail returns exactly the matching rows, once each and in order, sealed or not",
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(query=QUERIES, back=st.integers(0, 40))
def test_without_a_beginning_it_is_the_last_rows_that_pass(reader, everything, query, back):
    expected = [row["offset"] for row in everything if passes(row, query)]
    assert offsets(reader, back=back, max=2_000, **query) == expected[len(expected) - min(back, len(expected)) :]


def test_a_row_has_its_columns_by_name_and_leaves_out_what_is_null(reader, everything):
    _, rows = read(reader, after=0, max=2_000)
    for row, whole in zip(rows, everything, strict=True):
        body = None if whole["body"] is None else whole["body"].decode()
        assert row.get("body") == (None if body is None else body[:BODY_CHARS])
        assert row.get("body_cut") == (None if body is None else len(body) > BODY_CHARS)
        columns = {"journal", "shard", "epoch", "body"}
        named = {name for name, value in whole.items() if value is not None and name not in columns}
        assert set(row) - {"body", "body_cut"} == named
        assert row["recorded_at"].startswith("2025-10-09T") and row["recorded_at"].endswith("Z")
    assert {row.get("body_cut") for row in rows} == {True, False, None}


@pytest.mark.promise(
    "Tail and SQL for administrators", "an answer of the tail is bounded in rows, time, bytes and body"
)
@pytest.mark.parametrize(
    ("body", "shown", "is_cut"),
    [
        (b"\xff\x00ok", "\ufffd\x00ok", False),
        ("😀".encode() * BODY_CHARS, "😀" * BODY_CHARS, False),
        (b"a" + "😀".encode() * BODY_CHARS, "a" + "😀" * (BODY_CHARS - 1), True),
        (b"x" * 5_000_000, "x" * BODY_CHARS, True),
        (b"", "", False),
    ],
)
def test_a_body_is_shown_as_far_as_it_goes_and_never_half_a_character(tmp_path, body, shown, is_cut):
    data = written(tmp_path, [Record("a", "note", body, channel=CHANNELS[0], seq=1)])
    (row,) = read(JournalReader(data), after=0)[1]
    assert (row["body"], row["body_cut"]) == (shown, is_cut) and row["bytes"] == len(body)


@pytest.mark.promise(
    "Tail and SQL for administrators", "an answer of the tail is bounded in rows, time, bytes and body"
)
def test_an_answer_is_bounded_in_bytes_and_goes_on_where_it_ended(reader, monkeypatch):
    monkeypatch.setattr(tail, "ANSWER_BYTES", 4_000)
    seen, following, answers = [], 0, 0
    while following < ROWS:
        found, rows = read(reader, after=following)
        assert rows and (len(rows) == 1 or sum(len(bytes(row)) for row in found.rows) <= 4_000)
        seen += [row["offset"] for row in rows]
        following, answers = found.next, answers + 1
    assert seen == list(range(ROWS)) and answers > 10


@pytest.mark.promise(
    "Tail and SQL for administrators", "an answer of the tail is bounded in rows, time, bytes and body"
)
def test_an_answer_looks_at_so_many_rows_only(reader, monkeypatch):
    monkeypatch.setattr(tail, "SCAN_ROWS", 100)
    monkeypatch.setattr(tail, "STEP_ROWS", 30)
    found, rows = read(reader, after=0, id="e299")
    assert rows == [] and found.next == 100 and not found.is_at_end
    monkeypatch.setattr(tail, "SCAN_S", 0.0)
    found, _ = read(reader, after=100, text="nowhere")
    assert found.next == 130  # out of time, but for one step
    assert read(reader, back=5, id="e3")[0].next == ROWS


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "long bodies do not delay the tail, and a revoked token ends a wait",
)
def test_few_rows_are_read_before_the_first_look_at_the_clock(reader, monkeypatch):
    monkeypatch.setattr(tail, "STEP_FIRST_ROWS", 10)
    monkeypatch.setattr(tail, "STEP_GROWTH", 3)
    ranges = []
    real = JournalReader.batches
    monkeypatch.setattr(
        JournalReader,
        "batches",
        lambda self, first, end, *more: ranges.append((first, end)) or real(self, first, end, *more),
    )
    read(reader, after=100, text="nowhere")
    assert ranges == [(100, 110), (110, 140), (140, 230), (230, ROWS)]
    ranges.clear()
    assert read(reader, back=1, text="nowhere")[0].is_at_end
    assert ranges[:3] == [(290, 300), (260, 290), (170, 260)]
    monkeypatch.setattr(tail, "SCAN_S", 0.0)
    assert read(reader, after=100, text="nowhere")[0].next == 110


@pytest.mark.promise("Tail and SQL for administrators", "a follower that misses rows receives their number")
def test_a_follower_far_behind_may_skip_to_the_end_and_is_notified(reader, monkeypatch):
    monkeypatch.setattr(tail, "BEHIND_ROWS", 50)
    found, rows = read(reader, after=10, max=20, skip=1)
    assert [row["offset"] for row in rows] == list(range(ROWS - 20, ROWS)) and found.missed == ROWS - 30
    assert read(reader, after=10, max=20)[0].missed == 0
    assert read(reader, after=ROWS - 50, max=20, skip=1)[0].missed == 0


@pytest.mark.promise("Tail and SQL for administrators", "a follower that misses rows receives their number")
def test_rows_that_are_gone_are_counted_also_when_they_go_while_they_are_read(tmp_path, monkeypatch):
    facts = [Record(f"e{n}", "note", b"{}", channel=CHANNELS[0], seq=n) for n in range(40)]
    data = written(tmp_path, facts, sealed=20)
    bronze = EventsTable(data / "lake")
    kept = JournalReader(data)
    first, *_ = bronze.files()

    def interrupted(*args):
        monkeypatch.undo()
        bronze.remove([first], 1)
        raise RangeGoneError(0, first.last + 1)

    monkeypatch.setattr(kept, "batches", interrupted)
    found, rows = read(kept, after=5)
    assert found.missed == first.last + 1 - 5 and rows[0]["offset"] == first.last + 1 == found.bounds.first
    assert rows[-1]["offset"] == 39


def test_rows_that_a_crash_took_back_are_not_waited_for(reader):
    found, rows = read(reader, after=ROWS + 500)
    assert (found.next, rows, found.missed) == (ROWS, [], 0)


class Watched(Tail):
    """A tail over a journal that a test writes to."""

    def __init__(self, data, end):
        self.journal = SimpleNamespace(next_offset=end)
        self.is_ending = False
        self.rights = {OPERATOR: OPERATOR}
        super().__init__(
            SimpleNamespace(data=data, journal=self.journal),
            lambda: self.is_ending,
            self.rights.get,
        )

    def ask(self, **query):
        return asyncio.ensure_future(self.tail(OPERATOR, TailQuery(**query)))


def bounded(work):
    async def go():
        async with asyncio.timeout(15):  # less than any wait of this test
            await work()

    asyncio.run(go())


@pytest.fixture
def growing(tmp_path):
    disk = RealDisk(tmp_path / "journal")
    log, _ = reopened(disk)
    log.commit([[Record("a", "note", b"{}", channel=CHANNELS[0], seq=1)]], START_US)
    publish(disk, 1)

    def grow(watched, id_):
        log.commit([[Record(id_, "note", b"{}", channel=CHANNELS[0], seq=2)]], START_US)
        publish(disk, log.position.offset)
        watched.journal.next_offset = log.position.offset

    return Watched(tmp_path, 1), grow


def test_a_waiting_follower_gets_the_first_matching_row(growing):
    watched, grow = growing

    async def go():
        waiting = watched.ask(after=1, wait_ms=20_000, id="c")
        other = watched.ask(after=1, wait_ms=300, id="nothing")
        grow(watched, "b")
        other_answer = msgspec.json.decode((await other).body)
        assert other_answer["rows"] == [] and other_answer["next"] == 2  # what it saw it need not see again
        assert not waiting.done()
        grow(watched, "c")
        answer = msgspec.json.decode((await waiting).body)
        assert [row["id"] for row in answer["rows"]] == ["c"]
        assert (answer["next"], answer["end"], answer["isScanned"], answer["missed"]) == (3, 3, True, 0)
        assert watched.waiting == 0

    bounded(go)


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "a waiting tail costs others nothing: it can pause, is bounded in number, and ends with the server or its peer",
)
def test_a_wait_ends_with_the_server_and_with_its_client(growing):
    watched, _ = growing

    async def go():
        waiting = watched.ask(after=1, wait_ms=20_000)
        gone = watched.ask(after=1, wait_ms=20_000)
        await asyncio.sleep(0)
        assert watched.waiting == 2
        gone.cancel()
        watched.is_ending = True
        assert msgspec.json.decode((await waiting).body)["next"] == 1
        assert gone.cancelled() and watched.waiting == 0

    bounded(go)


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "long bodies do not delay the tail, and a revoked token ends a wait",
)
@pytest.mark.parametrize("left", [None, Principal("ops", scopes=require(["streams:*:read"]))])
def test_a_client_that_is_no_longer_administrator_stops_waiting(growing, left):
    watched, grow = growing

    async def go():
        waiting = watched.ask(after=1, wait_ms=20_000)
        await asyncio.sleep(0)
        watched.rights[OPERATOR] = left
        grow(watched, "secret")
        refused = await waiting
        assert isinstance(refused, Refusal) and refused.code == "Unauthorized"

    bounded(go)


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "a waiting tail costs others nothing: it can pause, is bounded in number, and ends with the server or its peer",
)
def test_only_so_many_wait(growing, monkeypatch):
    watched, _ = growing
    monkeypatch.setattr(tail, "WAITING_MAX", 2)

    async def go():
        waiting = [watched.ask(after=1, wait_ms=20_000) for _ in range(2)]
        await asyncio.sleep(0)
        refused = await watched.ask()
        assert isinstance(refused, Refusal) and refused.code == "RateLimited"
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        assert (await watched.ask()).status == 200

    bounded(go)


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "a waiting tail costs others nothing: it can pause, is bounded in number, and ends with the server or its peer",
)
def test_a_look_that_finds_the_disk_behind_memory_pauses_before_it_looks_again(growing, monkeypatch):
    watched, _ = growing
    watched.journal.next_offset = 5  # committed, and not published
    looks = []
    monkeypatch.setattr(tail, "look", lambda *args: looks.append(1) or look(*args))

    async def go():
        await watched.ask(after=1, wait_ms=500)

    bounded(go)
    assert 1 < len(looks) <= 6
