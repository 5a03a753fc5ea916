"""Writers and owners of a stream: grants, revocations and transfers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dialects.mew.driving import (
    Client,
    GatewayDriver,
    error,
    kinds,
    only,
    settings,
)

OPERATIONS = ["stream/grant-write", "stream/revoke-write", "stream/transfer-ownership"]


PAYLOAD = {"stream_id": "stream-1", "participant_id": "p2", "new_owner": "p2"}


class TestWriters:
    @pytest.fixture
    def opened(self, driver: GatewayDriver) -> tuple[GatewayDriver, Client, Client, Client]:
        p1, p2, p3 = driver.joined("p1", "p2", "p3")
        driver.open_stream(p1)
        p2.received()
        p3.received()
        return driver, p1, p2, p3

    @pytest.mark.parametrize(
        ("kind", "ack", "told"),
        [
            (
                "stream/grant-write",
                "stream/write-granted",
                {"participant_id": "p2", "authorized_writers": ["p1", "p2"]},
            ),
            (
                "stream/revoke-write",
                "stream/write-revoked",
                {"participant_id": "p2", "authorized_writers": ["p1"]},
            ),
            (
                "stream/transfer-ownership",
                "stream/ownership-transferred",
                {"previous_owner": "p1", "new_owner": "p2", "authorized_writers": ["p2"]},
            ),
        ],
    )
    def test_everybody_hears_the_acknowledgement_in_place_of_the_request(
        self, opened: tuple[GatewayDriver, Client, Client, Client], kind: str, ack: str, told: Any
    ) -> None:
        _house, p1, p2, p3 = opened
        heard = p1.say(kind, PAYLOAD | {"reason": "why"}, id="w1")
        assert heard == p2.heard() == p3.heard()
        (said,) = heard
        assert (said["kind"], said["from"], said["correlation_id"]) == (ack, "gateway", ["w1"])
        assert said["to"] == ["p1", "p2", "p3"]
        assert said["payload"] == {"stream_id": "stream-1", **told, "reason": "why"}
        # Once more changes nothing and is acknowledged too, as long as the owner asks.
        if kind != "stream/transfer-ownership":
            assert only(p1.say(kind, PAYLOAD), ack)["authorized_writers"] == told["authorized_writers"]

    def test_a_granted_writer_writes_and_a_revoked_one_does_not(
        self, opened: tuple[GatewayDriver, Client, Client, Client]
    ) -> None:
        driver, p1, p2, p3 = opened
        p1.say("stream/grant-write", PAYLOAD)
        p2.put("#stream-1#a")
        driver.run()
        assert p3.frames() == [b"#stream-1#a"]
        p1.received()
        p1.say("stream/revoke-write", PAYLOAD)
        p2.received()
        assert error(p2.send("#stream-1#b"))["error"] == "unauthorized_stream_write"
        assert p3.frames() == []

    def test_a_transfer_takes_the_previous_owners_right_to_write(
        self, opened: tuple[GatewayDriver, Client, Client, Client]
    ) -> None:
        _house, p1, p2, _p3 = opened
        p1.say("stream/transfer-ownership", PAYLOAD)
        assert error(p1.send("#stream-1#x"))["error"] == "unauthorized_stream_write"
        assert error(p1.say("stream/close", {"stream_id": "stream-1"}))["error"] == "unauthorized"
        p2.received()
        assert kinds(p2.say("stream/close", {"stream_id": "stream-1"})) == ["stream/close"]

    @pytest.mark.promise(
        "MEW gateway",
        "streams: ids, closes, writers and owners have the same errors on both transports",
    )
    @pytest.mark.parametrize("kind", OPERATIONS)
    @pytest.mark.parametrize(
        ("sender", "change", "code", "status"),
        [
            ("p1", {"stream_id": "stream-9"}, "stream_not_found", 404),
            ("p2", {}, "unauthorized", 403),
            ("p1", {"participant_id": "p4", "new_owner": "p4"}, "participant_not_found", 404),
            ("p1", {"participant_id": "nobody", "new_owner": "nobody"}, "participant_not_found", 404),
            ("p1", {"stream_id": None}, "invalid_request", 400),
            ("p1", {"participant_id": None, "new_owner": None}, "invalid_request", 400),
        ],
    )
    def test_the_same_errors_on_both_transports_and_nothing_is_passed_on(
        self,
        opened: tuple[GatewayDriver, Client, Client, Client],
        kind: str,
        sender: str,
        change: Any,
        code: str,
        status: int,
    ) -> None:
        driver, p1, p2, p3 = opened
        client = {"p1": p1, "p2": p2}[sender]
        payload = PAYLOAD | change
        (said,) = client.say(kind, payload, id="w1")
        assert (said["payload"]["error"], said["from"], said["correlation_id"]) == (code, "gateway", ["w1"])
        got, body = driver.post(sender, {"kind": kind, "payload": payload, "id": "w2"})
        assert got == status
        if code != "invalid_request":
            assert (body["kind"], body["payload"]["error"], body["correlation_id"]) == (
                "system/error",
                code,
                ["w2"],
            )
        else:
            assert body["error"] == code
        assert p3.heard() == []
        route = driver.space.state.streams["stream-1"].route
        assert (route.owner, list(route.writers)) == ("p1", ["p1"])

    @pytest.mark.parametrize("kind", OPERATIONS)
    def test_without_a_payload_it_is_refused(
        self, opened: tuple[GatewayDriver, Client, Client, Client], kind: str
    ) -> None:
        driver, p1, _, p3 = opened
        assert error(p1.say(kind))["error"] == "invalid_request"
        assert driver.post("p1", {"kind": kind})[0] == 400
        assert p3.heard() == []

    def test_the_owner_cannot_revoke_itself(self, opened: tuple[GatewayDriver, Client, Client, Client]) -> None:
        driver, p1, *_ = opened
        payload = PAYLOAD | {"participant_id": "p1"}
        assert error(p1.say("stream/revoke-write", payload))["error"] == "invalid_operation"
        assert driver.post("p1", {"kind": "stream/revoke-write", "payload": payload})[0] == 400

    def test_names_are_resolved(self, opened: tuple[GatewayDriver, Client, Client, Client]) -> None:
        driver, p1, *_ = opened
        alias = driver.join("laptop", key="guest-token")
        p1.received()
        told = only(p1.say("stream/grant-write", PAYLOAD | {"participant_id": "guest"}), "stream/write-granted")
        assert told["participant_id"] == "laptop"
        alias.received()
        alias.put("#stream-1#x")
        driver.run()
        assert alias.frames() == [b"#stream-1#x"]

    def test_a_writer_that_leaves_may_not_write_any_more_and_everybody_hears_it(
        self, opened: tuple[GatewayDriver, Client, Client, Client]
    ) -> None:
        driver, p1, p2, p3 = opened
        p1.say("stream/grant-write", PAYLOAD)
        p3.received()
        p2.gone()
        heard = p3.heard()
        assert sorted(kinds(heard)) == ["stream/write-revoked", "system/presence"]
        assert only(heard, "stream/write-revoked") == {
            "stream_id": "stream-1",
            "participant_id": "p2",
            "authorized_writers": ["p1"],
            "reason": "disconnected",
        }
        again = driver.join("p2")
        assert error(again.send("#stream-1#x"))["error"] == "unauthorized_stream_write"

    def test_a_writer_can_be_revoked_by_the_name_of_one_who_is_gone(
        self, opened: tuple[GatewayDriver, Client, Client, Client]
    ) -> None:
        driver, p1, _p2, _ = opened
        p1.say("stream/grant-write", PAYLOAD)
        later = GatewayDriver(settings("p1", "p2", "p3"), rows=driver.journal.rows)
        (owner,) = later.joined("p1")
        told = only(owner.say("stream/revoke-write", PAYLOAD), "stream/write-revoked")
        assert told["authorized_writers"] == ["p1"]


@pytest.mark.promise("Invariants", "a planned restart keeps the right to write on streams, as a crash does")
def test_a_drain_keeps_the_writers_of_streams() -> None:
    driver = GatewayDriver()
    p1, _p2 = driver.joined("p1", "p2")
    driver.open_stream(p1)
    p1.say("stream/grant-write", {"stream_id": "stream-1", "participant_id": "p2"})
    driver.runtime.drain(lambda abandoned: None)
    driver.run()
    again = driver.again()
    assert list(again.space.state.streams["stream-1"].route.writers) == ["p1", "p2"]
    p2 = again.join("p2")
    p2.put(b"#stream-1#still here")
    again.run()
    assert p2.frames() == [b"#stream-1#still here"]


def test_a_writer_that_leaves_before_the_drain_loses_its_right() -> None:
    driver = GatewayDriver()
    p1, p2 = driver.joined("p1", "p2")
    driver.open_stream(p1)
    p1.say("stream/grant-write", {"stream_id": "stream-1", "participant_id": "p2"})
    p2.gone()
    assert list(driver.again().space.state.streams["stream-1"].route.writers) == ["p1"]
