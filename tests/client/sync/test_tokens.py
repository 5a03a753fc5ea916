"""Publisher and reader of a token stream without async."""

from __future__ import annotations

import gc
import threading

import pytest

import penstock
from tests.client.token_relay import TinyRelay
from tests.client.tokens.driving import KEY, agree, words


class TestTwins:
    def test_both_ends_work_without_async_and_leave_no_thread(self, relay: TinyRelay) -> None:
        before = threading.active_count()
        agreed = agree(relay)
        with penstock.SyncTokenPublisher(relay.push, agreed.keys, signer=KEY) as out:
            for word in words(30):
                out.send(word)
        with penstock.SyncTokenStream(agreed.endpoint, agreed.keys) as stream:
            assert list(stream) == words(30)
            assert stream.stats is not None and stream.stats.tokens == 30
        assert threading.active_count() == before

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a stream always ends: on exceptions, when stopped, closed or abandoned",
    )
    def test_a_forgotten_publisher_says_so(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        out = penstock.SyncTokenPublisher(relay.push, agreed.keys, signer=KEY).open()
        out.send("a")
        del out
        gc.collect()
        with penstock.SyncTokenStream(agreed.endpoint, agreed.keys) as stream:
            assert next(stream) == "a"
            with pytest.raises(penstock.StreamFailed, match="without terminal frame"):
                next(stream)

    def test_an_exception_ends_the_stream(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        with (
            pytest.raises(ZeroDivisionError),
            penstock.SyncTokenPublisher(relay.push, agreed.keys, signer=KEY),
        ):
            raise ZeroDivisionError
        with (
            penstock.SyncTokenStream(agreed.endpoint, agreed.keys) as stream,
            pytest.raises(penstock.StreamFailed, match="the publisher failed"),
        ):
            next(stream)
