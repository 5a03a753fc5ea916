"""Snapshots and live views: visible rows, credits, conflation, resuming, and the three encodings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.scopes import ANONYMOUS, Principal, require
from penstock.dialects.courier.sessions import view_feed
from penstock.dialects.courier.sessions.live import LiveSession
from penstock.dialects.courier.sessions.view_feed import COMPAT_EVENTS, EVENTS, LiveQuery, Style, bare
from penstock.server.embedded import QueueCore
from penstock.server.engine.connections import Connection
from tests.dialects.courier.talking import Broker, Frame, ListWire, codes, envelope, filled, line

SAM, JEN = "agents/sam/inbox", "agents/jen/inbox"
READER = Principal("reader", scopes=require(["views:*:read", "streams:agents/sam/*:read"]))
SEED_READER = Principal("seed", scopes=require(["views:*:read", "streams:agents/jen/*:subscribe"]))

SOCKET = Style("socket", b"{", b"}", bare)


class Follower:
    """One follower on a connection of its own."""

    def __init__(
        self,
        broker: Broker,
        view: str = "latestPerAgent",
        principal: Principal = ANONYMOUS,
        style: Style = SOCKET,
        **query: Any,
    ) -> None:
        self.broker = broker
        self.wire = ListWire()
        wanted = LiveQuery(view, **query)
        checked = view_feed.check(broker.machine, principal, wanted)
        assert not isinstance(checked, Refusal), checked
        self.session = LiveSession(broker.runtime, wanted, style)
        connection = broker.runtime.peers.open(self.session, self.wire, principal, "test")
        assert isinstance(connection, Connection)
        self.connection = connection
        self.session.open(broker.now, *checked)
        self._read = 0
        broker.run()

    def raw(self) -> bytes:
        writes = self.wire.writes[self._read :]
        self._read = len(self.wire.writes)
        return b"".join(message for write in writes for message in write)

    def heard(self) -> list[Frame]:
        writes = self.wire.writes[self._read :]
        self._read = len(self.wire.writes)
        return [msgspec.json.decode(message) for write in writes for message in write]

    def say(self, message: Any) -> list[Frame]:
        self.connection.received(message if isinstance(message, bytes) else msgspec.json.encode(message))
        self.broker.advance(1_000)
        return self.heard()


def put(broker: Broker, stream: str, *ids: str, wait_ms: int = 1_000) -> None:
    filled(broker, stream, *ids)
    broker.advance(wait_ms)


def told(frames: list[Frame]) -> list[tuple[str, str, Any]]:
    """Each change: what, where, and the envelope's id."""
    return [(d["op"], d["addr"], d.get("env", {}).get("id")) for d in (frame["delta"] for frame in frames)]


def snapshot(broker: Broker, view: str, principal: Principal = ANONYMOUS, **more: Any) -> Frame:
    (answer,) = broker.control(principal).say(type_="snapshot", view=view, reqId=1, **more)
    result: Frame = answer["result"]
    return result


