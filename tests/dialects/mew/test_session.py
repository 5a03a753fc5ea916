"""The behaviour that clients rely on: joining, welcomes, presence, errors, validation, routing and order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.core.json_checks import depth_problem
from penstock.core.limits import Limits
from tests.dialects.mew.driving import (
    GatewayDriver,
    envelope,
    error,
    join,
    kinds,
    settings,
)

TS = "2025-01-01T00:00:00Z"
SYSTEM_JOIN = {"protocol": "mew/v0.4", "id": "j1", "ts": TS, "kind": "system/join"}


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
        driver = GatewayDriver(limits=Limits(space_envelope_max=1_000))
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
