"""The behaviour that clients rely on over HTTP: participants, messages with their status codes, polling."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.limits import Limits
from tests.dialects.mew.driving import (
    BASELINE,
    OPERATOR_TOKEN,
    GatewayDriver,
    envelope,
    error,
    kinds,
    participant,
    settings,
)

CHAT = {"kind": "chat", "payload": {"text": "hi"}}


class TestParticipants:
    def test_who_is_here_with_what_they_may_send(self, driver: GatewayDriver) -> None:
        driver.joined("p1", "guest")
        assert driver.ask("GET", "/participants", space="demo") == (
            200,
            {
                "participants": [
                    {"id": "p1", "connected": True, "capabilities": [{"kind": "*"}, BASELINE]},
                    {"id": "guest", "connected": True, "capabilities": [{"kind": "chat"}, BASELINE]},
                ]
            },
        )
        assert driver.ask("GET", "/participants") == driver.ask("GET", "/participants", space="default")

    def test_an_unknown_space_is_404(self, driver: GatewayDriver) -> None:
        status, body = driver.ask("GET", "/participants", space="nowhere")
        assert (status, body["error"]) == (404, "unknown_space")

    def test_a_wrong_token_is_refused_and_the_right_ones_are_not(self, driver: GatewayDriver) -> None:
        assert driver.ask("GET", "/participants", key="wrong")[0] == 401
        for key in ("p1-token", OPERATOR_TOKEN):
            assert driver.ask("GET", "/participants", key=key)[0] == 200

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("POST", "/participants", 405),
            ("DELETE", "/participants/p1/messages", 405),
            ("GET", "/participants/p1", 404),
            ("GET", "/participants/p1/messages/x", 404),
        ],
    )
    def test_nothing_else_is_there(self, driver: GatewayDriver, method: str, path: str, status: int) -> None:
        got, body = driver.ask(method, path, key="p1-token")
        assert got == status and body["error"] and body["message"]

    def test_pages_of_other_sites_are_refused(self, driver: GatewayDriver) -> None:
        headers = {"Origin": "http://evil.example", "Host": "localhost:8080"}
        assert driver.ask("GET", "/participants", headers=headers)[0] == 403
        assert driver.post("p1", CHAT, headers=headers)[0] == 403


@pytest.mark.promise("Hold under hostile conditions", "who shows a token pays for its own large answers, in spaces too")
@pytest.mark.parametrize("path", ["/participants", "/participants/p1/messages"])
def test_a_large_answer_belongs_to_the_token_that_asked(driver: GatewayDriver, path: str) -> None:
    assert driver.ask("GET", path, key="p1-token")[0] == 200
    assert driver.exchange.holder.party("10.0.0.1") == (False, "p1 of space demo")
    assert driver.ask("GET", "/participants")[0] == 200
    assert driver.exchange.holder.party("127.0.0.1") == (True, "127.0.0.1")


def test_what_is_no_json_is_counted(driver: GatewayDriver) -> None:
    assert driver.post("p1", b"[" * 50_000)[0] == 400
    (p2,) = driver.joined("p2")
    p2.send(b'{"kind"')
    driver.run()
    assert {door for door, _ in driver.runtime.inputs_refused} == {"space"}
    assert sum(driver.runtime.inputs_refused.values()) == 2


class TestMessages:
    def test_a_message_is_accepted_and_everybody_hears_it(self, driver: GatewayDriver) -> None:
        (p2,) = driver.joined("p2")
        status, body = driver.post("p1", CHAT | {"id": "m1"})
        assert status == 200
        assert (body["id"], body["status"]) == ("m1", "accepted") and body["timestamp"].endswith("Z")
        (heard,) = p2.heard()
        assert (heard["id"], heard["from"], heard["protocol"]) == ("m1", "p1", "mew/v0.4")
        assert "p1" not in driver.space.present

    def test_an_id_is_made_where_there_is_none(self, driver: GatewayDriver) -> None:
        _, body = driver.post("p1", CHAT)
        assert body["id"].startswith("http-")

    def test_a_connected_sender_receives_its_own_message_too(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        driver.post("p1", CHAT)
        assert kinds(p1.heard()) == ["chat"]

    @pytest.mark.parametrize("space", [None, "default", "demo"])
    def test_the_space_may_be_left_out(self, driver: GatewayDriver, space: str | None) -> None:
        assert driver.post("p1", CHAT, **({} if space is None else {"space": space}))[0] == 200

    def test_another_space_is_not_made_on_the_fly(self, driver: GatewayDriver) -> None:
        status, body = driver.post("p1", CHAT, space="new")
        assert (status, body["error"]) == (404, "unknown_space")
        assert list(driver.spaces.spaces) == ["demo"]

    @pytest.mark.promise("MEW gateway", "`/participants` has the documented status codes, bodies and polling")
    def test_without_a_token_401_and_with_another_403(self, driver: GatewayDriver) -> None:
        assert driver.post("p1", CHAT, key=None) == (401, {"error": "Missing or invalid authorization header"})
        basic = {"Authorization": "Basic cDE6eA=="}
        assert driver.post("p1", CHAT, key=None, headers=basic)[0] == 401
        for key in ("p2-token", "wrong"):
            status, body = driver.post("p1", CHAT, key=key)
            assert (status, body["error"]) == (403, "Invalid token for participant")

    def test_every_token_of_a_participant_counts_connected_or_not(self) -> None:
        two = participant("p1")
        two = type(two)((*two.token_digests, *participant("other").token_digests), two.capabilities)
        driver = GatewayDriver(settings(p1=two))
        for key in ("p1-token", "other-token"):
            assert driver.post("p1", CHAT, key=key)[0] == 200
        driver.join("p1", key="other-token").gone()
        assert driver.post("p1", CHAT, key="p1-token")[0] == 200

    @pytest.mark.promise("MEW gateway", "`/participants` has the documented status codes, bodies and polling")
    @pytest.mark.parametrize(
        ("body", "answer"),
        [
            (b"[]", {"error": "Request body must be a JSON object"}),
            (b"5", {"error": "Request body must be a JSON object"}),
            (b"{}", {"error": "Message kind is required"}),
            (b'{"payload":{}}', {"error": "Message kind is required"}),
        ],
    )
    def test_the_texts_of_upstreams_400(self, driver: GatewayDriver, body: bytes, answer: Any) -> None:
        assert driver.post("p1", body) == (400, answer)

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b"{", "processing_error"),
            (b"", "processing_error"),
            (b'{"kind":"chat","protocol":"x"}', "validation_error"),
            (b'{"kind":5}', "validation_error"),
            (b'{"kind":"system/welcome"}', "invalid_request"),
        ],
    )
    def test_other_mistakes_are_400_with_a_code_and_a_text(self, driver: GatewayDriver, body: bytes, code: str) -> None:
        status, answer = driver.post("p1", body)
        assert (status, answer["error"]) == (400, code) and answer["message"]

    def test_payloads_are_not_looked_at(self, driver: GatewayDriver) -> None:
        assert driver.post("p1", {"kind": "chat"})[0] == 200
        assert driver.post("p1", {"kind": "mcp/request"})[0] == 200

    def test_a_reserved_kind_is_reported_to_the_connection_too_with_the_expected_text(
        self, driver: GatewayDriver
    ) -> None:
        (p1,) = driver.joined("p1")
        status, body = driver.post("p1", {"kind": "system/register", "id": "s1"})
        assert status == 400
        heard = p1.heard()
        assert heard[0]["correlation_id"] == ["s1"]
        for said in (body, error(heard)):
            assert "system/register is reserved for the gateway" in said["message"]

    def test_a_capability_violation_is_403_and_is_reported_to_the_connection_too(self, driver: GatewayDriver) -> None:
        guest, p2 = driver.joined("guest", "p2")
        status, body = driver.post("guest", {"kind": "mcp/request", "id": "m1"})
        assert (status, body["error"]) == (403, "capability_violation") and body["message"]
        assert error(guest.heard())["attempted_kind"] == "mcp/request"
        assert p2.heard() == []

    def test_a_from_that_names_another_participant_is_rejected(self, driver: GatewayDriver) -> None:
        (p2,) = driver.joined("p2")
        status, body = driver.post("p1", CHAT | {"from": "p2"})
        assert (status, body["error"]) == (403, "invalid_from")
        assert p2.heard() == []

    def test_a_body_over_the_bound_is_413(self) -> None:
        driver = GatewayDriver(limits=Limits(space_envelope_max=500))
        status, body = driver.post("p1", b" " * 1_001)
        assert (status, body["error"]) == (413, "too_large")

    def test_the_answer_waits_for_the_journal_and_says_when_it_refused(self, driver: GatewayDriver) -> None:
        (p2,) = driver.joined("p2")
        append = driver.journal.append

        def refusing(shard: int, epoch: int, facts: Any, done: Any) -> None:
            driver.journal.is_by_hand = True
            append(shard, epoch, facts, done)
            driver.journal.is_by_hand = False
            driver.scheduler.soon(driver.journal.refuse)

        driver.journal.append = refusing  # type: ignore[method-assign]
        status, body = driver.post("p1", CHAT)
        assert (status, body["error"]) == (503, "journal_unavailable")
        assert p2.heard() == []

    def test_an_alias_that_is_there_may_send_with_its_token(self, driver: GatewayDriver) -> None:
        driver.join("laptop", key="p1-token")
        assert driver.post("laptop", CHAT, key="p1-token")[0] == 200
        assert driver.post("laptop", CHAT, key="p2-token")[0] == 403
        assert driver.post("gateway", CHAT, key="p1-token")[0] == 403

    @pytest.mark.promise("MEW gateway", "a POST under an unknown id is rejected")
    def test_an_unknown_id_is_rejected_whatever_the_token(self, driver: GatewayDriver) -> None:
        status, body = driver.post("ghost", CHAT, key="p1-token")
        assert (status, body["error"]) == (403, "Invalid token for participant")
        assert "`p1`" in body["message"]

    def test_a_post_of_a_connected_participant_waits_behind_its_earlier_messages(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        p1.put(envelope("chat", {"text": "first"}))
        driver.post("p1", CHAT)
        assert [each["payload"]["text"] for each in p2.heard()] == ["first", "hi"]


class TestStreams:
    def test_a_request_opens_a_stream_and_only_the_open_is_sent(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        status, body = driver.post("p1", {"kind": "stream/request", "id": "r1", "payload": {"target": ["p2"]}})
        assert status == 200
        assert {name: body[name] for name in ("id", "status", "stream_id")} == {
            "id": "r1",
            "status": "stream_opened",
            "stream_id": "stream-1",
        }
        assert body["timestamp"].endswith("Z")
        assert kinds(p2.heard()) == kinds(p1.heard()) == ["stream/open"]

    def test_a_missing_target_is_400_with_the_whole_envelope(self, driver: GatewayDriver) -> None:
        status, body = driver.post("p1", {"kind": "stream/request", "id": "r1", "payload": {"target": ["x"]}})
        assert (status, body["kind"], body["correlation_id"]) == (400, "system/error", ["r1"])
        assert (body["payload"]["error"], body["payload"]["targets"]) == ("target_not_found", ["x"])

    @pytest.mark.promise("MEW gateway", "`/participants` has the documented status codes, bodies and polling")
    def test_the_bodies_of_what_owners_do(self, driver: GatewayDriver) -> None:
        driver.joined("p1", "p2")
        driver.post("p1", {"kind": "stream/request"})
        both = {"stream_id": "stream-1", "participant_id": "p2"}
        assert driver.post("p1", {"id": "1", "kind": "stream/grant-write", "payload": both}) == (
            200,
            {"id": "1", "status": "granted", "stream_id": "stream-1", "authorized_writers": ["p1", "p2"]},
        )
        assert driver.post("p1", {"id": "2", "kind": "stream/revoke-write", "payload": both}) == (
            200,
            {"id": "2", "status": "revoked", "stream_id": "stream-1", "authorized_writers": ["p1"]},
        )
        moved = {"stream_id": "stream-1", "new_owner": "p2"}
        assert driver.post("p1", {"id": "3", "kind": "stream/transfer-ownership", "payload": moved}) == (
            200,
            {
                "id": "3",
                "status": "transferred",
                "stream_id": "stream-1",
                "authorized_writers": ["p2"],
                "previous_owner": "p1",
                "new_owner": "p2",
            },
        )

    def test_a_close_is_accepted(self, driver: GatewayDriver) -> None:
        driver.post("p1", {"kind": "stream/request"})
        status, body = driver.post("p1", {"id": "c", "kind": "stream/close", "payload": {"stream_id": "stream-1"}})
        assert (status, body["id"], body["status"]) == (200, "c", "accepted")
        assert driver.space.state.streams == {}

    def test_a_stream_of_an_absent_owner_closes_after_the_grace(self, driver: GatewayDriver) -> None:
        driver.post("p1", {"kind": "stream/request"})
        driver.advance(driver.machine.limits.owner_grace_ms)
        assert driver.space.state.streams == {}


class TestSpaces:
    def test_an_invite_answers_with_the_token_and_a_second_one_with_409(self, driver: GatewayDriver) -> None:
        (p2,) = driver.joined("p2")
        invite = {"id": "i1", "kind": "space/invite", "payload": {"participant_id": "x"}}
        status, body = driver.post("p1", invite)
        assert (status, body["id"], body["status"], body["participant_id"]) == (200, "i1", "created", "x")
        assert body["connection_url"] == "ws://localhost:8080/"
        driver.join("x", key=body["token"])
        status, body = driver.post("p1", invite)
        assert (status, body["status"], body["participant_id"]) == (409, "already_exists", "x") and body["message"]
        assert kinds(p2.heard()) == ["system/presence", "system/presence"]

    @pytest.mark.parametrize("payload", [None, {}, {"participant_id": "a/b"}])
    def test_a_bad_invite_is_400(self, driver: GatewayDriver, payload: Any) -> None:
        status, body = driver.post("p1", {"kind": "space/invite", "payload": payload})
        assert (status, body["error"]) == (400, "invalid_request")

    @pytest.mark.parametrize("who", ["../../../etc/passwd", "foo/bar"])
    def test_an_invite_of_a_path_says_invalid_characters(self, driver: GatewayDriver, who: str) -> None:
        status, body = driver.post("p1", {"kind": "space/invite", "payload": {"participant_id": who}})
        assert status == 400 and "invalid characters" in body["message"]

    def test_grants_and_revokes_count_over_http_too(self, driver: GatewayDriver) -> None:
        (guest,) = driver.joined("guest")
        grant = {"recipient": "guest", "capabilities": [{"kind": "mcp/request"}]}
        assert driver.post("p1", {"id": "g", "kind": "capability/grant", "payload": grant})[0] == 200
        assert kinds(guest.heard()) == ["system/welcome", "capability/grant"]
        revoke = {"recipient": "guest", "grant_id": "g"}
        assert driver.post("p1", {"kind": "capability/revoke", "payload": revoke})[0] == 200
        assert kinds(guest.heard()) == ["system/welcome", "capability/revoke"]
        assert driver.space.state.grants == {}

    def test_a_kick_counts_over_http_too(self, driver: GatewayDriver) -> None:
        (p2,) = driver.joined("p2")
        assert driver.post("p1", {"kind": "space/kick", "payload": {"participant_id": "p2"}})[0] == 200
        assert p2.wire.closed == (4003, "kicked")
        status, body = driver.post("p1", {"kind": "space/kick", "payload": {"participant_id": "nobody"}})
        assert (status, body["error"]) == (404, "participant_not_found")
