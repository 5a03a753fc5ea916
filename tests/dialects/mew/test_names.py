"""Ids that look alike: one of them is in use, the other is refused on every way into a space."""

from __future__ import annotations

import pytest

from penstock.dialects.mew.join import has_one_script, plain_form
from tests.dialects.mew.driving import GatewayDriver, error, join, only, participant, settings, token

LOOKALIKES = ("alice ", " alice", "Alice", "ALICE", "ａlice", "аlice", "alice\ufe0f", "𝐚lice")


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("alice ", "Alice", True),
        ("worker-1", "worker-l", False),
        ("ａlice", "alice", True),
        ("straße", "STRASSE", True),
        ("é", "e\u0301", True),
        ("alice\ufe0f", "alice", True),
        ("alice", "bob", False),
        ("иван", "Иван", True),
    ],
)
def test_ids_of_one_plain_form_look_alike(one: str, other: str, is_same: bool) -> None:
    assert (plain_form(one) == plain_form(other)) is is_same


@pytest.mark.parametrize(
    ("id_", "is_one"),
    [
        ("alice-7", True),
        ("аlice", False),
        ("иван-7", True),
        ("αlpha", False),
        ("café", True),
        ("東京のカフェ", True),
        ("東京-tokyo", False),
        ("７ａ", True),
        ("🤖-bot", True),
    ],
)
def test_an_id_has_one_script(id_: str, is_one: bool) -> None:
    assert has_one_script(id_) is is_one


@pytest.mark.promise("MEW gateway", "an id that looks like another id of the space is refused")
@pytest.mark.parametrize("id_", LOOKALIKES)
@pytest.mark.parametrize("party", ["alice", "bob"])
def test_an_alias_cannot_look_like_a_known_participant(id_: str, party: str) -> None:
    driver = GatewayDriver(settings("alice", "bob"))
    client = driver.client()
    fault = error(client.send(join(id_, key=token(party))))
    assert fault["error"] == "invalid_participant" and client.wire.closed == (1008, "invalid_participant")
    assert driver.ask("GET", f"/participants/{id_}/messages", key=token(party))[0] == 403
    assert driver.space.present == {}


@pytest.mark.promise("MEW gateway", "an id that looks like another id of the space is refused")
def test_nor_like_an_alias_that_is_present_or_that_a_stream_refers_to() -> None:
    driver = GatewayDriver(settings("alice", "bob"))
    tab = driver.join("tab-7", key=token("alice"))
    client = driver.client()
    assert error(client.send(join("Tab-7", key=token("bob"))))["error"] == "invalid_participant"
    driver.open_stream(tab)
    tab.gone()
    client = driver.client()
    assert "tab-7" in error(client.send(join("TAB-7", key=token("bob"))))["message"]
    assert driver.join("tab-7", key=token("alice")).is_open


def test_one_that_is_right_behind_another_in_the_same_commit_is_refused_too() -> None:
    driver = GatewayDriver(settings("alice", "bob"))
    driver.journal.is_by_hand = True
    bob = driver.client()
    bob.put(join("bob"))
    driver.run()
    bob.put({"kind": "chat", "payload": {"text": "hold the commits"}})
    driver.run()
    first, second = driver.client(), driver.client()
    first.put(join("tab", key=token("alice")))
    second.put(join("Tab", key=token("bob")))
    driver.journal.is_by_hand = False
    while driver.journal.waiting:
        driver.journal.commit()
        driver.run()
    assert list(driver.space.present) == ["bob", "tab"]
    assert error(second.heard())["error"] == "invalid_participant"


@pytest.mark.promise("MEW gateway", "an id that looks like another id of the space is refused")
@pytest.mark.parametrize("id_", LOOKALIKES)
def test_an_invitation_cannot_look_like_a_known_participant(id_: str) -> None:
    driver = GatewayDriver(settings("alice", "bob"))
    bob = driver.join("bob")
    fault = error(bob.say("space/invite", {"participant_id": id_}, id="i"))
    assert fault["error"] == "invalid_request" and driver.space.state.invited == {}


def test_invitations_that_wait_for_their_commit_count() -> None:
    driver = GatewayDriver(settings("alice", "bob"))
    bob = driver.join("bob")
    bob.put({"kind": "space/invite", "payload": {"participant_id": "carol"}})
    bob.put({"kind": "space/invite", "payload": {"participant_id": "Carol"}})
    driver.run()
    assert list(driver.space.state.invited) == ["carol"]


@pytest.mark.parametrize("id_", ["Gateway", "SYSTEM", "System:x", "Operator", "gateway "])
def test_the_names_of_the_gateway_are_reserved_in_every_spelling(id_: str) -> None:
    driver = GatewayDriver(settings("alice"))
    client = driver.client()
    assert error(client.send(join(id_, key=token("alice"))))["error"] == "invalid_participant"


def test_participants_whose_ids_only_resemble_each_other_join() -> None:
    driver = GatewayDriver(settings("worker-1", "worker-l", guest=participant("guest")))
    driver.joined("worker-1", "worker-l")
    assert list(driver.space.present) == ["worker-1", "worker-l"]
    heard = driver.join("guest").say("space/invite", {"participant_id": "иван"}, id="i")
    assert only(heard, "space/invite-ack")["status"] == "created"
