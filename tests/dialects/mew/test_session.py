"""The behaviour that clients rely on: joining, welcomes, presence, errors, validation, routing and order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.json_checks import depth_problem
from penstock.core.limits import Limits
from tests.dialects.mew.driving import (
    BASELINE,
    OPERATOR_TOKEN,
    PING,
    GatewayDriver,
    envelope,
    error,
    join,
    kinds,
    only,
    participant,
    settings,
    token,
)

TS = "2025-01-01T00:00:00Z"
SYSTEM_JOIN = {"protocol": "mew/v0.4", "id": "j1", "ts": TS, "kind": "system/join"}


@pytest.fixture
def driver() -> GatewayDriver:
    return GatewayDriver()


class TestJoin:
    @pytest.mark.promise(
        "MEW gateway", "every form of join is accepted; a rejection is a complete error followed by a close"
    )
    @pytest.mark.parametrize(
        "message",
        [
            {"type": "join", "space": "demo", "token": "p1-token", "participantId": "p1", "capabilities": []},
            SYSTEM_JOIN | {"payload": {"space": "demo", "participantId": "p1", "token": "p1-token"}},
            SYSTEM_JOIN | {"payload": {"space": "demo", "participant": "p1", "token": "p1-token", "capabilities": []}},
            SYSTEM_JOIN | {"payload": {"space": "demo", "participant_id": "p1", "token": "p1-token"}},
            {"type": "join", "participant_id": "p1", "token": "p1-token"},
            {"type": "join", "space": "default", "participantId": "p1", "token": "p1-token"},
            {"type": "join", "token": "p1-token"},
            SYSTEM_JOIN | {"protocol": "mew/v0.3", "payload": {"token": "p1-token"}},
        ],
    )
    def test_every_shape_is_welcomed(self, driver: GatewayDriver, message: Any) -> None:
        client = driver.client()
        (welcome,) = client.send(message)
        assert (welcome["kind"], welcome["to"], welcome["from"]) == (
            "system/welcome",
            ["p1"],
            "system:gateway",
        )
        assert welcome["payload"]["you"]["id"] == "p1"

    def test_the_capabilities_that_a_client_claims_are_ignored(self, driver: GatewayDriver) -> None:
        client = driver.client()
        heard = client.send(join("guest") | {"capabilities": [{"kind": "*"}]})
        assert only(heard, "system/welcome")["you"]["capabilities"] == [{"kind": "chat"}, BASELINE]

    def test_the_server_says_nothing_until_the_client_does(self, driver: GatewayDriver) -> None:
        assert driver.client().received() == []

    @pytest.mark.parametrize("said", [{}, {"space": "demo"}, {"participantId": "p1"}])
    def test_what_the_join_leaves_out_is_taken_from_the_request_for_the_socket(
        self, driver: GatewayDriver, said: Any
    ) -> None:
        client = driver.client(token="p1-token", space="demo", participant="p1")
        (welcome,) = client.send({"type": "join", **said})
        assert welcome["payload"]["you"]["id"] == "p1"

    def test_what_the_join_says_counts_before_the_request_for_the_socket(self, driver: GatewayDriver) -> None:
        client = driver.client(token="p1-token", space="elsewhere", participant="p1")
        (welcome,) = client.send(join("p2"))
        assert welcome["payload"]["you"]["id"] == "p2"

    def test_a_client_that_showed_a_token_and_says_nothing_is_taken_in(self, driver: GatewayDriver) -> None:
        client = driver.client(token="p1-token")
        driver.advance(driver.machine.limits.join_pause_ms)
        assert only(client.heard(), "system/welcome")["you"]["id"] == "p1"

    def test_a_client_that_showed_a_token_may_speak_at_once(self, driver: GatewayDriver) -> None:
        client = driver.client(token="p1-token")
        assert kinds(client.say("chat", {"text": "hello"})) == ["system/welcome", "chat"]

    @pytest.mark.promise(
        "MEW gateway", "every form of join is accepted; a rejection is a complete error followed by a close"
    )
    @pytest.mark.parametrize(
        ("said", "code"),
        [
            ({"token": "wrong"}, "unauthorized"),
            ({"token": None}, "unauthorized"),
            ({"token": "p1-token", "participantId": "p2"}, "invalid_participant"),
            ({"token": "p1-token", "participantId": "operator"}, "invalid_participant"),
            ({"token": "p1-token", "participantId": "gateway"}, "invalid_participant"),
            ({"token": "p1-token", "participantId": "system:gateway"}, "invalid_participant"),
            ({"token": "p1-token", "participantId": "x" * 300}, "invalid_participant"),
            ({"token": "p1-token", "participantId": "a\nb"}, "invalid_participant"),
            ({"token": "p1-token", "space": "nowhere"}, "unknown_space"),
            ({"token": "p1-token", "protocol": "mew/v9"}, "validation_error"),
            ({"token": "p1-token", "protocol": ["mew/v0.4"]}, "validation_error"),
        ],
    )
    def test_a_refusal_is_a_full_error_and_then_the_end(self, driver: GatewayDriver, said: Any, code: str) -> None:
        (other,) = driver.joined("p3")
        client = driver.client()
        (said_back,) = client.send({"type": "join", "id": "j1", "space": "demo", **said})
        assert error([said_back])["error"] == code
        assert said_back["payload"]["message"]
        if code != "validation_error":
            assert said_back["correlation_id"] == ["j1"]
        assert client.wire.closed == (1008, code)
        assert other.heard() == []
        assert list(driver.space.present) == ["p3"]

    @pytest.mark.promise(
        "MEW gateway", "every form of join is accepted; a rejection is a complete error followed by a close"
    )
    def test_an_alias_has_its_own_id_and_the_rights_of_its_logical_name(self, driver: GatewayDriver) -> None:
        client = driver.client()
        (welcome,) = client.send(join("my-laptop", key="guest-token"))
        assert welcome["payload"]["you"] == {"id": "my-laptop", "capabilities": [{"kind": "chat"}, BASELINE]}
        assert driver.rows("join")[0].meta == '{"as":"guest","transport":"websocket"}'
        for name in (None, "my-laptop", "guest"):
            heard = client.say("chat", {"text": "hi"}, **({} if name is None else {"from_": name}))
            assert [each["from"] for each in heard] == [name or "my-laptop"]

    def test_an_alias_that_another_participant_uses_is_rejected(self, driver: GatewayDriver) -> None:
        driver.join("my-laptop", key="p1-token")
        client = driver.client()
        assert error(client.send(join("my-laptop", key="p2-token")))["error"] == "invalid_participant"
        assert driver.space.present["my-laptop"].party == "p1"

    def test_the_operator_joins_every_space_with_every_right(self) -> None:
        driver = GatewayDriver(settings("p1"), settings("p1", id_="other"))
        for space in ("demo", "other"):
            client = driver.client()
            you = only(client.send({"type": "join", "space": space, "token": OPERATOR_TOKEN}), "system/welcome")["you"]
            assert you == {"id": "operator", "capabilities": [{"kind": "*"}, BASELINE]}

    def test_where_there_are_several_spaces_one_has_to_be_named(self) -> None:
        driver = GatewayDriver(settings("p1"), settings("p1", id_="other"))
        client = driver.client()
        assert error(client.send({"type": "join", "token": "p1-token"}))["error"] == "unknown_space"

    def test_messages_before_the_join_are_refused_but_for_the_heartbeat(self, driver: GatewayDriver) -> None:
        client = driver.client()
        assert client.say("system/heartbeat") == []
        said = error(client.say("chat", {"text": "x"}, id="c1"))
        assert (said["error"], said["attempted_kind"], said["your_capabilities"]) == (
            "capability_violation",
            "chat",
            [],
        )
        assert error(client.send("#stream-1#x"))["error"] == "unauthorized_stream_write"
        assert kinds(client.send(join("p1"))) == ["system/welcome"]

    def test_join_and_chat_in_one_burst(self, driver: GatewayDriver) -> None:
        client = driver.client()
        client.put(join("p1"), envelope("chat", {"text": "hi"}))
        driver.run()
        assert kinds(client.heard()) == ["system/welcome", "chat"]

    def test_what_comes_while_a_join_waits_for_its_turn_waits_behind_it(self, driver: GatewayDriver) -> None:
        (other,) = driver.joined("p2")
        driver.journal.is_by_hand = True
        other.send(envelope("chat", {"text": "first"}))
        client = driver.client()
        request = envelope("stream/request", {"direction": "upload"}, id="r")
        assert client.send(join("p1"), envelope("chat", {"text": "second"}), request, b"#stream-1#x") == []
        driver.journal.commit()
        driver.run()
        assert kinds(client.heard()) == ["system/welcome"]
        driver.journal.commit()
        driver.run()
        received = client.received()
        assert kinds(received[:-1]) == ["chat", "stream/request", "stream/open"]
        assert received[-1] == b"#stream-1#x"

    def test_a_second_join_of_the_same_is_another_welcome(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        assert kinds(p1.send(join("p1"))) == ["system/welcome"]
        assert p2.heard() == [] and p1.is_open

    def test_a_second_join_as_another_leaves_no_ghost(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        assert only(p1.send(join("p3")), "system/welcome")["you"]["id"] == "p3"
        assert [(each["payload"]["event"], each["payload"]["participant"]["id"]) for each in p2.heard()] == [
            ("leave", "p1"),
            ("join", "p3"),
        ]
        assert list(driver.space.present) == ["p2", "p3"]

    def test_no_join_within_ten_seconds_is_an_error_and_the_end(self, driver: GatewayDriver) -> None:
        client = driver.client()
        driver.advance(9_999)
        assert client.received() == []
        driver.advance(1)
        assert error(client.heard())["error"] == "join_timeout"
        assert client.wire.closed == (1008, "join_timeout")

    def test_a_joiner_is_not_asked_to_join_again(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        driver.advance(10_000)
        assert p1.is_open and p1.received() == []

    def test_a_join_that_is_refused_when_its_turn_comes_hears_why(self) -> None:
        driver = GatewayDriver(settings("p1", "p2", "p3"), limits=Limits(participants_max=2))
        (p1,) = driver.joined("p1")
        driver.journal.is_by_hand = True
        p1.send(envelope("chat", {"text": "hi"}))
        second, third = driver.client(), driver.client()
        second.send(join("p2"))
        third.send(join("p3"))
        driver.journal.is_by_hand = False
        driver.journal.commit()
        driver.run()
        assert kinds(second.heard()) == ["system/welcome"]
        assert error(third.heard())["error"] == "space_full"
        assert third.wire.closed == (1008, "space_full")


class TestWelcome:
    @pytest.mark.promise("MEW gateway", "welcomes, presence and errors have the form that clients read")
    def test_its_fields_and_their_order(self, driver: GatewayDriver) -> None:
        p1, _guest = driver.joined("p1", "guest")
        driver.open_stream(p1, ["guest"], content_type="application/json")
        client = driver.client()
        client.put(join("p2"))
        driver.run()
        raw = client.wire.data
        (welcome,) = client.heard()
        assert list(welcome) == ["protocol", "id", "ts", "from", "to", "kind", "payload"]
        assert welcome["id"].startswith("welcome-") and welcome["ts"].endswith("Z") and len(welcome["ts"]) == 24
        payload = welcome["payload"]
        assert list(payload) == ["you", "participants", "active_streams"]
        assert payload["you"] == {"id": "p2", "capabilities": [{"kind": "*"}, BASELINE]}
        assert payload["participants"] == [
            {"id": "p1", "capabilities": [{"kind": "*"}, BASELINE]},
            {"id": "guest", "capabilities": [{"kind": "chat"}, BASELINE]},
        ]
        (shown,) = payload["active_streams"]
        assert list(shown)[:4] == ["stream_id", "owner", "authorized_writers", "created"]
        assert (shown["direction"], shown["content_type"]) == ("upload", "application/json")
        # Readers of log files expect compact JSON.
        assert b'"authorized_writers":["p1"]' in raw and b'"target":["guest"]' in raw

    def test_without_streams_the_list_is_empty_and_there(self, driver: GatewayDriver) -> None:
        assert driver.welcome("p1")["active_streams"] == []

    def test_it_comes_before_anything_else(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        id_ = driver.open_stream(p1)
        client = driver.client()
        client.put(join("p2"))
        p1.put(f"#{id_}#x", envelope("chat", {"text": "hi"}))
        driver.run()
        received = client.received()
        assert received[0]["kind"] == "system/welcome"
        assert received[1] == b"#stream-1#x" and received[2]["kind"] == "chat"

    def test_welcomes_list_each_capability_once_and_leave_out_invalid_ones(self) -> None:
        odd = participant("p1", {"kind": "chat"}, "chat", {"kind": "chat"}, {"x": 1}, BASELINE)
        driver = GatewayDriver(settings(p1=odd))
        assert driver.welcome("p1")["you"]["capabilities"] == [{"kind": "chat"}, BASELINE]

    def test_a_stream_that_is_not_durable_is_not_shown(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        driver.journal.is_by_hand = True
        p1.put(envelope("stream/request", {"direction": "upload"}))
        # A virtual participant does not wait for its turn.
        status, body = driver.ask("GET", "/participants/p2/messages", key=token("p2"))
        assert (status, only(body["messages"], "system/welcome")["active_streams"]) == (200, [])

    def test_what_a_request_carries_cannot_stand_for_what_the_gateway_knows(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        lies = {"stream_id": "x", "owner": "p2", "authorized_writers": ["p2"], "created": "never"}
        opened = only(p1.say("stream/request", {"direction": "download", "metadata": {"a": 1}, **lies}), "stream/open")
        assert (opened["stream_id"], opened["owner"], opened["authorized_writers"]) == (
            "stream-1",
            "p1",
            ["p1"],
        )
        (shown,) = driver.welcome("p3")["active_streams"]
        assert (shown["stream_id"], shown["owner"], shown["authorized_writers"]) == ("stream-1", "p1", ["p1"])
        assert shown["created"] != "never"
        assert (shown["direction"], shown["metadata"]) == ("download", {"a": 1})

    def test_every_stream_has_a_direction_so_that_clients_discover_it(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        p1.say("stream/request")
        assert driver.welcome("p2")["active_streams"][0]["direction"] == "upload"


class TestPresence:
    @pytest.mark.promise("MEW gateway", "welcomes, presence and errors have the form that clients read")
    def test_all_others_receive_a_join_with_the_baseline_capability(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        guest = driver.join("guest")
        (said,) = p1.heard()
        assert (said["from"], said["kind"]) == ("system:gateway", "system/presence")
        shown = {"id": "guest", "capabilities": [{"kind": "chat"}, BASELINE]}
        assert said["payload"] == {"event": "join", "participant": shown}
        assert guest.heard() == []

    def test_all_others_receive_a_leave_with_only_the_id(self, driver: GatewayDriver) -> None:
        p1, p2, p3 = driver.joined("p1", "p2", "p3")
        p3.gone()
        for client in (p1, p2):
            assert [each["payload"] for each in client.heard()] == [{"event": "leave", "participant": {"id": "p3"}}]

    def test_ids_never_collide(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        for name in ("p2", "p3", "p4", "guest"):
            driver.join(name).connection.lost()
        driver.run()
        ids = [each["id"] for each in p1.heard()]
        assert len(ids) == len(set(ids)) == 8

    def test_a_takeover_is_another_join_and_no_leave(self, driver: GatewayDriver) -> None:
        p1, _ = driver.joined("p1", "p2")
        driver.join("p2")
        assert [each["payload"]["event"] for each in p1.heard()] == ["join"]


class TestErrors:
    @pytest.mark.promise("MEW gateway", "welcomes, presence and errors have the form that clients read")
    @pytest.mark.parametrize(
        ("sent", "code", "text"),
        [
            (
                b'{"protocol":"mew/v0.4","kind":"chat","payload":{}}',
                "VALIDATION_ERROR",
                "requires payload.text",
            ),
            (
                b'{"kind":"chat","payload":{"text":""}}',
                "VALIDATION_ERROR",
                "Chat message requires payload.text",
            ),
            (
                b'{"kind":"mcp/request","payload":{}}',
                "VALIDATION_ERROR",
                "MCP request requires payload.method",
            ),
            (b'{"protocol":"mew/v1","kind":"chat"}', "VALIDATION_ERROR", "Invalid protocol version: mew/v1"),
            (b'{"protocol":4,"kind":"chat"}', "VALIDATION_ERROR", "Invalid protocol version: 4"),
            (b"[]", "VALIDATION_ERROR", "Message must be an object"),
            (b"5", "VALIDATION_ERROR", "Message must be an object"),
            (b'"x"', "VALIDATION_ERROR", "Message must be an object"),
            (b"null", "VALIDATION_ERROR", "Message must be an object"),
            (b"{}", "VALIDATION_ERROR", "Message kind is required"),
            (b'{"kind":7}', "VALIDATION_ERROR", "Message kind is required"),
            (b'{"kind":""}', "VALIDATION_ERROR", "Message kind is required"),
            (b'{"kind":"x","id":7}', "VALIDATION_ERROR", "id must be a string"),
            (b'{"kind":"x","from":["p1"]}', "VALIDATION_ERROR", "from must be a string"),
            (b"{", "PROCESSING_ERROR", "not JSON"),
            (b"", "PROCESSING_ERROR", "not JSON"),
            (b'{"kind":"x","to":[1e400]}', "PROCESSING_ERROR", "too large"),
            (b'{"kind":"x","payload":{"a":[1e400]}}', "PROCESSING_ERROR", "too large"),
            (
                b'{"kind":"stream/request","payload":{"target":["p2"],"n":1e999}}',
                "PROCESSING_ERROR",
                "too large",
            ),
            (b'{"kind":"x","n":' + b"9" * 5000 + b"}", "PROCESSING_ERROR", "too large"),
            (b"#abc", "PROCESSING_ERROR", "not JSON"),
            (b'{"kind":"chat","payload":{"text":"\xff"}}', "PROCESSING_ERROR", "not JSON"),
            (b'{"kind":"x","payload":' + b"[" * 5000 + b"]" * 5000 + b"}", "PROCESSING_ERROR", "nest"),
        ],
    )
    def test_a_mistake_draws_a_full_error_with_its_code_and_changes_nothing(
        self, driver: GatewayDriver, sent: bytes, code: str, text: str
    ) -> None:
        p1, p2 = driver.joined("p1", "p2")
        (said,) = p1.send(sent)
        payload = error([said])
        assert payload["code"] == code and text in payload["message"], payload
        assert said["to"] == ["p1"]
        assert p2.heard() == [] and p1.is_open
        assert driver.rows("envelope") == []

    @pytest.mark.promise("MEW gateway", "welcomes, presence and errors have the form that clients read")
    @pytest.mark.parametrize(
        "sent",
        [
            envelope("chat", {}, id="c7"),
            envelope("mcp/request", {}, id="c7"),
            envelope("x", id="c7") | {"protocol": "mew/v9"},
            envelope("", id="c7"),
            envelope("chat", {"text": "x"}, id="c7", from_="p2"),
            envelope("system/welcome", {}, id="c7"),
            envelope("stream/request", {"target": ["x"]}, id="c7"),
            envelope("stream/grant-write", {"stream_id": "x"}, id="c7"),
            envelope("space/kick", {}, id="c7"),
            envelope("space/invite", {}, id="c7"),
            envelope("capability/grant", {}, id="c7"),
            envelope("capability/revoke", {"recipient": "nobody"}, id="c7"),
        ],
    )
    def test_an_error_refers_to_the_envelope_that_caused_it(self, driver: GatewayDriver, sent: Any) -> None:
        (p1,) = driver.joined("p1")
        (said,) = p1.send(sent)
        assert (said["kind"], said["correlation_id"]) == ("system/error", ["c7"])

    def test_an_envelope_without_an_id_has_nothing_to_refer_to(self, driver: GatewayDriver) -> None:
        (guest,) = driver.joined("guest")
        (said,) = guest.say("mcp/request", {"method": "x"})
        assert "correlation_id" not in said

    def test_a_capability_violation_says_what_was_tried_and_what_is_held(self, driver: GatewayDriver) -> None:
        p1, guest = driver.joined("p1", "guest")
        said = error(guest.say("mcp/request", {"method": "x"}))
        assert (said["error"], said["attempted_kind"]) == ("capability_violation", "mcp/request")
        assert said["your_capabilities"] == [{"kind": "chat"}, BASELINE]
        assert p1.heard() == []

    @pytest.mark.parametrize("frame", [b"#stream-9#x", b"##x", b"#\xff\xfe#x"])
    def test_a_frame_on_an_unknown_stream_gets_an_error_with_its_id(self, driver: GatewayDriver, frame: bytes) -> None:
        p1, p2 = driver.joined("p1", "p2")
        (said,) = p1.send(frame)
        assert said["from"] == "gateway"
        assert said["payload"]["error"] == "unauthorized_stream_write"
        assert said["payload"]["stream_id"] == frame.split(b"#")[1].decode(errors="replace")
        assert p2.received() == []

    def test_nothing_ever_has_the_word_error_for_its_type_or_kind(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        for sent in (b"[]", b"{", b"#a", envelope("system/x"), b"#a#b"):
            assert all(each["kind"] == "system/error" and "type" not in each for each in p1.send(sent))


class TestFilling:
    @pytest.mark.parametrize("protocol", ["mew/v0.4", "mew/v0.3", "", None])
    def test_a_known_protocol_is_kept_and_a_missing_one_filled(self, driver: GatewayDriver, protocol: Any) -> None:
        (p1,) = driver.joined("p1")
        (heard,) = p1.send({"protocol": protocol, "kind": "x"})
        assert heard["protocol"] == (protocol or "mew/v0.4")

    def test_what_is_missing_is_filled_and_comes_first(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        p1.send({"kind": "x", "b": 1, "a": 2})
        (heard,) = p2.heard()
        assert list(heard) == ["protocol", "id", "ts", "from", "kind", "b", "a"]
        assert heard["from"] == "p1" and heard["id"].startswith("msg-")
        assert heard["ts"] == "2025-10-09T08:53:20.000Z"

    def test_what_the_sender_wrote_passes_untouched(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        sent = b'{"context":"c1","extra":{"z":1.50,"a":[1e3, null]},"kind":"x","ts":"yesterday","id":"i","payload":[" #\\u00e9 "]}'
        p1.put(sent)
        driver.run()
        raw = p2.wire.data
        assert b'"extra":{"z":1.50,"a":[1e3,null]}' in raw and b'"payload":[" #\\u00e9 "]' in raw
        (heard,) = p2.heard()
        assert (heard["context"], heard["ts"], heard["id"]) == ("c1", "yesterday", "i")

    @pytest.mark.parametrize(("given", "told"), [("a", ["a"]), (["a", "b"], ["a", "b"]), ([], []), (None, None)])
    def test_a_scalar_correlation_becomes_a_list(self, driver: GatewayDriver, given: Any, told: Any) -> None:
        (p1,) = driver.joined("p1")
        (heard,) = p1.say("x", correlation_id=given)
        assert heard["correlation_id"] == told

    @pytest.mark.promise("MEW gateway", "a participant cannot send as another participant or as the gateway")
    @pytest.mark.parametrize("name", ["p2", "system:gateway", "nobody"])
    def test_a_from_that_names_another_participant_is_rejected(self, driver: GatewayDriver, name: str) -> None:
        p1, p2 = driver.joined("p1", "p2")
        assert error(p1.say("chat", {"text": "x"}, from_=name))["error"] == "invalid_from"
        assert p2.heard() == []

    @pytest.mark.promise("MEW gateway", "a participant cannot send as another participant or as the gateway")
    @pytest.mark.parametrize(
        "kind", ["system/register", "system/welcome", "system/presence", "system/error", "system/"]
    )
    def test_system_is_the_gateways_alone_even_with_every_capability(self, driver: GatewayDriver, kind: str) -> None:
        p1, p2 = driver.joined("p1", "p2")
        said = error(p1.say(kind, {}))
        assert (said["error"], said["message"]) == ("invalid_request", f"{kind} is reserved for the gateway")
        assert p2.heard() == []

    def test_a_heartbeat_needs_no_capability_and_is_broadcast(self, driver: GatewayDriver) -> None:
        p1, guest = driver.joined("p1", "guest")
        assert kinds(guest.say("system/heartbeat")) == kinds(p1.heard()) == ["system/heartbeat"]


class TestRouting:
    @pytest.mark.promise("MEW gateway", "envelopes are broadcast with echo, in strict order for each connection")
    def test_every_envelope_goes_to_everybody_its_sender_included_whatever_to_says(self, driver: GatewayDriver) -> None:
        everybody = driver.joined("p1", "p2", "p3")
        everybody[0].put(envelope("chat", {"text": "psst"}, to=["p2"], id="c"))
        driver.run()
        heard = [client.heard() for client in everybody]
        assert heard[0] == heard[1] == heard[2] and heard[0][0]["to"] == ["p2"]
        (row,) = driver.rows("envelope")
        assert (row.channel, row.seq, row.id, row.kind, row.sender, row.recipients, row.meta) == (
            "demo",
            1,
            "c",
            "chat",
            "p1",
            3,
            '{"to":["p2"]}',
        )
        assert msgspec.json.decode(row.body or b"") == heard[0][0]

    def test_envelopes_are_sent_only_when_durable(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        driver.journal.is_by_hand = True
        assert p1.say("chat", {"text": "x"}) == [] and p2.heard() == []
        driver.journal.commit()
        driver.run()
        assert kinds(p1.heard()) == kinds(p2.heard()) == ["chat"]

    @pytest.mark.promise("MEW gateway", "envelopes are broadcast with echo, in strict order for each connection")
    def test_frames_and_envelopes_of_one_connection_stay_in_order(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1)
        p2.received()
        p1.received()
        for n in range(5):
            p1.put(envelope("chat", {"text": str(n)}), f"#{id_}#{n}")
        driver.run()
        for client in (p1, p2):
            seen = [each if isinstance(each, bytes) else each["payload"]["text"] for each in client.received()]
            assert seen == [each for n in range(5) for each in (str(n), f"#{id_}#{n}".encode())]

    def test_frames_wait_for_their_own_connections_envelopes_only(self, driver: GatewayDriver) -> None:
        p1, p2, p3 = driver.joined("p1", "p2", "p3")
        driver.open_stream(p1, ["p3"])
        driver.open_stream(p2, ["p3"])
        p3.received()
        driver.journal.is_by_hand = True
        p1.put(envelope("chat", {"text": "slow"}), b"#stream-1#behind")
        p2.put(b"#stream-2#at once")
        driver.run()
        assert p3.received() == [b"#stream-2#at once"]
        driver.journal.commit()
        driver.run()
        chat, frame = p3.received()
        assert (chat["kind"], frame) == ("chat", b"#stream-1#behind")

    def test_errors_stay_in_order_too(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        p1.put(envelope("chat", {"text": "1"}), b"[]", envelope("chat", {"text": "2"}), b"#x#y")
        driver.run()
        assert kinds(p1.heard()) == ["chat", "system/error", "chat", "system/error"]

    @pytest.mark.promise("MEW gateway", "envelopes are broadcast with echo, in strict order for each connection")
    def test_a_frame_right_behind_its_request_is_accepted(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        p1.put(envelope("stream/request", {"direction": "upload"}), b"#stream-1#x")
        driver.run()
        received = p2.received()
        assert kinds(received[:2]) == ["stream/request", "stream/open"] and received[2:] == [b"#stream-1#x"]

    def test_one_write_per_connection_per_turn(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1)
        before = p2.wire.writes
        p1.put(*(f"#{id_}#{n}" for n in range(100)))
        driver.run()
        assert p2.wire.writes == before + 1
        assert len(p2.frames()) == 100


class TestBounds:
    @pytest.mark.promise("MEW gateway", "size, rate and number are limited")
    def test_a_message_over_the_bound_ends_the_connection_with_1009(self) -> None:
        driver = GatewayDriver(limits=Limits(space_frame_max=1_000))
        (p1,) = driver.joined("p1")
        assert error(p1.send(b"#x#" + b"y" * 1_000))["error"] == "too_large"
        assert p1.wire.closed == (1009, "too_large")

    def test_an_envelope_over_its_own_bound_is_refused(self) -> None:
        driver = GatewayDriver(limits=Limits(envelope_max=1_000))
        p1, p2 = driver.joined("p1", "p2")
        assert error(p1.say("chat", {"text": "x" * 1_000}))["error"] == "too_large"
        assert p1.is_open and p2.heard() == []

    @pytest.mark.promise("MEW gateway", "size, rate and number are limited")
    def test_frames_over_the_rate_are_rejected_reported_once_and_accepted_a_second_later(self) -> None:
        driver = GatewayDriver(limits=Limits(space_rate=10))
        p1, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1)
        driver.advance(1_000)
        p2.received()
        p1.received()
        p1.put(*(f"#{id_}#{n}" for n in range(30)))
        driver.run()
        assert len(p2.frames()) == 10
        (said,) = [each for each in p1.received() if isinstance(each, dict)]
        assert said["payload"]["error"] == "rate_limited"
        driver.advance(1_000)
        p1.put(f"#{id_}#again")
        driver.run()
        assert p2.frames() == [f"#{id_}#again".encode()]

    def test_frames_that_are_refused_count_once(self) -> None:
        driver = GatewayDriver(limits=Limits(space_rate=10))
        (p1,) = driver.joined("p1")
        driver.advance(1_000)
        heard = p1.send(*[b"#nowhere#x"] * 10)
        assert [each["payload"]["error"] for each in heard] == ["unauthorized_stream_write"] * 10

    def test_envelopes_over_the_rate_are_refused_each_with_an_error(self) -> None:
        driver = GatewayDriver(limits=Limits(space_rate=10))
        p1, p2 = driver.joined("p1", "p2")
        driver.advance(1_000)
        heard = p1.send(*(envelope("chat", {"text": str(n)}) for n in range(12)))
        assert kinds(heard).count("system/error") == 2 and kinds(p2.heard()) == ["chat"] * 10

    @pytest.mark.promise("MEW gateway", "size, rate and number are limited")
    def test_participants_are_bounded_and_a_takeover_needs_no_room(self) -> None:
        driver = GatewayDriver(settings("p1", "p2", "p3"), limits=Limits(participants_max=2))
        driver.joined("p1", "p2")
        third = driver.client()
        assert error(third.send(join("p3")))["error"] == "space_full"
        driver.join("p2")

    def test_streams_are_bounded(self) -> None:
        driver = GatewayDriver(limits=Limits(space_streams_max=2))
        (p1,) = driver.joined("p1")
        first = driver.open_stream(p1)
        driver.open_stream(p1)
        assert error(p1.say("stream/request", {}))["error"] == "too_many_streams"
        p1.say("stream/close", {"stream_id": first})
        assert driver.open_stream(p1) == "stream-3"

    def test_the_payload_of_a_request_is_bounded(self) -> None:
        driver = GatewayDriver(limits=Limits(space_request_max=100))
        (p1,) = driver.joined("p1")
        assert error(p1.say("stream/request", {"description": "x" * 100}))["error"] == "invalid_request"

    def test_a_journal_that_does_not_keep_up_refuses_envelopes_and_says_so(self) -> None:
        driver = GatewayDriver(limits=Limits(pending_max=1_000))
        (p1,) = driver.joined("p1")
        driver.journal.is_by_hand = True
        for n in range(20):
            p1.put(envelope("chat", {"text": "x" * 100}, id=str(n)))
        driver.run()
        assert p1.heard() == []  # errors stay in order behind what waits
        driver.journal.is_by_hand = False
        while driver.journal.waiting:
            driver.journal.commit()
            driver.run()
        heard = p1.heard()
        refused = [each for each in heard if each["kind"] == "system/error"]
        assert refused and {each["payload"]["error"] for each in refused} == {"journal_unavailable"}
        assert len(heard) == 20
        assert kinds(p1.say("chat", {"text": "x"})) == ["chat"]

    def test_nesting_is_bounded(self) -> None:
        assert depth_problem(b"[" * 65 + b"]" * 65, Limits().depth_max) is not None


class TestSigns:
    def test_everybody_is_asked_for_a_sign_of_life_and_the_silent_are_let_go(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        driver.advance(driver.machine.limits.ping_ms, is_answering=False)
        assert p1.received() == p2.received() == [PING]
        p1.connection.pong_received()
        driver.advance(driver.machine.limits.ping_ms, is_answering=False)
        assert p2.wire.is_aborted and p1.is_open
        assert [each["payload"]["event"] for each in p1.received() if each != PING] == ["leave"]

    def test_any_message_counts_as_a_sign_of_life(self, driver: GatewayDriver) -> None:
        p1, _ = driver.joined("p1", "p2")
        for _ in range(5):
            driver.advance(driver.machine.limits.ping_ms, is_answering=False)
            p1.put(envelope("system/heartbeat"))
        assert p1.is_open

    def test_a_slow_reader_that_answers_is_not_taken_for_dead(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        p1.connection.congested(True)
        for _ in range(4):
            driver.advance(driver.machine.limits.ping_ms, is_answering=False)
            if PING in p1.received():
                p1.connection.pong_received()
        assert p1.is_open


class TestIsolation:
    @pytest.mark.promise("MEW gateway", "spaces share nothing")
    def test_the_same_id_in_two_spaces_is_two_participants(self) -> None:
        driver = GatewayDriver(
            settings("p1", "p2"), settings("p2", id_="other", p1=participant("p1", {"kind": "chat"}))
        )
        here, there = driver.join("p1"), driver.join("p1", "other")
        assert here.is_open and there.is_open
        here_2, there_2 = driver.join("p2"), driver.join("p2", "other")
        here.received()
        there.received()
        id_ = driver.open_stream(here)
        assert here_2.received() != [] and there_2.received() == [] and there.received() == []
        assert error(there.send(f"#{id_}#x"))["error"] == "unauthorized_stream_write"
        assert error(there.say("stream/request", {}))["error"] == "capability_violation"
        here.say("space/kick", {"participant_id": "p2"})
        assert not here_2.is_open and there_2.is_open
        here.gone()
        assert there.is_open and list(driver.spaces.spaces["other"].present) == ["p1", "p2"]

    def test_a_token_of_one_space_does_not_open_another(self) -> None:
        driver = GatewayDriver(settings("p1"), settings("p2", id_="other"))
        client = driver.client()
        assert error(client.send(join("p1", "other")))["error"] == "unauthorized"

    def test_streams_are_numbered_by_each_space_for_itself(self) -> None:
        driver = GatewayDriver(settings("p1"), settings("p1", id_="other"))
        for space in ("demo", "other"):
            assert driver.open_stream(driver.join("p1", space)) == "stream-1"