class TestSnapshot:
    def test_has_the_rows_a_watermark_and_a_time(self) -> None:
        broker = Broker()
        put(broker, SAM, "1", "2")
        found = snapshot(broker, "latestPerAgent")
        assert [(row["addr"], row["env"]["id"]) for row in found["rows"]] == [(SAM, "2")]
        assert found["watermark"] == broker.machine.views.latest.version
        assert found["asOf"].endswith("Z")

    @pytest.mark.promise("Views", "rows are filtered by the reader's scopes")
    def test_shows_only_streams_that_the_reader_may_read_or_take_from(self) -> None:
        broker = Broker()
        put(broker, SAM, "1")
        put(broker, JEN, "2")
        for view in ("latestPerAgent", "metrics:streams"):
            assert [row["addr"] for row in snapshot(broker, view, READER)["rows"]] == [SAM]
            assert [row["addr"] for row in snapshot(broker, view, SEED_READER)["rows"]] == [JEN]
            assert len(snapshot(broker, view)["rows"]) == 2

    @pytest.mark.parametrize("scope", ["streams:*:*", "views:other:read", "views:latestPerAgent:subscribe"])
    def test_needs_the_right_to_the_view(self, scope: str) -> None:
        principal = Principal("x", scopes=require([scope]))
        peer = Broker().control(principal)
        assert codes(peer.say(type_="snapshot", view="latestPerAgent", reqId=1)) == [(1, "Forbidden")]
        assert codes(peer.say(type_="live", view="latestPerAgent", reqId=2)) == [(2, "Forbidden")]

    def test_a_scope_may_name_a_view_whose_name_has_a_colon(self) -> None:
        principal = Principal("x", scopes=require(["views:metrics:streams:read"]))
        assert snapshot(Broker(), "metrics:streams", principal)["rows"] == []

    def test_takes_a_pattern_of_addresses(self) -> None:
        broker = Broker()
        put(broker, SAM, "1")
        put(broker, JEN, "2")
        rows = snapshot(broker, "latestPerAgent", addr="agents/j*")["rows"]
        assert [row["addr"] for row in rows] == [JEN]

    @pytest.mark.promise("Views", "the views `inflight` and `metrics:streams` work")
    def test_of_inflight_says_who_holds_what(self) -> None:
        broker = Broker()
        put(broker, "jobs", "1", "2")
        holder = broker.subscribe("jobs", credit=1)
        expected = {"stream": "jobs", "id": "1", "seq": 1, "attempt": 1}
        (row,) = snapshot(broker, "inflight", addr="jobs")["rows"]
        assert row["addr"] == "jobs#1"
        assert row["row"].items() >= expected.items()
        assert "link" in row["row"]["holder"]
        assert row["row"]["leaseExpiresAt"] == (broker.now.wall_us + 30_000_000) // 1000
        holder.send({"ack": "1"})
        broker.run()
        assert snapshot(broker, "inflight")["rows"] == []

    @pytest.mark.promise("Views", "the views `inflight` and `metrics:streams` work")
    def test_of_metrics_has_the_figures_of_the_metrics(self) -> None:
        broker = Broker()
        put(broker, "jobs", "1", "2")
        (metrics,) = broker.control().say(type_="metrics", reqId=1)
        (row,) = snapshot(broker, "metrics:streams")["rows"]
        assert (row["addr"], row["row"]) == ("jobs", metrics["result"]["streams"][0])

    def test_an_envelope_with_line_feeds_does_not_break_the_line(self) -> None:
        broker = Broker()
        core = msgspec.json.format(msgspec.json.encode(envelope("1")), indent=2)
        queue = QueueCore()
        queue.enqueue(SAM, core)
        assert queue.snapshot("latestPerAgent")["rows"][0]["env"]["id"] == "1"
        broker.machine.views.latest.put(SAM, SAM, core)
        assert snapshot(broker, "latestPerAgent")["rows"][0]["env"]["id"] == "1"
        follower = Follower(broker, style=EVENTS)
        assert follower.raw().count(b"\n") == 3


