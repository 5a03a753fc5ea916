"""Sessions of small JSON messages: clear errors, and a limit on messages a second."""

from __future__ import annotations

import pytest

from penstock.core.clock import Now
from penstock.dialects.courier.sessions.message_session import FloodLimiter
from tests.dialects.courier.sessions.test_view_feed import Follower
from tests.dialects.courier.talking import Broker, turns


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


@pytest.mark.parametrize("message", [b'{"ack":"x"}', b'{"credit":-1}', b'{"credit":"x"}'])
def test_refused_messages_take_several_turns_and_keep_their_order(message: bytes) -> None:
    peer = Broker().subscribe("s")
    for _ in range(3_000):
        peer.send(message)
    peer.send(b'{"nack":"last"}')
    assert peer.connection.session.answers.is_full
    assert turns(peer.broker.scheduler) > 5
    answers = peer.heard()
    assert len(answers) == 3_001 and answers[-1]["error"]["ref"] == "last"
    assert not peer.connection.session.answers.is_full


def test_an_array_of_unknown_ids_weighs_as_much_as_its_ids() -> None:
    peer = Broker().subscribe("s")
    for _ in range(10):
        peer.send({"ack": ["x"] * 1_000})
    assert turns(peer.broker.scheduler) > 5
    assert len(peer.heard()) == 10_000
