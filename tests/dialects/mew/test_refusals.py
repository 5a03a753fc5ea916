"""A journal that rejects: the request has no effect, and only its sender receives an error."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dialects.mew.driving import (
    Client,
    GatewayDriver,
    Message,
    envelope,
    error,
    join,
    kinds,
    picture,
    settings,
)

GRANT = {"recipient": "p3", "capabilities": [{"kind": "x"}]}


@pytest.fixture
def room() -> tuple[GatewayDriver, Client, Client]:
    """A space where everything that can be undone is there already once."""
    driver = GatewayDriver(settings("p1", "p2", "p3", "p4"))
    p1, p2 = driver.joined("p1", "p2")
    driver.open_stream(p1)
    p1.say("stream/grant-write", {"stream_id": "stream-1", "participant_id": "p2"})
    p1.say("capability/grant", GRANT, id="g1")
    p1.say("space/invite", {"participant_id": "x"})
    p1.say("space/kick", {"participant_id": "p4", "reason": "noise"})
    p1.received()
    p2.received()
    return driver, p1, p2


CHANGES = [
    ("chat", {"text": "x"}),
    ("stream/request", {"direction": "upload"}),
    ("stream/close", {"stream_id": "stream-1"}),
    ("stream/grant-write", {"stream_id": "stream-1", "participant_id": "p1"}),
    ("stream/revoke-write", {"stream_id": "stream-1", "participant_id": "p2"}),
    ("stream/transfer-ownership", {"stream_id": "stream-1", "new_owner": "p2"}),
    ("capability/grant", {"recipient": "p2", "capabilities": [{"kind": "y"}]}),
    ("capability/revoke", {"recipient": "p3", "grant_id": "g1"}),
    ("capability/revoke", {"recipient": "p3", "capabilities": [{"kind": "*"}]}),
    ("space/invite", {"participant_id": "y"}),
    ("space/invite", {"participant_id": "p4"}),
    ("space/kick", {"participant_id": "p2"}),
    ("space/kick", {"participant_id": "x"}),
]


def without_numbers(driver: GatewayDriver) -> Any:
    """What a space remembers but for how far it has counted: numbers that were refused are not used again."""
    found = picture(driver.memory)["demo"]
    del found["seq"], found["stream_no"]
    return found


@pytest.mark.promise("MEW gateway", "a change that the journal rejects has no effect, and only its sender is notified")
@pytest.mark.parametrize(("kind", "payload"), CHANGES)
def test_what_is_refused_is_undone_and_only_its_sender_hears_of_it(
    room: tuple[GatewayDriver, Client, Client], kind: str, payload: Message
) -> None:
    driver, p1, p2 = room
    before = without_numbers(driver)
    rights = {name: driver.space.rights(name).all for name in ("p1", "p2", "p3", "p4", "x", "y")}
    driver.journal.is_by_hand = True
    assert p1.say(kind, payload, id="e1") == [] and p2.received() == []
    driver.journal.refuse("the disk is full")
    driver.run()
    (said,) = p1.heard()
    assert (error([said])["error"], said["correlation_id"]) == ("journal_unavailable", ["e1"])
    assert "the disk is full" in said["payload"]["message"]
    assert p2.received() == [] and p2.is_open
    assert without_numbers(driver) == before
    assert {name: driver.space.rights(name).all for name in rights} == rights
    # The stream works as before.
    driver.journal.is_by_hand = False
    p1.put("#stream-1#1")
    p2.put("#stream-1#2")
    driver.run()
    assert p2.frames() == [b"#stream-1#1", b"#stream-1#2"]
    assert driver.minted == [("demo", "x", driver.minted[0][2])]


@pytest.mark.parametrize(("kind", "payload"), CHANGES)
def test_the_same_works_once_the_journal_takes_it(
    room: tuple[GatewayDriver, Client, Client], kind: str, payload: Message
) -> None:
    """So the refusals above are the journal's, and nothing that was left behind is in the way."""
    driver, p1, _p2 = room
    driver.journal.is_by_hand = True
    p1.say(kind, payload)
    driver.journal.refuse()
    driver.run()
    p1.heard()
    driver.journal.is_by_hand = False
    assert "system/error" not in kinds(p1.say(kind, payload))


