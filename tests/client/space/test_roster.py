"""A participant's state of its space: only the gateway changes it, except when the owner closes a stream."""

from __future__ import annotations

import json

from penstock.client.space.messages import read_message
from penstock.client.space.roster import REQUESTS_MAX, Roster


def take(roster: Roster, kind: str, payload: object, *, sender: str = "gateway", **fields: object) -> None:
    message = {"kind": kind, "from": sender, "payload": payload, **fields}
    roster.take(read_message(json.dumps(message).encode()))


def welcomed(*streams: dict[str, object]) -> Roster:
    roster = Roster()
    payload = {
        "you": {"id": "ann", "capabilities": [{"kind": "chat"}]},
        "participants": [{"id": "bob", "capabilities": [{"kind": "*"}]}],
        "active_streams": list(streams),
    }
    take(roster, "system/welcome", payload)
    return roster


def test_a_welcome_sets_everything():
    roster = welcomed({"stream_id": "stream-1", "owner": "bob"})
    assert (roster.id, roster.capabilities) == ("ann", [{"kind": "chat"}])
    assert roster.participants == {"bob": [{"kind": "*"}]}
    assert roster.streams["stream-1"]["owner"] == "bob"


def test_an_update_without_streams_leaves_the_streams():
    roster = welcomed({"stream_id": "stream-1", "owner": "bob"})
    take(roster, "system/welcome", {"you": {"id": "ann", "capabilities": []}, "participants": []})
    assert (roster.capabilities, roster.participants) == ([], {})
    assert "stream-1" in roster.streams
    assert "active_streams" in roster.welcome


def test_participants_come_and_go_by_presence_of_the_gateway_alone():
    roster = welcomed()
    take(roster, "system/presence", {"event": "join", "participant": {"id": "cat"}})
    take(roster, "system/presence", {"event": "leave", "participant": {"id": "bob"}}, sender="cat")
    assert set(roster.participants) == {"bob", "cat"}
    take(roster, "system/presence", {"event": "leave", "participant": {"id": "bob"}})
    assert set(roster.participants) == {"cat"}


def test_an_opened_stream_has_what_its_request_said_but_only_the_granted_target():
    roster = welcomed()
    take(roster, "stream/request", {"description": "heat", "target": ["bob"]}, sender="ann", id="r1")
    opened = {"stream_id": "stream-1", "owner": "ann"}
    take(roster, "stream/open", opened, id="o1", correlation_id=["r1"])
    assert roster.streams["stream-1"] == {"description": "heat", **opened}


def test_a_request_that_is_echoed_after_its_answer_still_counts():
    roster = welcomed()
    take(roster, "stream/open", {"stream_id": "stream-1", "owner": "ann"}, correlation_id=["r1"])
    take(roster, "stream/request", {"description": "heat"}, sender="ann", id="r1")
    assert roster.streams["stream-1"]["description"] == "heat"


def test_writers_and_owner_change_by_the_gateway_alone():
    roster = welcomed({"stream_id": "stream-1", "owner": "bob", "authorized_writers": ["bob"]})
    granted = {"stream_id": "stream-1", "authorized_writers": ["bob", "ann"], "new_owner": "ann"}
    take(roster, "stream/ownership-transferred", granted, sender="cat")
    assert roster.streams["stream-1"]["owner"] == "bob"
    take(roster, "stream/ownership-transferred", granted)
    assert roster.streams["stream-1"]["owner"] == "ann"
    assert roster.streams["stream-1"]["authorized_writers"] == ["bob", "ann"]


def test_a_close_names_its_stream_or_what_opened_it():
    roster = welcomed({"stream_id": "stream-1", "owner": "bob"})
    take(roster, "stream/close", {"stream_id": "stream-1"}, sender="bob")
    take(roster, "stream/open", {"stream_id": "stream-2"}, correlation_id=["r2"])
    take(roster, "stream/close", {}, sender="ann", correlation_id=["r2"])
    assert roster.streams == {}


def test_unanswered_requests_are_bounded():
    roster = welcomed()
    for number in range(REQUESTS_MAX + 10):
        take(roster, "stream/request", {"n": number}, sender="bob", id=f"r{number}")
    assert len(roster._requests) == REQUESTS_MAX
    assert "r0" not in roster._requests
