"""The host of several spaces: pings, and the isolation of each space."""

from __future__ import annotations

import pytest

from penstock.core.limits import Limits
from penstock.server.spaces import host
from tests.dialects.mew.driving import (
    PING,
    Client,
    GatewayDriver,
    envelope,
    error,
    join,
    kinds,
    participant,
    settings,
)


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


class TestOutboxes:
    def test_a_paused_participant_counts_among_all_outboxes(self) -> None:
        driver = GatewayDriver(settings("p1", "p2", "p3"), limits=Limits(outbox_total_max=20_000))
        p1, p2, p3 = driver.joined("p1", "p2", "p3")
        p1.connection.congested(True)
        p2.say("chat", {"text": "x" * 9_000})
        p3.connection.congested(True)
        p2.say("chat", {"text": "x" * 4_000})
        outboxes = driver.runtime.peers.outboxes
        assert outboxes.total > 17_000 and p1.is_open
        p2.say("chat", {"text": "x" * 4_000})
        assert (p1.is_open, p3.is_open) == (False, True)
        assert (outboxes.cut, driver.space.slow_cut) == (1, 1)
        assert "p1" not in driver.space.present
        p3.connection.congested(False)
        driver.run()
        assert outboxes.total == 0


class TestWrites:
    """Thirty participants, and turns that write to eight."""

    NAMES = tuple(f"n{number}" for number in range(30))

    @pytest.fixture
    def many(self, monkeypatch: pytest.MonkeyPatch) -> GatewayDriver:
        monkeypatch.setattr(host, "OUTBOXES_MAX", 8)
        return GatewayDriver(settings(*self.NAMES))

    def writes(self, driver: GatewayDriver, clients: list[Client]) -> list[int]:
        """How many were written to in each call of the loop, until nothing is due."""
        found = list[int]()
        while driver.scheduler._soon:
            before = [each.wire.writes for each in clients]
            driver.scheduler._soon.popleft()()
            found.append(sum(each.wire.writes - count for each, count in zip(clients, before, strict=True)))
        return found

    def test_a_turn_writes_to_a_few_and_the_next_ones_to_the_rest(self, many: GatewayDriver) -> None:
        clients = many.joined(*self.NAMES)
        for client in clients:
            client.received()
        clients[0].put(envelope("chat", {"text": "x"}))
        writes = self.writes(many, clients)
        assert max(writes) == 8 and sum(writes) == 30
        assert all(kinds(each.heard()) == ["chat"] for each in clients)

    def test_those_that_wait_come_first_and_keep_their_order(self, many: GatewayDriver) -> None:
        clients = many.joined(*self.NAMES)
        for client in clients:
            client.received()
        id_ = many.open_stream(clients[0])
        for client in clients:
            client.received()
        spaces = many.spaces
        clients[0].put(*[f"#{id_}#{number}".encode() for number in range(4)])
        spaces.turn()
        clients[0].put(f"#{id_}#last".encode())
        spaces.turn()
        many.runtime.peers.flush()
        assert [bool(each.wire.data) for each in clients] == [True] * 16 + [False] * 14, "those that waited come first"
        many.run()
        wanted = [f"#{id_}#{number}".encode() for number in range(4)] + [f"#{id_}#last".encode()]
        assert all(each.frames() == wanted for each in clients)


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
