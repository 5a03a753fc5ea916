"""The followers of views: computed views are refreshed while they have followers, and slow readers catch up."""

from __future__ import annotations

import pytest

from penstock.core.limits import Limits
from penstock.dialects.courier.operations.views import SLICE
from tests.dialects.courier.sessions.test_view_feed import JEN, SAM, Follower, put, told
from tests.dialects.courier.talking import Broker, Frame, filled


class TestSlowReaders:
    @pytest.mark.promise("Views", "a follower that does not read costs nothing")
    def test_one_that_does_not_read_is_given_no_more_and_catches_up_by_row(self) -> None:
        broker = Broker()
        follower = Follower(broker)
        follower.heard()
        follower.connection.congested(True)
        for n in range(50):
            put(broker, SAM, str(n))
        assert follower.heard() == []
        assert follower.session.out == []
        follower.connection.congested(False)
        broker.advance(1_000)
        assert told(follower.heard()) == [("add", SAM, "49")]

    def test_one_that_missed_too_many_removals_gets_the_table_again(self) -> None:
        broker = Broker(limits=Limits(view_rows_max=1, view_log_max=1))
        put(broker, SAM, "0")
        follower = Follower(broker)
        follower.heard()
        follower.connection.congested(True)
        put(broker, JEN, "1")
        put(broker, SAM, "2")
        follower.connection.congested(False)
        broker.advance(1_000)
        (again,) = follower.heard()
        assert [row["env"]["id"] for row in again["snapshot"]["rows"]] == ["2"]


class TestMadeViews:
    def test_inflight_is_compared_periodically_while_it_has_followers(self) -> None:
        broker = Broker()
        put(broker, "jobs", "1")
        follower = Follower(broker, "inflight")
        assert follower.heard()[0]["snapshot"]["rows"] == []
        consumer = broker.subscribe("jobs", credit=1)
        broker.advance(600)
        (change,) = follower.heard()
        assert (change["delta"]["op"], change["delta"]["row"]["id"]) == ("add", "1")
        broker.advance(600)
        assert follower.heard() == []
        consumer.send({"extend": "1"})
        broker.advance(600)
        assert follower.heard()[0]["delta"]["op"] == "update"
        consumer.send({"ack": "1"})
        broker.advance(600)
        assert [frame["delta"]["op"] for frame in follower.heard()] == ["remove"]

    @pytest.mark.promise("Views", "the views `inflight` and `metrics:streams` work")
    def test_streams_are_made_in_slices_and_all_get_their_turn(self) -> None:
        broker = Broker()
        count = SLICE + 20
        for n in range(count):
            broker.machine.open_channel(f"s{n}")
        follower = Follower(broker, "metrics:streams")
        assert len(follower.heard()[0]["snapshot"]["rows"]) == count
        filled(broker, f"s{count - 1}", "1")
        filled(broker, "s0", "1")
        broker.machine.channels.pop("s5")
        heard: list[Frame] = []
        for _ in range(3):
            broker.advance(600)
            heard += follower.heard()
        changed = {frame["delta"]["addr"]: frame["delta"]["op"] for frame in heard}
        assert changed == {"s0": "update", f"s{count - 1}": "update", "s5": "remove"}

    def test_without_followers_nothing_is_encoded(self) -> None:
        broker = Broker()
        follower = Follower(broker, "metrics:streams")
        follower.connection.lost()
        broker.advance(600)
        version = broker.machine.views.streams.version
        put(broker, "jobs", "1")
        broker.advance(5_000)
        assert broker.machine.views.streams.version == version
