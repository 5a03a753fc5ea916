"""Several subscriptions on one connection: labels, and which one a settle without a label affects."""

from tests.dialects.courier.talking import Broker, envelope


def test_labels_are_made_where_none_is_given_and_never_used_twice() -> None:
    peer = Broker().control()
    assert peer.say(type="subscribe", stream="a", reqId=1)[0]["result"] == {"subId": "s1"}
    assert peer.say(type="subscribe", stream="b", subId="mine", reqId=2)[0]["result"] == {"subId": "mine"}
    (refused,) = peer.say(type="subscribe", stream="c", subId="mine", reqId=3)
    assert (refused["code"], refused["ref"]) == ("InvalidRequest", "subId")


def test_a_settle_without_a_label_reaches_the_subscription_that_holds_the_envelope() -> None:
    peer = Broker().control()
    for stream in ("a", "b"):
        peer.say(type="subscribe", stream=stream, credit=5, reqId=1)
    peer.say(type="enqueue", to="a", env=envelope(id="1", to="a"))
    answers = [frame for frame in peer.say(type="release", id="1", reqId=4) if frame["type"] != "deliver"]
    assert [answer["result"] for answer in answers] == [{"id": "1"}]


def test_a_grant_without_a_label_goes_to_the_newest_subscription() -> None:
    peer = Broker().control()
    assert peer.say(type="grant", n=1, reqId=1)[0]["code"] == "InvalidRequest"
    peer.say(type="subscribe", stream="a", subId="old", credit=3, reqId=2)
    peer.say(type="subscribe", stream="b", subId="new", reqId=3)
    assert peer.say(type="grant", n=2, reqId=4)[0]["result"] == {"credit": 2}
    peer.say(type="unsubscribe", subId="new", reqId=5)
    assert peer.say(type="grant", n=2, reqId=6)[0]["result"] == {"credit": 5}
