"""Following views: credit on a connection of its own, and followers of a control connection."""

from __future__ import annotations

import pytest

from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.scopes import ANONYMOUS
from penstock.dialects.courier.sessions import view_feed
from penstock.dialects.courier.sessions.view_feed import LiveQuery
from tests.dialects.courier.sessions.test_view_feed import JEN, SAM, Follower, put, told
from tests.dialects.courier.talking import Broker, Frame, codes


class TestCredit:
    @pytest.mark.promise("Views", "followers use credits, and a late follower receives each row once")
    def test_at_zero_nothing_comes_and_then_each_row_once(self) -> None:
        broker = Broker()
        follower = Follower(broker, credit=0)
        (first,) = follower.heard()
        assert "snapshot" in first
        for n in range(5):
            put(broker, SAM, f"s{n}")
            put(broker, JEN, f"j{n}")
        assert follower.heard() == []
        (one,) = follower.say({"credit": 1})
        assert told([one]) == [("add", SAM, "s4")]
        assert one["delta"]["prev"] == first["snapshot"]["watermark"]
        (two,) = follower.say({"credit": 5})
        assert told([two]) == [("add", JEN, "j4")]
        assert two["delta"]["prev"] == one["delta"]["version"]
        put(broker, SAM, "s5")
        assert len(follower.heard()) == 1

    def test_partial_progress_is_dropped_once_everything_is_sent(self) -> None:
        broker = Broker(limits=Limits(view_rows_max=2))
        follower = Follower(broker, credit=0)
        put(broker, SAM, "1")
        put(broker, JEN, "2")
        follower.heard()
        assert told(follower.say({"credit": 1})) == [("add", SAM, "1")]
        assert told(follower.say({"credit": 1})) == [("add", JEN, "2")]
        put(broker, "agents/ann/inbox", "3")
        assert [op for op, _, _ in told(follower.say({"credit": 2}))] == ["add", "remove"]
        put(broker, SAM, "4")
        put(broker, "agents/bob/inbox", "5")
        assert told(follower.say({"credit": 1})) == [("add", SAM, "4")]

    def test_is_used_up(self) -> None:
        broker = Broker()
        follower = Follower(broker, credit=2)
        follower.heard()
        for n in range(4):
            put(broker, SAM, str(n))
        assert told(follower.heard()) == [("add", SAM, "0"), ("update", SAM, "1")]

    @pytest.mark.parametrize(("n", "code"), [(0, "InvalidCredit"), (-1, "InvalidCredit"), (100_001, "InvalidCredit")])
    def test_a_wrong_grant_is_refused_and_changes_nothing(self, n: int, code: str) -> None:
        follower = Follower(Broker(), credit=0)
        follower.heard()
        (answer,) = follower.say({"credit": n})
        assert answer["error"]["code"] == code
        assert follower.wire.closed is None

    def test_without_credit_there_is_nothing_to_grant(self) -> None:
        follower = Follower(Broker())
        follower.heard()
        (answer,) = follower.say({"credit": 1})
        assert answer["error"]["code"] == "InvalidCredit"

    def test_out_of_range_on_the_way_in(self) -> None:
        broker = Broker()
        assert isinstance(view_feed.check(broker.machine, ANONYMOUS, LiveQuery("inflight", credit=-1)), Refusal)


class TestControl:
    def test_follows_grants_and_ends_by_the_name_of_the_subscription(self) -> None:
        broker = Broker()
        put(broker, SAM, "1")
        peer = broker.control()
        answer, first = peer.say(type_="live", view="latestPerAgent", credit=1, reqId=1)
        label = answer["result"]["subId"]
        assert (first["type"], first["subId"]) == ("live", label)
        assert len(first["snapshot"]["rows"]) == 1
        put(broker, SAM, "2")
        put(broker, SAM, "3")
        assert told(peer.heard()) == [("update", SAM, "2")]
        assert peer.say(type_="grant", n=5, subId=label, reqId=2)[0]["result"] == {"credit": 5}
        broker.advance(1_000)
        assert told(peer.heard()) == [("update", SAM, "3")]
        assert peer.say(type_="unsubscribe", subId=label, reqId=3)[0]["result"] == {"subId": label}
        put(broker, SAM, "4")
        assert peer.heard() == []
        assert broker.runtime.live.followed == {}

    def test_lives_beside_subscriptions_and_shares_no_name_with_them(self) -> None:
        broker = Broker()
        peer = broker.control()
        peer.say(type_="subscribe", stream=SAM, subId="x", credit=5)
        assert codes(peer.say(type_="live", view="inflight", subId="x", reqId=1)) == [(1, "InvalidRequest")]
        peer.say(type_="live", view="inflight", subId="y")
        assert codes(peer.say(type_="subscribe", stream=SAM, subId="y", reqId=2)) == [(2, "InvalidRequest")]
        put(broker, SAM, "1")
        kinds = [frame["type"] for frame in peer.heard()]
        assert sorted(kinds) == ["deliver", "live"]

    def test_the_number_of_followers_is_bounded(self) -> None:
        peer = Broker(limits=Limits(subscriptions_max=2)).control()
        peer.say(type_="live", view="inflight")
        peer.say(type_="live", view="inflight")
        assert codes(peer.say(type_="live", view="inflight", reqId=1)) == [(1, "QuotaExceeded")]

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"view": "nope"}, "UnknownView"),
            ({"view": "inflight", "credit": -1}, "InvalidCredit"),
            ({"view": "inflight", "addr": ""}, "InvalidRequest"),
            ({"view": "inflight", "since": -1}, "InvalidRequest"),
            ({}, "InvalidRequest"),
        ],
    )
    def test_a_wrong_wish_is_refused(self, fields: Frame, code: str) -> None:
        broker = Broker()
        assert codes(broker.control().say(type_="live", reqId=1, **fields)) == [(1, code)]
        assert broker.runtime.live.followed == {}
