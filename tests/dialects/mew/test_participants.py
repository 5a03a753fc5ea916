"""Participants: what waits for a commit is announced once durable, in the sender's order."""

from __future__ import annotations

from tests.dialects.mew.driving import (
    GatewayDriver,
    envelope,
    kinds,
)


class TestRouting:
    def test_envelopes_are_sent_only_when_durable(self, driver: GatewayDriver) -> None:
        p1, p2 = driver.joined("p1", "p2")
        driver.journal.is_by_hand = True
        assert p1.say("chat", {"text": "x"}) == [] and p2.heard() == []
        driver.journal.commit()
        driver.run()
        assert kinds(p1.heard()) == kinds(p2.heard()) == ["chat"]

    def test_errors_stay_in_order_too(self, driver: GatewayDriver) -> None:
        (p1,) = driver.joined("p1")
        p1.put(envelope("chat", {"text": "1"}), b"[]", envelope("chat", {"text": "2"}), b"#x#y")
        driver.run()
        assert kinds(p1.heard()) == ["chat", "system/error", "chat", "system/error"]
