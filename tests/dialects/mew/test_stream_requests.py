"""The behaviour that clients rely on: streams, frames, writers and owners, takeovers and slow readers."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.limits import Limits
from tests.dialects.mew.driving import (
    GatewayDriver,
    envelope,
    error,
    kinds,
)


class TestRequest:
    def test_the_echo_comes_first_and_then_that_it_is_open(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        sent = envelope("stream/request", {"direction": "upload", "description": "d"}, id="r1", to=["gateway"])
        heard = p1.send(sent)
        assert p2.heard() == heard and kinds(heard) == ["stream/request", "stream/open"]
        echo, opened = heard
        assert {name: echo[name] for name in sent} == sent
        assert (opened["from"], opened["to"], opened["correlation_id"]) == ("gateway", ["p1"], ["r1"])
        assert opened["payload"] == {
            "stream_id": "stream-1",
            "encoding": "text",
            "owner": "p1",
            "authorized_writers": ["p1"],
        }
        (row,) = driver.rows("stream_open")
        assert (row.channel, row.seq, row.id, row.kind, row.sender, row.corr, row.recipients) == (
            "demo/stream-1",
            1,
            "r1",
            "stream/open",
            "p1",
            "r1",
            2,
        )

    @pytest.mark.promise(
        "MEW gateway",
        "streams: ids, closes, writers and owners have the same errors on both transports",
    )
    def test_ids_never_repeat_whatever_closes(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        seen = []
        for _ in range(3):
            seen.append(driver.open_stream(p1))
            p1.say("stream/close", {"stream_id": seen[-1]})
        assert seen == ["stream-1", "stream-2", "stream-3"]

    @pytest.mark.parametrize("overflow", ["later", 5, None])
    def test_an_unknown_policy_for_slow_readers_is_refused(self, driver: GatewayDriver, overflow: Any) -> None:
        (p1,) = driver.joined("p1")
        assert error(p1.say("stream/request", {"overflow": overflow}))["error"] == "invalid_request"

    def test_a_payload_that_is_no_object_is_as_good_as_none(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        assert kinds(p1.say("stream/request", "x")) == ["stream/request", "stream/open"]


class TestClose:
    def test_the_owner_closes_and_everybody_hears_it(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1)
        p2.received()
        p1.say("stream/close", {"stream_id": id_, "reason": "complete"}, id="c1", correlation_id=["mine"])
        (heard,) = p2.heard()
        assert (heard["from"], heard["payload"]["stream_id"], heard["correlation_id"]) == (
            "p1",
            id_,
            ["mine"],
        )
        assert driver.space.state.streams == {}
        (row,) = driver.rows("stream_close")
        assert (row.channel, row.seq, row.id, row.sender, row.reason) == (
            "demo/stream-1",
            1,
            "c1",
            "p1",
            "complete",
        )

    @pytest.mark.parametrize("by", ["request", "open"])
    def test_by_correlation_alone_and_both_are_echoed(self, driver: GatewayDriver, by: str) -> None:
        p1, p2 = driver.joined("p1", "p2")
        opened = p1.say("stream/request", {}, id="r1")[1]
        driver.open_stream(p1)
        p2.received()
        p1.say("stream/close", correlation_id="r1" if by == "request" else [opened["id"]])
        (heard,) = p2.heard()
        assert heard["payload"]["stream_id"] == "stream-1"
        assert list(driver.space.state.streams) == ["stream-2"]

    def test_a_close_without_a_correlation_is_given_one_for_clients_that_look_there(
        self, driver: GatewayDriver
    ) -> None:
        (p1,) = driver.joined("p1")
        opened = p1.say("stream/request", {}, id="r1")[1]
        (heard,) = p1.say("stream/close", {"stream_id": "stream-1"})
        assert heard["correlation_id"] == [opened["id"], "r1"]

    @pytest.mark.promise(
        "MEW gateway",
        "streams: ids, closes, writers and owners have the same errors on both transports",
    )
    def test_only_the_owner_closes_it(self, driver: GatewayDriver) -> None:
        p1, p2, p3 = driver.joined("p1", "p2", "p3")
        id_ = driver.open_stream(p1)
        p1.say("stream/grant-write", {"stream_id": id_, "participant_id": "p2"})
        p2.received()
        p3.received()
        said = error(p2.say("stream/close", {"stream_id": id_}, id="c1"))
        assert (said["error"], said["stream_id"]) == ("unauthorized", id_)
        assert p3.heard() == [] and list(driver.space.state.streams) == [id_]

    def test_what_it_did_is_counted_with_its_end(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        id_ = driver.open_stream(p1)
        p1.put(f"#{id_}#x", envelope("stream/close", {"stream_id": id_}))
        driver.run()
        (counted,) = driver.rows("frame_counts")
        assert (counted.channel, counted.seq, counted.size) == ("demo/stream-1", 1, 1)


class TestSlowReaders:
    @pytest.mark.promise("MEW gateway", "for slow readers frames are dropped and counted, envelopes never")
    def test_telemetry_makes_room_for_newer_and_is_counted(self) -> None:
        driver = GatewayDriver(limits=Limits(space_telemetry_max=10_000))
        p1, p2, p3 = driver.joined("p1", "p2", "p3")
        id_ = driver.open_stream(p1, ["p2", "p3"])
        p2.received()
        p3.received()
        p2.connection.congested(True)
        for n in range(50):
            p1.put(f"#{id_}#{n:04}" + "x" * 1_000)
            driver.run()
        assert p2.received() == []
        assert len(p3.frames()) == 50  # the others miss nothing
        p2.connection.congested(False)
        driver.run()
        *frames, said = p2.received()
        numbers = [int(frame[len(id_) + 2 : len(id_) + 6]) for frame in frames]
        assert numbers == list(range(50 - len(numbers), 50)) and 5 <= len(numbers) <= 10
        assert (said["payload"]["error"], said["payload"]["stream_id"], said["payload"]["frames"]) == (
            "frames_dropped",
            id_,
            50 - len(numbers),
        )
        assert driver.space.state.streams[id_].route.dropped == 50 - len(numbers)
        assert p2.is_open

    @pytest.mark.promise("MEW gateway", "for slow readers frames are dropped and counted, envelopes never")
    def test_envelopes_are_never_dropped_and_a_reader_that_stalls_is_disconnected(self) -> None:
        driver = GatewayDriver(limits=Limits(space_outbox_max=10_000))
        p1, p2, p3 = driver.joined("p1", "p2", "p3")
        p2.connection.congested(True)
        for n in range(30):
            p1.say("chat", {"text": str(n) + "x" * 1_000})
        assert p2.wire.closed == (4008, "slow_consumer")
        assert error(p2.heard())["error"] == "slow_consumer"
        assert kinds(p3.heard()).count("chat") == 30
        assert "p2" not in driver.space.present and driver.space.slow_cut == 1

    def test_envelopes_come_complete_and_in_order_once_it_reads_again(self) -> None:
        driver = GatewayDriver(limits=Limits(space_telemetry_max=5_000))
        p1, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1)
        p2.received()
        p2.connection.congested(True)
        for n in range(30):
            p1.put(envelope("chat", {"text": str(n)}), f"#{id_}#{n:02}" + "x" * 500)
            driver.run()
        p2.connection.congested(False)
        driver.run()
        received = p2.received()
        chats = [each["payload"]["text"] for each in received if isinstance(each, dict) and each["kind"] == "chat"]
        assert chats == [str(n) for n in range(30)]
        numbers = [int(each[len(id_) + 2 : len(id_) + 4]) for each in received if isinstance(each, bytes)]
        assert numbers == sorted(numbers) and numbers[-1] == 29 and len(numbers) < 30

    def test_a_stream_may_ask_that_its_slow_readers_are_let_go_instead(self) -> None:
        driver = GatewayDriver(limits=Limits(space_outbox_max=10_000))
        p1, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1, ["p2"], overflow="disconnect")
        p2.connection.congested(True)
        for _ in range(30):
            p1.put(f"#{id_}#" + "x" * 1_000)
            driver.run()
        assert p2.wire.closed == (4008, "slow_consumer")
        assert driver.space.state.streams[id_].route.dropped == 0
