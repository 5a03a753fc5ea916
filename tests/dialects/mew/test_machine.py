"""Requests that arrive while an earlier one waits for its commit cannot bypass it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.limits import Limits
from tests.dialects.mew.driving import Client, GatewayDriver, envelope, error, kinds, only


def decide(driver: GatewayDriver) -> None:
    """The journal takes everything that waits, and answers at once from then on."""
    driver.journal.is_by_hand = False
    while driver.journal.waiting:
        driver.journal.commit()
        driver.run()


@pytest.fixture
def waiting() -> tuple[GatewayDriver, Client, Client, Client]:
    """Three participants, a stream of the first, and a journal that takes its time."""
    driver = GatewayDriver()
    p1, p2, p3 = driver.joined("p1", "p2", "p3")
    driver.open_stream(p1)
    for client in (p2, p3):
        client.received()
    driver.journal.is_by_hand = True
    return driver, p1, p2, p3


Waiting = tuple[GatewayDriver, Client, Client, Client]
STREAM = {"stream_id": "stream-1"}


def test_two_invitations_of_the_same_make_one_token(waiting: Waiting) -> None:
    driver, p1, p2, _ = waiting
    p1.put(envelope("space/invite", {"participant_id": "x"}))
    p2.put(envelope("space/invite", {"participant_id": "x"}))
    driver.run()
    decide(driver)
    first = only([each for each in p1.heard() if each["kind"] == "space/invite-ack"], "space/invite-ack")
    second = only([each for each in p2.heard() if each["kind"] == "space/invite-ack"], "space/invite-ack")
    assert (first["status"], second["status"]) == ("created", "already_exists")
    assert len(driver.rows("invite")) == len(driver.minted) == 1
    driver.join("x", key=first["token"])


@pytest.mark.promise("MEW gateway", "size, rate and number are limited")
@pytest.mark.parametrize(
    ("limits", "kind", "payloads", "code"),
    [
        (Limits(space_streams_max=2), "stream/request", [{}] * 4, "too_many_streams"),
        (
            Limits(invites_max=2),
            "space/invite",
            [{"participant_id": f"x{n}"} for n in range(4)],
            "too_many_invites",
        ),
        (
            Limits(grants_max=2),
            "capability/grant",
            [{"recipient": "p2", "capabilities": [{"kind": f"k{n}"}]} for n in range(4)],
            "too_many_grants",
        ),
    ],
)
def test_bounds_count_what_waits(limits: Limits, kind: str, payloads: list[Any], code: str) -> None:
    driver = GatewayDriver(limits=limits)
    p1, _ = driver.joined("p1", "p2")
    driver.journal.is_by_hand = True
    p1.put(*(envelope(kind, payload) for payload in payloads))
    driver.run()
    decide(driver)
    refused = [each["payload"]["error"] for each in p1.heard() if each["kind"] == "system/error"]
    assert refused == [code, code]


def test_a_refused_commit_gives_its_room_back() -> None:
    driver = GatewayDriver(limits=Limits(space_streams_max=1, invites_max=1, grants_max=1))
    p1, _ = driver.joined("p1", "p2")
    asked = [
        envelope("stream/request", {}),
        envelope("space/invite", {"participant_id": "x"}),
        envelope("capability/grant", {"recipient": "p2", "capabilities": [{"kind": "k"}]}),
    ]
    driver.journal.is_by_hand = True
    p1.put(*asked)
    driver.run()
    driver.journal.refuse()
    driver.journal.is_by_hand = False
    driver.run()
    assert kinds(p1.heard()) == ["system/error"] * 3
    assert "system/error" not in kinds(p1.send(*asked))


def test_a_stream_is_given_away_once(waiting: Waiting) -> None:
    driver, p1, _p2, p3 = waiting
    p1.put(
        envelope("stream/transfer-ownership", STREAM | {"new_owner": "p2"}),
        envelope("stream/transfer-ownership", STREAM | {"new_owner": "p3"}, id="t2"),
    )
    driver.run()
    decide(driver)
    heard = p3.heard()
    assert kinds(heard) == ["stream/ownership-transferred"]
    assert driver.space.state.streams["stream-1"].route.owner == "p2"
    assert error(p1.heard())["error"] == "unauthorized"


def test_a_stream_is_closed_once(waiting: Waiting) -> None:
    driver, p1, _, p3 = waiting
    p1.put(envelope("stream/close", STREAM), envelope("stream/close", STREAM))
    driver.run()
    decide(driver)
    assert driver.space.state.streams == {} and len(driver.rows("stream_close")) == 1
    assert kinds(p3.heard())[0] == "stream/close"


def test_frames_and_a_close_may_be_sent_right_behind_a_request(waiting: Waiting) -> None:
    driver, p1, _p2, p3 = waiting
    p1.put(
        envelope("stream/request", {"direction": "upload"}, id="r9"),
        b"#stream-2#by its owner",
        envelope("stream/close", correlation_id="r9"),
    )
    driver.run()
    decide(driver)
    received = p3.received()
    assert [each if isinstance(each, bytes) else each["kind"] for each in received] == [
        "stream/request",
        "stream/open",
        b"#stream-2#by its owner",
        "stream/close",
    ]
    assert list(driver.space.state.streams) == ["stream-1"]


def test_a_writer_that_leaves_before_its_grant_is_durable_is_no_writer(waiting: Waiting) -> None:
    driver, p1, p2, _ = waiting
    p1.put(envelope("stream/grant-write", STREAM | {"participant_id": "p2"}))
    driver.run()
    p2.gone()
    decide(driver)
    assert list(driver.space.state.streams["stream-1"].route.writers) == ["p1"]
    again = driver.join("p2")
    assert error(again.send("#stream-1#x"))["error"] == "unauthorized_stream_write"


def test_a_new_owner_that_leaves_before_it_has_the_stream_is_waited_for_and_no_longer(
    waiting: Waiting,
) -> None:
    driver, p1, p2, p3 = waiting
    p1.put(envelope("stream/transfer-ownership", STREAM | {"new_owner": "p2"}))
    driver.run()
    p2.gone()
    decide(driver)
    assert list(driver.space.state.streams) == ["stream-1"]
    p3.received()
    driver.advance(driver.machine.limits.owner_grace_ms)
    assert driver.space.state.streams == {}
    assert kinds(p3.heard()) == ["stream/close"]


def test_an_owner_that_leaves_before_its_stream_is_open_is_waited_for_and_no_longer(waiting: Waiting) -> None:
    driver, _, p2, _ = waiting
    p2.put(envelope("stream/request", {}))
    driver.run()
    p2.gone()
    decide(driver)
    assert list(driver.space.state.streams) == ["stream-1", "stream-2"]
    driver.advance(driver.machine.limits.owner_grace_ms)
    assert list(driver.space.state.streams) == ["stream-1"]


def test_a_right_counts_when_it_is_durable_and_is_gone_when_that_is(waiting: Waiting) -> None:
    driver, p1, *_ = waiting
    decide(driver)
    guest = driver.join("guest")
    driver.journal.is_by_hand = True
    p1.put(envelope("capability/grant", {"recipient": "guest", "capabilities": [{"kind": "mcp/request"}]}, id="g"))
    driver.run()
    guest.put(envelope("mcp/request", {"method": "early"}))
    driver.run()
    decide(driver)
    guest.put(envelope("mcp/request", {"method": "late"}))
    driver.run()
    heard = [each["payload"]["method"] for each in p1.heard() if each["kind"] == "mcp/request"]
    assert heard == ["late"]
    p1.say("capability/revoke", {"recipient": "guest", "grant_id": "g"})
    guest.received()
    assert error(guest.say("mcp/request", {"method": "gone"}))["error"] == "capability_violation"
