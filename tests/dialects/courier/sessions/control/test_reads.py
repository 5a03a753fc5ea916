"""Reads that follow other requests of their connection, without waiting for the answers."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.scopes import OPERATOR
from tests.dialects.courier.talking import Broker, Frame, HandJournal, Peer, envelope, line


def pipelined(peer: Peer, *frames: Frame) -> dict[object, Any]:
    """Send all frames as one chunk; the results by `reqId`, in the order of the answers."""
    peer.send(b"".join(line(**frame) for frame in frames))
    peer.broker.run()
    answers = [frame for frame in peer.heard() if frame["type"] != "deliver"]
    return {answer["reqId"]: answer.get("result", answer.get("code")) for answer in answers}


def enqueue(id_: str, **more: Any) -> Frame:
    return {"type": "enqueue", "to": "agents/jen/inbox", "env": envelope(id_), "reqId": id_, **more}


def read(kind: str, req_id: object, **more: Any) -> Frame:
    return {"type": kind, "reqId": req_id, **more}


STREAM = "agents/jen/inbox"


@pytest.mark.promise("Queue protocols", "A read sees what earlier requests of its connection did")
def test_reads_see_the_enqueues_before_them() -> None:
    found = pipelined(
        Broker().control(),
        enqueue("1"),
        read("stats", "stats", stream=STREAM),
        read("peek", "peek", stream=STREAM),
        read("snapshot", "snapshot", view="latestPerAgent"),
        read("where", "where", id="1"),
        read("explain", "explain", stream=STREAM),
        read("metrics", "metrics"),
        enqueue("2"),
        read("pull", "pull", stream=STREAM, max=10),
        read("stats", "last", stream=STREAM),
    )
    names = ["1", "stats", "peek", "snapshot", "where", "explain", "metrics", "2", "pull", "last"]
    assert list(found) == names, "answers keep the order of their requests"
    assert found["stats"]["depth"] >= 1
    assert found["peek"]["rows"][0]["env"]["id"] == "1"
    assert found["snapshot"]["rows"][0]["addr"] == STREAM
    assert found["where"]["places"][0]["stream"] == STREAM
    assert found["explain"]["stream"] == STREAM
    assert [row["id"] for row in found["metrics"]["streams"]] == [STREAM]
    assert [delivery["deliver"]["id"] for delivery in found["pull"]["deliveries"]] == ["1", "2"]
    assert (found["last"]["depth"], found["last"]["inflight"]) == (0, 2)


@pytest.mark.promise(
    "Queue protocols", "A purge, a drop and a redrive see what earlier requests of their connection did"
)
@pytest.mark.parametrize("array", [False, True])
def test_purges_drops_and_redrives_see_the_enqueues_before_them(array: bool) -> None:
    def put(id_: str, **more: Any) -> Frame:
        return enqueue(id_, **({"env": [envelope(id_)]} if array else {}), **more)

    found = pipelined(
        Broker().control(OPERATOR),
        put("1"),
        read("purge", "purge", stream=STREAM),
        put("2"),
        read("drop", "drop", stream=STREAM, ids=["2"]),
        put("3", to=f"dlq/{STREAM}"),
        read("redrive", "redrive", stream=STREAM),
        put("4"),
        read("stats", "stats", stream=STREAM),
    )
    assert list(found) == ["1", "purge", "2", "drop", "3", "redrive", "4", "stats"]
    assert (found["purge"], found["drop"]) == ({"purged": 1}, {"dropped": 1})
    assert (found["redrive"]["moved"], found["stats"]["depth"]) == (1, 2)


def test_what_comes_while_a_purge_waits_is_handled_after_it() -> None:
    journal = HandJournal()
    peer = Broker(journal=journal).control(OPERATOR)
    assert pipelined(peer, enqueue("1"), read("purge", 1, stream=STREAM)) == {}
    assert pipelined(peer, enqueue("2")) == {} and journal.appended == [1], "it waits behind the purge"
    for _ in range(3):
        if journal.waiting:
            journal.commit()
        peer.broker.run()
    answers = [answer["result"] for answer in peer.heard()]
    assert answers[1:] == [{"purged": 1}, {"id": "2", "seq": 2}]


def test_a_send_without_an_answer_is_seen_too() -> None:
    send = {"type": "send", "to": "jen", "kind": "note", "payload": 1}
    assert pipelined(Broker().control(), send, read("stats", 1, stream=STREAM))[1]["depth"] == 1


def test_a_read_waits_for_no_other_connection() -> None:
    journal = HandJournal()
    broker = Broker(journal=journal)
    writer, reader = broker.control(), broker.control()
    assert pipelined(writer, enqueue("1")) == {}
    assert pipelined(reader, read("stats", 1, stream=STREAM))[1]["depth"] == 0
    assert pipelined(writer, read("stats", 2, stream=STREAM)) == {}
    journal.commit()
    broker.run()
    assert [frame["reqId"] for frame in writer.heard()] == ["1", 2]


def test_a_read_behind_a_refused_commit_is_answered() -> None:
    journal = HandJournal()
    peer = Broker(journal=journal).control()
    assert pipelined(peer, enqueue("1"), read("pull", 2, stream=STREAM), read("stats", 3, stream="other")) == {}
    journal.refuse()
    peer.broker.run()
    first, pull, stats = peer.heard()
    assert (first["code"], pull["result"], stats["code"]) == ("JournalUnavailable", {"deliveries": []}, "UnknownStream")


@pytest.mark.parametrize("ends", ["the peer leaves", "the server closes"])
def test_a_pull_of_a_connection_that_ended_takes_nothing(ends: str) -> None:
    journal = HandJournal()
    broker = Broker(journal=journal)
    peer = broker.control()
    pipelined(peer, enqueue("1"), read("pull", 2, stream=STREAM))
    if ends == "the peer leaves":
        peer.gone()
    else:
        peer.send(line(type="hello", version="v2"))
    broker.run()
    journal.commit()
    broker.run()
    assert broker.counts(STREAM)["q.depth"] == 1
    if ends == "the server closes":
        assert [frame.get("code") for frame in peer.heard()] == [None, "Draining", "Unsupported"]
        assert peer.wire.closed == (1003, "Unsupported")