class TestFollowing:
    def test_begins_with_the_table_and_goes_on_with_one_change_an_enqueue(self) -> None:
        broker = Broker()
        put(broker, SAM, "1")
        follower = Follower(broker)
        (first,) = follower.heard()
        assert [(row["addr"], row["env"]["id"]) for row in first["snapshot"]["rows"]] == [(SAM, "1")]
        put(broker, SAM, "2")
        put(broker, JEN, "3")
        changes = follower.heard()
        assert told(changes) == [("update", SAM, "2"), ("add", JEN, "3")]
        versions = [first["snapshot"]["watermark"], *[frame["delta"]["version"] for frame in changes]]
        assert versions == list(range(versions[0], versions[0] + 3))
        assert [frame["delta"]["prev"] for frame in changes] == versions[:-1]

    def test_changes_of_one_moment_are_one_write_and_joined_by_row(self) -> None:
        broker = Broker()
        follower = Follower(broker)
        put(broker, SAM, "0")
        follower.heard()
        put(broker, SAM, "1", wait_ms=0)
        assert told(follower.heard()) == [("update", SAM, "1")]  # the first one after a silence goes at once
        before = len(follower.wire.writes)
        put(broker, SAM, "2", wait_ms=0)
        put(broker, JEN, "3", wait_ms=0)
        put(broker, SAM, "4")
        assert len(follower.wire.writes) == before + 1
        assert told(follower.heard()) == [("add", JEN, "3"), ("update", SAM, "4")]

    def test_a_removed_row_is_reported(self) -> None:
        broker = Broker(limits=Limits(view_rows_max=1))
        put(broker, SAM, "1")
        follower = Follower(broker)
        follower.heard()
        put(broker, JEN, "2")
        assert told(follower.heard()) == [("add", JEN, "2"), ("remove", SAM, None)]

    def test_acks_and_duplicates_are_no_news(self) -> None:
        broker = Broker()
        consumer = broker.subscribe(SAM, credit=5)
        put(broker, SAM, "1")
        follower = Follower(broker)
        follower.heard()
        consumer.send({"ack": "1"})
        put(broker, SAM, "1")
        assert follower.heard() == []

    @pytest.mark.promise("Views", "rows are filtered by the reader's scopes")
    def test_shows_only_what_the_reader_may_see_and_its_chain_has_no_gap(self) -> None:
        broker = Broker()
        follower = Follower(broker, principal=READER)
        everything = Follower(broker)
        watermark = follower.heard()[0]["snapshot"]["watermark"]
        put(broker, JEN, "1")
        put(broker, SAM, "2")
        put(broker, JEN, "3")
        put(broker, SAM, "4")
        changes = follower.heard()
        assert told(changes) == [("add", SAM, "2"), ("update", SAM, "4")]
        assert changes[0]["delta"]["prev"] == watermark
        assert changes[1]["delta"]["prev"] == changes[0]["delta"]["version"]
        assert len(everything.heard()) == 5

    @pytest.mark.promise("Views", "equal followers share one encoding")
    def test_equal_followers_share_the_very_bytes(self) -> None:
        broker = Broker()
        followers = [Follower(broker) for _ in range(5)]
        put(broker, SAM, "1")
        last = [follower.wire.writes[-1][-1] for follower in followers]
        assert all(one is last[0] for one in last)

    def test_ends_with_its_connection(self) -> None:
        broker = Broker()
        follower = Follower(broker)
        assert [len(feed.watchers) for feed in broker.runtime.live.followed.values()] == [1]
        follower.connection.lost()
        assert broker.runtime.live.followed == {}
        put(broker, SAM, "1")

    def test_is_notified_when_the_server_shuts_down(self) -> None:
        broker = Broker()
        follower = Follower(broker)
        follower.heard()
        broker.runtime.drain(lambda abandoned: None)
        broker.run()
        assert follower.heard()[0]["error"]["code"] == "Draining"
        assert follower.wire.closed == (1001, "Draining")


class TestResuming:
    def test_goes_on_where_it_ended(self) -> None:
        broker = Broker()
        put(broker, SAM, "1")
        watermark = Follower(broker).heard()[0]["snapshot"]["watermark"]
        put(broker, SAM, "2")
        put(broker, JEN, "3")
        changes = Follower(broker, since=watermark).heard()
        # It is uncertain which rows it has, so send removals as if it had all of them.
        assert told(changes) == [("update", SAM, "2"), ("update", JEN, "3")]
        assert changes[0]["delta"]["prev"] == watermark
        assert Follower(broker, since=changes[1]["delta"]["version"]).heard() == []

    @pytest.mark.parametrize("since", [0, 2**60])
    def test_a_version_of_another_life_gets_the_table(self, since: int) -> None:
        broker = Broker()
        put(broker, SAM, "1")
        (first,) = Follower(broker, since=since).heard()
        assert len(first["snapshot"]["rows"]) == 1


class TestEvents:
    def test_an_event_has_its_version_as_id(self) -> None:
        broker = Broker()
        follower = Follower(broker, style=EVENTS)
        follower.raw()
        put(broker, SAM, "1")
        event = follower.raw()
        identity, data, *rest = event.split(b"\n")
        delta = msgspec.json.decode(data.removeprefix(b"data: "))["delta"]
        assert identity == b"id: %d" % delta["version"]
        assert rest == [b"", b""]

    def test_the_shape_of_the_first_courier(self) -> None:
        broker = Broker(limits=Limits(view_rows_max=1))
        put(broker, SAM, "1")
        follower = Follower(broker, style=COMPAT_EVENTS)
        assert follower.raw() == b'data: {"connected":true}\n\n'
        put(broker, JEN, "2")
        (data,) = [part for part in follower.raw().split(b"\n") if part.startswith(b"data: ")]
        row = msgspec.json.decode(data.removeprefix(b"data: "))
        assert (row["addr"], row["env"]["id"], set(row)) == (JEN, "2", {"addr", "env"})

    def test_silence_is_filled_with_heartbeats_by_one_timer(self) -> None:
        broker = Broker()
        quiet, busy = Follower(broker, style=EVENTS), Follower(broker, style=EVENTS, addr=SAM)
        broker.advance(15_000)
        quiet.raw(), busy.raw()
        put(broker, SAM, "1")
        quiet.raw(), busy.raw()
        broker.advance(14_500)
        assert (quiet.raw(), busy.raw()) == (b"", b"")
        broker.advance(15_000)
        assert (quiet.raw(), busy.raw()) == (b": heartbeat\n\n", b": heartbeat\n\n")


