"""Deliveries and copies as lines, built from stored JSON."""

from __future__ import annotations

from penstock.core.effects import Copy
from penstock.core.queue.taps import Tap
from penstock.core.scopes import Principal
from penstock.dialects.courier.wire.delivery_frames import tap_lines
from tests.dialects.courier.talking import Broker, filled


def test_copies_of_a_commit_are_written_once_for_each_name_and_number() -> None:
    broker = Broker()
    filled(broker, "a/jobs", "1", "2")
    records = list(broker.machine.channels["a/jobs"].ready)
    shared: dict[tuple[bytes, int], bytes] = {}

    def lines(name: str, count: int, principal: Principal | None = None) -> bytes:
        peer = broker.control() if principal is None else broker.control(principal=principal)
        return tap_lines(Copy(Tap(peer.session.link, name), records[:count], shared))

    both = lines("a/jobs", 2)
    assert lines("a/jobs", 2) is both and both.count(b"\n") == 2
    assert lines("a/jobs", 1) == both[: both.index(b"\n") + 1]
    assert lines("b/jobs", 2) != both
    lost = tap_lines(Copy(Tap(broker.control().session.link, "a/jobs"), [], shared, 3))
    assert lost == b'{"type":"tapped_lost","stream":"a/jobs","n":3}\n'
