"""Messages of the gateway: welcomes, presence and errors, with their fields and order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dialects.mew.driving import (
    BASELINE,
    GatewayDriver,
    envelope,
    error,
    join,
    only,
    participant,
    settings,
    token,
)


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
            (b'{"kind":"x","to":[1e400]}', "PROCESSING_ERROR", "out of range"),
            (b'{"kind":"x","payload":{"a":[1e400]}}', "PROCESSING_ERROR", "out of range"),
            (
                b'{"kind":"stream/request","payload":{"target":["p2"],"n":1e999}}',
                "PROCESSING_ERROR",
                "out of range",
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
