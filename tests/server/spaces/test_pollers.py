"""Participants without a socket: pollers over HTTP, and virtual ones with a file."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from penstock.core.clock import Now
from penstock.core.fanout.outbox import Outbox
from penstock.core.limits import Limits
from penstock.server.spaces.pollers import FileSink
from tests.dialects.mew.driving import (
    GatewayDriver,
    join,
    kinds,
    token,
)
from tests.server.spaces.test_listener import CHAT


class TestPolling:
    def poll(self, driver: GatewayDriver, name: str = "p1") -> Any:
        status, body = driver.ask("GET", f"/participants/{name}/messages", key=token(name))
        assert status == 200, body
        return body

    @pytest.mark.promise("MEW gateway", "`/participants` has the documented status codes, bodies and polling")
    def test_the_first_time_it_joins_and_then_it_hears_everything_once(self, driver: GatewayDriver) -> None:
        (p2,) = driver.joined("p2")
        first = self.poll(driver)
        assert kinds(first["messages"]) == ["system/welcome"] and first["frames"] == []
        assert kinds(p2.heard()) == ["system/presence"]
        p2.say("chat", {"text": "1"})
        p2.say("chat", {"text": "2"})
        id_ = driver.open_stream(p2, ["p1"])
        p2.put(f"#{id_}#a#b".encode() + b"\xff")
        driver.run()
        second = self.poll(driver)
        assert kinds(second["messages"]) == ["chat", "chat", "stream/request", "stream/open"]
        data = base64.b64encode(b"a#b\xff").decode()
        assert second["frames"] == [{"stream_id": id_, "data": data}]
        assert self.poll(driver) == {"messages": [], "frames": []}

    def test_it_counts_as_present_and_leaves_when_it_stops(self, driver: GatewayDriver) -> None:
        (_p2,) = driver.joined("p2")
        self.poll(driver)
        driver.advance(driver.machine.limits.poll_ms // 2)
        self.poll(driver)
        driver.advance(driver.machine.limits.poll_ms // 2 + 1)
        assert "p1" in driver.space.present
        driver.advance(driver.machine.limits.poll_ms)
        assert "p1" not in driver.space.present

    def test_a_connected_participant_receives_everything_on_its_connection(self, driver: GatewayDriver) -> None:
        driver.joined("p1")
        status, body = driver.ask("GET", "/participants/p1/messages", key="p1-token")
        assert (status, body["error"]) == (409, "already_connected")

    def test_it_needs_the_token(self, driver: GatewayDriver) -> None:
        assert driver.ask("GET", "/participants/p1/messages")[0] == 401
        assert driver.ask("GET", "/participants/p1/messages", key="p2-token")[0] == 403

    def test_a_connection_takes_the_place_of_a_poller(self, driver: GatewayDriver) -> None:
        self.poll(driver)
        client = driver.join("p1")
        driver.advance(driver.machine.limits.poll_ms)
        assert driver.space.present["p1"].kind == "websocket"
        assert kinds(client.say("chat", {"text": "x"})) == ["chat"]

    def test_one_that_does_not_fetch_its_envelopes_is_let_go_and_may_come_again(self) -> None:
        driver = GatewayDriver(limits=Limits(space_outbox_max=10_000, poll_ms=60_000))
        (p2,) = driver.joined("p2")
        self.poll(driver)
        for n in range(30):
            p2.say("chat", {"text": str(n) + "x" * 1_000})
        assert "p1" not in driver.space.present
        driver.advance(1_000)
        assert kinds(self.poll(driver)["messages"]) == ["system/welcome"]
        # What was expected of the first time does not end the second.
        driver.advance(59_500)
        p2.say("chat", {"text": "kept"})
        assert kinds(self.poll(driver)["messages"]) == ["chat"]

    def test_it_counts_among_all_outboxes(self) -> None:
        driver = GatewayDriver(limits=Limits(outbox_total_max=20_000))
        (p2,) = driver.joined("p2")
        self.poll(driver)
        p2.say("chat", {"text": "x" * 9_000})
        outboxes = driver.runtime.peers.outboxes
        assert outboxes.total > 9_000
        self.poll(driver)
        assert outboxes.total == 0
        for _ in range(3):
            p2.say("chat", {"text": "x" * 9_000})
        assert "p1" not in driver.space.present
        assert (outboxes.total, outboxes.cut, driver.space.slow_cut) == (0, 1, 1)

    def test_dropped_frames_are_reported(self) -> None:
        driver = GatewayDriver(limits=Limits(space_telemetry_max=3_000))
        (p2,) = driver.joined("p2")
        self.poll(driver)
        id_ = driver.open_stream(p2, ["p1"])
        for _ in range(10):
            p2.put(f"#{id_}#" + "x" * 1_000)
            driver.run()
        body = self.poll(driver)
        assert len(body["frames"]) + body["frames_dropped"] == 10 and body["frames_dropped"] > 0

    def test_a_kick_ends_it(self, driver: GatewayDriver) -> None:
        (p2,) = driver.joined("p2")
        self.poll(driver)
        p2.say("space/kick", {"participant_id": "p1"})
        assert driver.ask("GET", "/participants/p1/messages", key="p1-token")[0] == 403
        assert "p1" not in driver.space.present


class Lines:
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def envelope(self, data: bytes) -> None:
        self.seen.append(data)

    def frame(self, data: bytes) -> None:
        self.seen.append(data)


class TestVirtual:
    def test_one_with_a_file_is_there_from_the_start_or_from_its_first_request_on(self, driver: GatewayDriver) -> None:
        early, late = Lines(), Lines()
        driver.spaces.give_sink(driver.space, "p1", FileSink(early), is_present=True)
        driver.spaces.give_sink(driver.space, "p2", FileSink(late), is_present=False)
        driver.run()
        assert list(driver.space.present) == ["p1"]
        driver.post("p2", CHAT)
        assert list(driver.space.present) == ["p1", "p2"]
        (p3,) = driver.joined("p3")
        id_ = driver.open_stream(p3, ["p2"])
        p3.put(f"#{id_}#x")
        driver.run()
        assert b'"kind":"system/welcome"' in early.seen[0] and b'"kind":"chat"' in late.seen[1]
        assert late.seen[-1] == b"#stream-1#x" and early.seen[-1] != late.seen[-1]

    def test_a_connection_takes_its_place(self, driver: GatewayDriver) -> None:
        lines = Lines()
        driver.spaces.give_sink(driver.space, "p1", FileSink(lines), is_present=True)
        driver.run()
        client = driver.client()
        assert kinds(client.send(join("p1"))) == ["system/welcome"]
        count = len(lines.seen)
        client.say("chat", {"text": "x"})
        assert len(lines.seen) == count and driver.space.present["p1"].kind == "websocket"

    def test_nothing_is_kept_back(self) -> None:
        driver = GatewayDriver()
        taken: list[int] = []

        class Sink:
            def taken(self, now: Now, outbox: Outbox) -> None:
                taken.append(len(outbox.take()))

        driver.spaces.enter(driver.space, "p1", Sink(), "virtual")
        driver.run()
        assert taken == [1]
