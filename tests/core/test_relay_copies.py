"""Messages pushed twice: a resume still returns everything after the first copy."""

from __future__ import annotations

from tests.core.relay.test_machine import T, at, message, publish, registered


def test_a_copy_pushed_later_takes_nothing_from_who_resumes() -> None:
    relay = registered()
    relay.subscribe(at(0), T)
    for number in (1, 2, 3, 1):
        publish(relay, 1, number)
    resumed = relay.resume(at(500), T, message(1)[:4])
    assert resumed.found and resumed.messages == [message(2), message(3), message(1)]