def test_changes_that_build_on_each_other_are_undone_together(room: tuple[GatewayDriver, Client, Client]) -> None:
    driver, p1, p2 = room
    before = without_numbers(driver)
    driver.journal.is_by_hand = True
    for kind, payload in CHANGES:
        p1.put(envelope(kind, payload))
    p1.put(envelope("stream/request", {}, id="r9"), envelope("stream/close", correlation_id="r9"))
    driver.run()
    driver.journal.refuse()
    driver.run()
    assert without_numbers(driver) == before
    assert set(kinds(p1.heard())) == {"system/error"} and p2.received() == []


def test_a_frame_behind_a_refused_request_is_refused_too(room: tuple[GatewayDriver, Client, Client]) -> None:
    driver, p1, p2 = room
    driver.journal.is_by_hand = True
    p1.put(envelope("stream/request", {}, id="r9"), b"#stream-2#x")
    driver.run()
    driver.journal.refuse()
    driver.run()
    assert [each["payload"]["error"] for each in p1.heard()] == [
        "journal_unavailable",
        "unauthorized_stream_write",
    ]
    assert p2.received() == []
    driver.journal.is_by_hand = False
    assert driver.open_stream(p1) == "stream-3"


def test_a_journal_short_of_space_lets_people_close_revoke_and_kick(
    room: tuple[GatewayDriver, Client, Client],
) -> None:
    driver, p1, p2 = room
    driver.journal.is_by_hand = True
    p1.put(
        envelope("stream/request", {}, id="refused"),
        envelope("stream/revoke-write", {"stream_id": "stream-1", "participant_id": "p2"}),
        envelope("stream/close", {"stream_id": "stream-1"}),
        envelope("capability/revoke", {"recipient": "p3", "grant_id": "g1"}),
        envelope("space/kick", {"participant_id": "p2"}),
    )
    driver.run()
    driver.journal.refuse_fresh()
    driver.run()
    heard = p1.heard()
    assert kinds(heard)[:5] == [
        "system/error",
        "stream/write-revoked",
        "stream/close",
        "capability/revoke",
        "space/kick",
    ]
    assert heard[0]["correlation_id"] == ["refused"]
    assert not p2.is_open
    assert driver.space.state.streams == {} and driver.space.state.grants == {}


@pytest.mark.promise("MEW gateway", "a change that the journal rejects has no effect, and only its sender is notified")
def test_what_a_journal_short_of_space_kept_is_what_counts(room: tuple[GatewayDriver, Client, Client]) -> None:
    """Something refused may lie around something kept that is about the very same."""
    driver, p1, _p2 = room
    driver.join("p3")
    driver.journal.is_by_hand = True
    p1.put(
        envelope("stream/grant-write", {"stream_id": "stream-1", "participant_id": "p3"}),  # refused
        envelope("stream/revoke-write", {"stream_id": "stream-1", "participant_id": "p2"}),  # kept
        envelope("capability/grant", {"recipient": "p3", "capabilities": [{"kind": "y"}]}, id="g2"),  # refused
        envelope("capability/revoke", {"recipient": "p3", "grant_id": "g1"}),  # kept
        envelope("space/invite", {"participant_id": "y"}),  # refused
    )
    driver.run()
    driver.journal.refuse_fresh()
    driver.run()
    assert list(driver.space.state.streams["stream-1"].route.writers) == ["p1"]
    assert driver.space.state.grants == {}
    later = GatewayDriver(settings("p1", "p2", "p3", "p4"), rows=driver.journal.rows)
    assert without_numbers(later) == without_numbers(driver)


