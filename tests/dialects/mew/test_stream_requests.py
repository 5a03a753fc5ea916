"""The behaviour that clients rely on: streams, frames, writers and owners, takeovers and slow readers."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.limits import Limits
from tests.dialects.mew.driving import (
    Client,
    GatewayDriver,
    envelope,
    error,
    join,
    kinds,
    only,
    participant,
    settings,
)


@pytest.fixture
def driver() -> GatewayDriver:
    return GatewayDriver()


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


class TestFrames:
    @pytest.mark.promise("MEW gateway", "frames are byte-exact")
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"text",
            b"a#b##c#",
            b"\x00\xff\xfe\x80",
            "é".encode(),
            b"x" * 125,
            b"x" * 126,
            b"x" * 65_536,
            b"\n{}",
        ],
        ids=len,
    )
    def test_they_are_byte_exact_and_always_binary(self, driver: GatewayDriver, data: bytes) -> None:
        p1, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1)
        p2.received()
        sent = b"#" + id_.encode() + b"#" + data
        p1.put(sent)
        driver.run()
        assert p2.wire.data[:1] == b"\x82"
        assert p2.received() == [sent]
        assert p1.frames() == [sent]

    def test_envelopes_are_always_text(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        p1.put(b'{"kind":"chat","payload":{"text":"sent as binary"}}')
        driver.run()
        assert p2.wire.data[:1] == b"\x81"

    def test_no_capability_is_needed_to_write(self) -> None:
        driver = GatewayDriver(settings("p1", mute=participant("mute", {"kind": "nothing"})))
        p1, mute = driver.joined("p1", "mute")
        id_ = driver.open_stream(p1)
        p1.say("stream/grant-write", {"stream_id": id_, "participant_id": "mute"})
        p1.received()
        mute.put(f"#{id_}#x")
        driver.run()
        assert p1.frames() == [b"#stream-1#x"]

    def test_a_frame_of_a_non_writer_gets_an_error_and_is_not_delivered(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1)
        p2.received()
        said = error(p2.send(f"#{id_}#x"))
        assert (said["error"], said["stream_id"]) == ("unauthorized_stream_write", id_)
        assert p1.received() == []

    def test_a_frame_after_the_close_is_refused(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        id_ = driver.open_stream(p1)
        p1.put(envelope("stream/close", {"stream_id": id_}), f"#{id_}#x")
        driver.run()
        assert kinds(p1.heard()) == ["stream/close", "system/error"]


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


class TestReconnect:
    @pytest.mark.promise("MEW gateway", "takeovers work, and an owner has a grace period")
    def test_a_takeover_closes_the_old_connection_and_keeps_the_new_one(self, driver: GatewayDriver) -> None:
        old, p2 = driver.joined("p1", "p2")
        new = driver.join("p1")
        assert error(old.heard())["error"] == "taken_over"
        assert old.wire.closed == (4001, "taken_over")
        p2.received()
        old.connection.lost()  # its end arrives late
        driver.run()
        assert p2.heard() == []  # no participant left
        assert kinds(new.say("chat", {"text": "x"})) == ["chat"]
        assert kinds(p2.heard()) == ["chat"]

    def test_the_old_connection_cannot_speak_any_more(self, driver: GatewayDriver) -> None:
        old, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(old)
        driver.join("p1")
        old.put(envelope("chat", {"text": "ghost"}), f"#{id_}#ghost")
        driver.run()
        assert [each for each in p2.received() if isinstance(each, bytes) or each["kind"] == "chat"] == []

    def test_a_half_open_connection_is_replaced_while_its_commit_is_under_way(self, driver: GatewayDriver) -> None:
        old, p2 = driver.joined("p1", "p2")
        driver.journal.is_by_hand = True
        old.put(envelope("chat", {"text": "last words"}))
        driver.run()
        new = driver.client()
        new.send(join("p1"))
        driver.journal.is_by_hand = False
        driver.journal.commit()
        driver.run()
        assert kinds(p2.heard()) == ["chat", "system/presence"]
        assert kinds(new.heard()) == ["system/welcome"] and not old.is_open
        assert kinds(new.say("chat", {"text": "x"})) == ["chat"]

    def test_an_owner_that_takes_itself_over_keeps_its_streams_and_a_writer_its_right(
        self, driver: GatewayDriver
    ) -> None:
        p1, _, p3 = driver.joined("p1", "p2", "p3")
        id_ = driver.open_stream(p1)
        p1.say("stream/grant-write", {"stream_id": id_, "participant_id": "p2"})
        owner, writer = driver.join("p1"), driver.join("p2")
        p3.received()
        owner.put(f"#{id_}#1")
        writer.put(f"#{id_}#2")
        driver.advance(driver.machine.limits.owner_grace_ms)
        assert p3.frames() == [b"#stream-1#1", b"#stream-1#2"]

    def test_an_owner_that_comes_back_in_time_keeps_its_streams(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1)
        p1.gone()
        driver.advance(driver.machine.limits.owner_grace_ms - 1)
        (shown,) = driver.welcome("p3")["active_streams"]
        assert shown["stream_id"] == id_
        again = driver.join("p1")
        driver.advance(10)
        p2.received()
        again.put(f"#{id_}#x")
        driver.run()
        assert p2.frames() == [b"#stream-1#x"]

    @pytest.mark.promise("MEW gateway", "takeovers work, and an owner has a grace period")
    def test_after_the_grace_its_streams_are_closed_with_a_reason(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        opened = p1.say("stream/request", {}, id="r1")[1]
        p1.gone()
        p2.received()
        driver.advance(driver.machine.limits.owner_grace_ms)
        (said,) = p2.heard()
        assert (said["kind"], said["from"]) == ("stream/close", "gateway")
        assert said["payload"] == {"stream_id": "stream-1", "reason": "owner_disconnected"}
        assert said["correlation_id"] == [opened["id"], "r1"]
        assert driver.space.state.streams == {}
        (row,) = driver.rows("stream_close")
        assert (row.sender, row.reason, row.id) == ("gateway", "owner_disconnected", None)

    @pytest.mark.parametrize("days", [-400, 400])
    def test_a_clock_that_jumps_neither_shortens_nor_lengthens_the_grace(
        self, driver: GatewayDriver, days: int
    ) -> None:
        (p1,) = driver.joined("p1")
        id_ = driver.open_stream(p1)
        p1.gone()
        driver.wall_jump_us = days * 86_400_000_000
        driver.advance(driver.machine.limits.owner_grace_ms - 1)
        assert list(driver.space.state.streams) == [id_]
        driver.advance(1)
        assert driver.space.state.streams == {}

    def test_the_grace_begins_anew_with_every_leave(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        id_ = driver.open_stream(p1)
        grace = driver.machine.limits.owner_grace_ms
        p1.gone()
        driver.advance(grace - 1)
        driver.join("p1").gone()
        driver.advance(grace - 1)
        assert list(driver.space.state.streams) == [id_]
        driver.advance(1)
        assert driver.space.state.streams == {}

    def test_a_stream_that_was_given_away_does_not_wait_for_its_first_owner(self, driver: GatewayDriver) -> None:
        p1, _p2 = driver.joined("p1", "p2")
        id_ = driver.open_stream(p1)
        p1.say("stream/transfer-ownership", {"stream_id": id_, "new_owner": "p2"})
        p1.gone()
        for _ in range(2):
            driver.advance(driver.machine.limits.owner_grace_ms)
        assert list(driver.space.state.streams) == [id_]

    def test_no_participant_remains_after_leaving(self, driver: GatewayDriver) -> None:
        for _ in range(3):
            for client in driver.joined("p1", "p2", "p3"):
                client.gone()
        assert driver.space.present == {} and driver.space.router.members == {} and driver.spaces.sessions == {}
        assert [row.event for row in driver.journal.rows].count("leave") == 9


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
