"""Sessions of small JSON messages: clear errors, and a limit on messages a second."""

from __future__ import annotations

import pytest

from penstock.core.clock import Now
from penstock.dialects.courier.sessions.message_session import FloodLimiter
from tests.dialects.courier.sessions.test_view_feed import Follower
from tests.dialects.courier.talking import Broker


class TestCredit:
    @pytest.mark.parametrize(
        ("message", "code", "close"),
        [
            (b"{", "InvalidJSON", 1007),
            (b'{"ack":"1"}', "UnknownOp", None),
            (b'{"credit":"x"}', "InvalidCredit", None),
        ],
    )
    def test_nonsense_gets_a_clear_error(self, message: bytes, code: str, close: int | None) -> None:
        follower = Follower(Broker())
        follower.heard()
        (answer,) = follower.say(message)
        assert answer["error"]["code"] == code
        assert follower.wire.closed == (None if close is None else (close, code))


def test_messages_beyond_the_limit_of_a_second_are_a_flood_until_the_next_second() -> None:
    limiter = FloodLimiter(2)
    at = [limiter.flood(Now(us, us)) for us in (0, 1, 999_999, 1_000_000)]
    assert [None if refusal is None else refusal.code for refusal in at] == [None, None, "RateLimited", None]
