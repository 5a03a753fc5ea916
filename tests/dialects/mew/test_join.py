"""Joining a space, takeovers, and the streams of a participant that left."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.limits import Limits
from penstock.dialects.mew.machine import NOTICES_MAX
from tests.dialects.mew.driving import (
    BASELINE,
    OPERATOR_TOKEN,
    Client,
    GatewayDriver,
    envelope,
    error,
    join,
    kinds,
    only,
    settings,
)
from tests.dialects.mew.test_session import SYSTEM_JOIN


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


class TestCrowd:
    """Many join or leave in one turn."""

    NAMES = tuple(f"p{number}" for number in range(150))

    def put_joins(self) -> tuple[GatewayDriver, list[Client]]:
        """All join before the turn ends."""
        driver = GatewayDriver(settings(*self.NAMES))
        clients = [driver.client() for _ in self.NAMES]
        for name, client in zip(self.NAMES, clients, strict=True):
            client.put(join(name))
        return driver, clients

    @pytest.mark.promise("MEW gateway", "many joins in one turn are let in over several turns, in order")
    def test_one_turn_lets_in_as_many_as_it_can_notify_of(self) -> None:
        driver, clients = self.put_joins()
        here = len(driver.space.present)
        assert here < len(self.NAMES), "this proves nothing unless some have to wait"
        assert sum(range(1, here + 1)) >= NOTICES_MAX > sum(range(1, here))
        assert list(driver.space.present) == list(self.NAMES[:here])
        assert len(driver.space.arrivals) == len(self.NAMES) - here
        driver.run()
        assert list(driver.space.present) == list(self.NAMES)
        assert not driver.space.arrivals
        for number, client in enumerate(clients):
            welcome, *notices = client.heard()
            before = [one["id"] for one in welcome["payload"]["participants"]]
            assert before == list(self.NAMES[:number])
            after = [one["payload"]["participant"]["id"] for one in notices]
            assert after == list(self.NAMES[number + 1 :]), (
                "each is notified of those that came after it, once and in order"
            )

    def test_who_has_left_before_its_turn_is_not_let_in(self) -> None:
        driver, clients = self.put_joins()
        clients[-1].connection.lost()
        driver.run()
        assert list(driver.space.present) == list(self.NAMES[:-1])
        heard = clients[0].heard()
        assert all(one["payload"].get("participant", {}).get("id") != self.NAMES[-1] for one in heard)

    def test_all_leave_in_one_turn_and_the_last_one_sees_each_go(self) -> None:
        driver, clients = self.put_joins()
        driver.run()
        *gone, last = clients
        last.received()
        for client in gone:
            client.connection.lost()
        assert driver.space.arrivals, "this proves nothing unless some have to wait"
        driver.run()
        notices = [(one["payload"]["event"], one["payload"]["participant"]["id"]) for one in last.heard()]
        assert notices == [("leave", name) for name in self.NAMES[:-1]]

    def test_who_is_back_before_its_leave_is_announced_has_not_left(self) -> None:
        driver, clients = self.put_joins()
        driver.run()
        for client in clients[1:-1]:
            client.connection.lost()
        back = driver.client()
        back.put(join(self.NAMES[-2]))
        driver.run()
        notices = [
            (one["payload"]["event"], one["payload"]["participant"]["id"])
            for one in clients[0].heard()
            if one["kind"] == "system/presence" and one["payload"]["participant"]["id"] == self.NAMES[-2]
        ]
        assert notices[-1] == ("join", self.NAMES[-2])
        assert self.NAMES[-2] in driver.space.present