# Any followers, any pace


class Copy:
    """A follower's copy of the table, made of its messages alone."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.rows: dict[str, Any] = {}
        self.version = -1
        self.is_resumed = False

    def read(self) -> None:
        for frame in self.follower.heard():
            if "snapshot" in frame:
                self.rows = {row["addr"]: row["env"]["id"] for row in frame["snapshot"]["rows"]}
                self.version = frame["snapshot"]["watermark"]
                self.is_resumed = False
                continue
            delta = frame["delta"]
            assert delta["prev"] == self.version
            self.version = delta["version"]
            if delta["op"] == "remove":
                assert self.is_resumed or delta["addr"] in self.rows
                self.rows.pop(delta["addr"], None)
            else:
                assert self.is_resumed or (delta["op"] == "update") == (delta["addr"] in self.rows)
                self.rows[delta["addr"]] = delta["env"]["id"]


STEP = st.tuples(st.sampled_from(["put", "put", "put", "wait", "grant", "stall", "go", "again"]), st.integers(0, 3))


@pytest.mark.promise("Views", "snapshot plus changes give the table, at any reading speed")
@given(st.lists(STEP, max_size=40), st.integers(1, 4), st.integers(1, 3))
def test_snapshot_and_changes_make_the_table_at_any_pace(
    steps: list[tuple[str, int]], rows_max: int, log_max: int
) -> None:
    broker = Broker(limits=Limits(view_rows_max=rows_max, view_log_max=log_max))
    view = broker.machine.views.latest
    queries: list[dict[str, Any]] = [
        {},
        {"credit": 0},
        {"credit": 2, "principal": READER},
        {"addr": "agents/a1/*"},
    ]
    copies = [Copy(Follower(broker, **query)) for query in queries]
    producer = broker.control()
    number = 0
    for what, index in steps:
        copy = copies[index]
        match what:
            case "put":
                number += 1
                producer.send(line(type_="enqueue", to=f"agents/a{index}/inbox", env=envelope(f"e{number}")))
                broker.run()
            case "wait":
                broker.advance(100)
            case "grant" if "credit" in queries[index]:
                copy.follower.connection.received(b'{"credit":1}')
            case "stall":
                copy.follower.connection.congested(True)
            case "go":
                copy.follower.connection.congested(False)
            case "again":
                copy.read()
                copy.follower.connection.lost()
                copy.is_resumed = True
                copy.follower = Follower(broker, **queries[index], since=max(copy.version, 0))
        copy.read()
    for copy, query in zip(copies, queries, strict=True):
        if "credit" in query:
            copy.follower.connection.received(b'{"credit":100}')
        copy.follower.connection.congested(False)
    broker.advance(1_000)
    for copy, query in zip(copies, queries, strict=True):
        copy.read()
        glob, reader = query.get("addr", ""), query.get("principal", ANONYMOUS)
        assert copy.rows == {
            addr: msgspec.json.decode(entry.data)["id"]
            for addr, entry in view.rows.items()
            if addr.startswith(glob.rstrip("*")) and reader.allows("read", addr)
        }


def test_a_resumed_follower_that_is_always_a_little_behind_costs_no_more_and_more() -> None:
    limits = Limits(view_rows_max=4, view_log_max=8)
    broker = Broker(limits=limits)
    put(broker, "agents/first/inbox", "1")
    since = broker.machine.views.latest.version
    for number in range(6):
        filled(broker, f"agents/before-{number}/inbox", "1")
    follower = Follower(broker, since=since, credit=0)
    (watcher,) = broker.runtime.live.feeds["latestPerAgent"].watchers
    for number in range(60):
        filled(broker, f"agents/n{number}/inbox", "1")  # one row comes, and one goes for it
        follower.say({"credit": 2})
        assert watcher.seen != watcher.view.version
        assert len(watcher.rows) <= limits.view_rows_max + limits.view_log_max