def test_a_stream_whose_close_was_refused_is_closed_later(room: tuple[GatewayDriver, Client, Client]) -> None:
    """Its owner is gone for good, so no participant would close it."""
    driver, p1, p2 = room
    p1.gone()
    p2.received()
    driver.journal.is_by_hand = True
    driver.advance(driver.machine.limits.owner_grace_ms)
    while driver.journal.waiting:
        driver.journal.refuse()
    driver.run()
    assert list(driver.space.state.streams) == ["stream-1"]
    driver.journal.is_by_hand = False
    driver.advance(driver.machine.limits.owner_grace_ms)
    assert driver.space.state.streams == {}
    assert kinds(p2.heard()) == ["stream/close"]


def test_a_join_is_not_held_up_by_a_refusal(room: tuple[GatewayDriver, Client, Client]) -> None:
    driver, p1, _ = room
    driver.journal.is_by_hand = True
    p1.send(envelope("chat", {"text": "x"}))
    p3 = driver.client()
    p3.send(join("p3"))
    driver.journal.refuse()
    driver.run()
    assert kinds(p3.heard()) == ["system/welcome"]


def test_what_came_after_a_refused_commit_and_was_kept_stays(room: tuple[GatewayDriver, Client, Client]) -> None:
    driver, p1, p2 = room
    p3 = driver.join("p3")
    driver.journal.is_by_hand = True
    p1.send(envelope("stream/grant-write", {"stream_id": "stream-1", "participant_id": "p3"}))
    p2.send(envelope("stream/request", {"direction": "upload"}, id="mine"))
    p1.send(envelope("stream/revoke-write", {"stream_id": "stream-1", "participant_id": "p2"}))
    p2.send(envelope("capability/grant", GRANT, id="g9"))
    assert len(driver.journal.waiting) == 4
    driver.journal.refuse()
    for _ in range(3):
        driver.journal.commit()
    driver.run()
    assert kinds(p1.heard()) == [
        "system/error",
        "stream/request",
        "stream/open",
        "stream/write-revoked",
        "capability/grant",
    ]
    assert list(driver.space.state.streams["stream-1"].route.writers) == ["p1"]
    assert list(driver.space.state.grants["p3"]) == ["g1", "g9"]
    p2.received()
    p3.received()
    driver.journal.is_by_hand = False
    p2.put("#stream-2#works")
    driver.run()
    assert p3.frames() == p2.frames() == [b"#stream-2#works"]
    later = GatewayDriver(settings("p1", "p2", "p3", "p4"), rows=driver.journal.rows)
    assert without_numbers(later)["grants"] == without_numbers(driver)["grants"]


def test_messages_of_a_later_commit_do_not_show_the_rejected_one(
    room: tuple[GatewayDriver, Client, Client],
) -> None:
    driver, p1, _ = room
    driver.join("p3")
    driver.journal.is_by_hand = True
    p1.send(envelope("stream/grant-write", {"stream_id": "stream-1", "participant_id": "p3"}))
    p1.send(envelope("stream/revoke-write", {"stream_id": "stream-1", "participant_id": "p2"}))
    driver.journal.refuse()
    driver.journal.commit()
    driver.run()
    refused, revoked = p1.heard()[-2:]
    assert refused["kind"] == "system/error"
    assert revoked["payload"]["authorized_writers"] == ["p1"]


def test_counts_are_right_after_a_close_that_was_refused(room: tuple[GatewayDriver, Client, Client]) -> None:
    driver, p1, _ = room
    p1.put(b"#stream-1#x")
    driver.run()
    before = driver.space.router.counts()
    driver.journal.is_by_hand = True
    p1.put(envelope("stream/close", {"stream_id": "stream-1"}), b"#stream-1#behind it")
    driver.run()
    driver.journal.refuse()
    driver.run()
    assert before["frames"] == 1
    assert driver.space.router.counts()["frames"] == 2  # the frame behind the close that never was
