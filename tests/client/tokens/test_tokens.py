"""Publisher and reader of token streams over real sockets, with a relay that can inject faults."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import penstock
from penstock.client.tokens import Agreement, SigningKey, answer_offer_with_key, reader
from penstock.core.errors import Refusal
from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.compose_stream import RetentionOptions
from penstock.dialects.streamservice.messages import Complete
from penstock.dialects.streamservice.signatures import Registrar, TrustStore
from penstock.dialects.streamservice.verify_stream import RetryOptions
from tests.client.scripted_peer import run
from tests.client.token_relay import TinyRelay

KEY = SigningKey(bytes(range(32)))
WAIT_S = 20.0
CALM = RetryOptions(idle_ms=120_000)
HURRY = RetryOptions(resume_tries_max=3, probe_ms=50, idle_ms=500, resume_first_ms=10)
FORMATS = ["chunk", "block"]


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def call(*args: Any, **kwargs: Any) -> None:
        run(test(*args, **kwargs))

    return call


@pytest.fixture
def make_relay(tmp_path: Path) -> Iterator[Callable[..., TinyRelay]]:
    made: list[TinyRelay] = []

    def make(**options: Any) -> TinyRelay:
        made.append(TinyRelay(tmp_path, **options))
        return made[-1]

    yield make
    for relay in made:
        if relay._thread.is_alive():
            relay.stop()


@pytest.fixture
def relay(make_relay: Callable[..., TinyRelay]) -> TinyRelay:
    return make_relay()


def agree(relay: TinyRelay) -> Agreement:
    offer = penstock.StreamOffer("s-1")
    answer = penstock.answer_offer(offer.text, relay.pub, signer=KEY)
    agreement = offer.accept(answer.text, signer=KEY.public)
    assert agreement == answer.agreement
    return agreement


def publisher(relay: TinyRelay, agreed: Agreement, **options: Any) -> penstock.TokenPublisher:
    return penstock.TokenPublisher(relay.push, agreed.keys, signer=KEY, stream_id=agreed.stream_id, **options)


async def read(agreed: Agreement, **options: Any) -> tuple[list[str], Complete | None]:
    async with (
        asyncio.timeout(WAIT_S),
        penstock.TokenStream(agreed.endpoint, agreed.keys, **options) as stream,
    ):
        return [token async for token in stream], stream.stats


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for happens on another thread
            await asyncio.sleep(0)


def words(count: int) -> list[str]:
    return [f"word{number} " for number in range(count)]


class TestStreams:
    @pytest.mark.promise(
        "Token streams: publisher and reader", "endings are typed: complete, failed, gap, tampered, truncated"
    )
    @pytest.mark.parametrize("form", FORMATS)
    @awaited
    async def test_every_token_arrives_in_order_and_the_end_with_its_figures(self, relay: TinyRelay, form: Any) -> None:
        agreed = agree(relay)
        reading = asyncio.ensure_future(read(agreed))
        async with publisher(relay, agreed, format=form) as out:
            for word in words(300):
                await out.send(word)
            told = await out.complete("length", perplexity=1.5, entropy=0.25)
        tokens, stats = await reading
        assert tokens == words(300)
        assert stats is not None and stats.stream_id == "s-1"
        assert (stats.tokens, stats.finish_reason, stats.generation_ms) == (300, "length", told.generation_ms)
        assert (stats.perplexity, stats.entropy) == (1.5, 0.25)

    @awaited
    async def test_a_reader_that_comes_late_misses_nothing(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with publisher(relay, agreed) as out:
            for word in words(50):
                await out.send(word)
        await until(lambda: relay.received)
        assert (await read(agreed))[0] == words(50)

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a publisher registers first, with claims for one topic, and renews",
    )
    @awaited
    async def test_the_topic_is_registered_first_with_its_own_claims(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with publisher(relay, agreed, sub="inference", lifetime=60) as out:
            await out.send("a")
        await until(lambda: relay.received)
        (register,) = relay.registered
        now_ms = time.time_ns() // 1_000_000
        registration = Registrar(TrustStore({"inference": KEY.public})).admit(register, now_ms)
        assert not isinstance(registration, Refusal), registration
        assert (registration.topic, registration.sub) == (agreed.keys.topic.encode(), "inference")
        assert 0 < registration.exp_s - now_ms // 1000 <= 61

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a publisher registers first, with claims for one topic, and renews",
    )
    @awaited
    async def test_a_registration_is_renewed_while_the_stream_lives(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with publisher(relay, agreed, lifetime=0.1) as out:
            await until(lambda: len(relay.registered) >= 3)
            await out.send("a")
        assert len({register.frame for register in relay.registered}) == len(relay.registered)

    @awaited
    async def test_silence_is_filled_and_no_reader_gives_up(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys, patience=HURRY)
        async with stream, publisher(relay, agreed, keeping=RetentionOptions(heartbeat_ms=20)) as out:
            await out.send("a")
            await out.flush()
            await until(lambda: stream.counts.accepted > 40)  # far beyond what it would wait in silence
            await out.complete()
            assert [token async for token in stream] == ["a"]

    @pytest.mark.promise("Token streams: publisher and reader", "batches adapt to the rate, with a time limit")
    @awaited
    async def test_a_partial_batch_is_not_held_back(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with (
            publisher(relay, agreed) as out,
            penstock.TokenStream(agreed.endpoint, agreed.keys) as stream,
        ):
            for word in words(21):
                await out.send(word)
            got: list[str] = []
            async with asyncio.timeout(WAIT_S):
                while len(got) < 21:
                    got += await stream.next_batch()
            assert got == words(21)

    @pytest.mark.promise("Token streams: publisher and reader", "buffers at either end are bounded")
    @awaited
    async def test_a_slow_reader_is_waited_for(self, relay: TinyRelay, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader, "WAITING_MAX", 10)
        agreed = agree(relay)
        async with publisher(relay, agreed) as out:
            for word in words(5_000):
                await out.send(word)
        async with asyncio.timeout(WAIT_S), penstock.TokenStream(agreed.endpoint, agreed.keys) as stream:
            await until(lambda: len(stream._tokens) >= 10)
            assert len(stream._tokens) < 5_000
            assert [token async for token in stream] == words(5_000)

    @awaited
    async def test_links_are_encrypted_where_both_sides_have_keys(self, make_relay: Callable[..., TinyRelay]) -> None:
        there, here = zmq.curve_keypair(), zmq.curve_keypair()
        relay = make_relay(curve=there)
        agreed = agree(relay)
        curve = penstock.Curve(there[0].decode(), here[0].decode(), here[1].decode())
        assert curve.secret not in repr(curve)
        with pytest.raises(penstock.PenstockError, match="does not answer"):
            await publisher(relay, agreed, connect_timeout=0.2).open()
        async with publisher(relay, agreed, curve=curve) as out:
            await out.send("a")
        assert (await read(agreed, curve=curve))[0] == ["a"]

    @awaited
    async def test_a_stream_has_one_reader_at_a_time(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with penstock.TokenStream(agreed.endpoint, agreed.keys, patience=CALM) as stream:
            first = asyncio.ensure_future(stream.next_batch())
            await asyncio.sleep(0)  # it comes first, whatever the relay does meanwhile
            await until(relay.subscribed.is_set)
            with pytest.raises(penstock.PenstockError, match="another task"):
                await stream.next_batch()
            async with publisher(relay, agreed) as out:
                await out.send("a")
            assert await first == ["a"]


class TestEnds:
    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a stream always ends: on exceptions, when stopped, closed or abandoned",
    )
    @awaited
    async def test_an_exception_ends_the_stream_with_an_error(self, relay: TinyRelay) -> None:
        agreed = agree(relay)

        async def generate() -> None:
            async with publisher(relay, agreed) as out:
                await out.send("a")
                raise ZeroDivisionError("a secret of the generator")

        with pytest.raises(ZeroDivisionError):
            await generate()
        with pytest.raises(penstock.StreamFailed) as failed:
            await read(agreed)
        assert failed.value.failure.code == "internal"
        assert "secret" not in str(failed.value.failure)

    @pytest.mark.promise(
        "Token streams: publisher and reader", "endings are typed: complete, failed, gap, tampered, truncated"
    )
    @awaited
    async def test_an_error_has_the_publishers_message(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with publisher(relay, agreed) as out:
            await out.send("a")
            await out.error("out of memory", "oom", "on device 0")
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys)
        async with stream:
            assert await anext(stream) == "a"
            with pytest.raises(penstock.StreamFailed, match="out of memory") as failed:
                await anext(stream)
        assert (failed.value.failure.code, failed.value.failure.details) == ("oom", "on device 0")
        assert failed.value.code == "StreamFailed"

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a stream always ends: on exceptions, when stopped, closed or abandoned",
    )
    @awaited
    async def test_a_forgotten_publisher_says_so(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        out = await publisher(relay, agreed).open()
        await out.send("a")
        del out
        gc.collect()
        with pytest.raises(penstock.StreamFailed, match="without terminal frame"):
            await read(agreed)

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a stream always ends: on exceptions, when stopped, closed or abandoned",
    )
    @awaited
    async def test_a_closed_publisher_without_an_end_says_so(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        out = await publisher(relay, agreed).open()
        await out.close()
        await out.close()
        with pytest.raises(penstock.StreamFailed, match="without terminal frame"):
            await read(agreed)

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a stream always ends: on exceptions, when stopped, closed or abandoned",
    )
    @awaited
    async def test_a_stopped_task_ends_its_stream(self, relay: TinyRelay) -> None:
        agreed = agree(relay)

        async def generate() -> None:
            async with publisher(relay, agreed) as out:
                await out.send("a")
                await asyncio.Event().wait()

        task = asyncio.ensure_future(generate())
        async with asyncio.timeout(WAIT_S), penstock.TokenStream(agreed.endpoint, agreed.keys) as stream:
            assert await anext(stream) == "a"
            task.cancel()
            with pytest.raises(penstock.StreamFailed) as failed:
                await anext(stream)
        assert failed.value.failure.code == "cancelled"

    @awaited
    async def test_nothing_is_sent_after_the_end(self, relay: TinyRelay) -> None:
        async with publisher(relay, agree(relay)) as out:
            await out.complete()
            with pytest.raises(penstock.PenstockError, match="has ended"):
                await out.send("late")
            with pytest.raises(penstock.PenstockError, match="has ended"):
                await out.complete()

    @pytest.mark.promise(
        "Token streams: publisher and reader", "endings are typed: complete, failed, gap, tampered, truncated"
    )
    @awaited
    async def test_silence_without_an_end_is_a_cut(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        async with publisher(relay, agreed) as out:
            await out.send("a")
            await out.flush()
            stream = penstock.TokenStream(agreed.endpoint, agreed.keys, patience=HURRY)
            async with stream:
                assert await anext(stream) == "a"
                with pytest.raises(penstock.TruncatedStream):
                    await anext(stream)

    @awaited
    async def test_a_stream_ends_with_its_time(self, relay: TinyRelay) -> None:
        with pytest.raises(penstock.TruncatedStream) as cut:
            await read(agree(relay), expires=0)
        assert cut.value.reason == "expired"

    @awaited
    async def test_no_relay_is_an_error_in_time(self, tmp_path: Path, relay: TinyRelay) -> None:
        agreed = agree(relay)
        nowhere = penstock.TokenPublisher(f"ipc://{tmp_path}/nobody", agreed.keys, signer=KEY, connect_timeout=0.05)
        with pytest.raises(penstock.PenstockError, match="does not answer"):
            await nowhere.open()
        with pytest.raises(penstock.PenstockError, match="cannot connect"):
            await penstock.TokenStream("nonsense", agreed.keys).open()

    @pytest.mark.parametrize("token", ["x" * 65_537, "\ud800"])
    @awaited
    async def test_what_cannot_be_sent_is_refused_and_harms_nothing(self, relay: TinyRelay, token: str) -> None:
        agreed = agree(relay)
        async with publisher(relay, agreed) as out:
            await out.send("a")
            with pytest.raises(penstock.PenstockError):
                await out.send(token)
            await out.send("b" * 65_536)
        assert (await read(agreed))[0] == ["a", "b" * 65_536]


class TestFaults:
    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a reader retries with increasing pauses and gives up at a limit",
    )
    @pytest.mark.parametrize("form", FORMATS)
    @awaited
    async def test_lost_messages_are_had_again(self, make_relay: Callable[..., TinyRelay], form: Any) -> None:
        seen = iter(range(10**6))
        relay = make_relay(meddle=lambda parts: [] if next(seen) % 3 == 1 else [parts])
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys)
        async with asyncio.timeout(WAIT_S), stream:
            await until(relay.subscribed.is_set)
            async with publisher(relay, agreed, format=form) as out:
                for word in words(100):
                    await out.send(word)
            assert [token async for token in stream] == words(100)
        assert stream.counts.ahead and relay.resumes

    @awaited
    async def test_messages_that_come_twice_are_read_once(self, make_relay: Callable[..., TinyRelay]) -> None:
        relay = make_relay(meddle=lambda parts: [parts, parts, parts])
        agreed = agree(relay)
        async with publisher(relay, agreed) as out:
            for word in words(100):
                await out.send(word)
        assert (await read(agreed))[0] == words(100)

    @pytest.mark.promise(
        "Token streams: publisher and reader", "endings are typed: complete, failed, gap, tampered, truncated"
    )
    @awaited
    async def test_a_gap_that_cannot_be_filled_is_reported(self, make_relay: Callable[..., TinyRelay]) -> None:
        seen = iter(range(10**6))
        relay = make_relay(is_forgetful=True, meddle=lambda parts: [] if next(seen) == 2 else [parts])
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys, patience=HURRY)
        async with asyncio.timeout(WAIT_S), stream:
            await until(relay.subscribed.is_set)
            async with publisher(relay, agreed, format="chunk") as out:
                for word in words(6):
                    await out.send(word)
            assert [await anext(stream), await anext(stream)] == words(2)
            with pytest.raises(penstock.GapError) as gap:
                await anext(stream)
        assert gap.value.is_gone and gap.value.code == "StreamGap"

    @pytest.mark.promise(
        "Token streams: publisher and reader", "an attacker that can only add messages cannot end a stream"
    )
    @awaited
    async def test_added_messages_do_not_end_a_stream(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        topic = agreed.keys.topic.encode()
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys)
        async with asyncio.timeout(WAIT_S), stream:
            await until(relay.subscribed.is_set)
            async with publisher(relay, agreed) as out:
                for word in words(50):
                    relay.inject(topic, encode.block(topic[:16], []), bytes(16))
                    relay.inject(topic + b"noise")
                    relay.inject(topic, b"\x03" + bytes(16))
                    await out.send(word)
                await until(lambda: stream.counts.tampered)
            assert [token async for token in stream] == words(50)

    @pytest.mark.promise(
        "Token streams: publisher and reader", "endings are typed: complete, failed, gap, tampered, truncated"
    )
    @awaited
    async def test_a_changed_message_is_never_read(self, make_relay: Callable[..., TinyRelay]) -> None:
        def change(parts: Any) -> Any:
            return [(parts[0], parts[1].replace(b"word3", b"lied3"), parts[2])]

        relay = make_relay(is_forgetful=True, meddle=change)
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys, patience=HURRY)
        got: list[str] = []
        async with asyncio.timeout(WAIT_S), stream:
            await until(relay.subscribed.is_set)
            async with publisher(relay, agreed) as out:
                for word in words(6):
                    await out.send(word)
                    await out.flush()

            async def go_on() -> None:
                async for token in stream:
                    got.append(token)  # noqa: PERF401 - what was read before the error counts

            with pytest.raises(penstock.TamperedStream):
                await go_on()
        assert got == words(len(got)) and len(got) <= 3

    @pytest.mark.promise("Token streams: publisher and reader", "a killed relay and a lost connection lose nothing")
    @pytest.mark.parametrize("form", FORMATS)
    @awaited
    async def test_a_relay_that_is_restarted_without_memory_loses_nothing(
        self, make_relay: Callable[..., TinyRelay], form: Any
    ) -> None:
        relay = make_relay()
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys)
        async with asyncio.timeout(WAIT_S), stream, publisher(relay, agreed, format=form) as out:
            for word in words(50):
                await out.send(word)
            assert [await anext(stream) for _ in range(20)] == words(20)
            await out.flush()
            relay.meddle = lambda _: []  # what it takes from now on dies with it
            before = len(relay.received)
            for word in words(80)[50:]:
                await out.send(word)
            await out.flush()
            await until(lambda: len(relay.received) > before)
            relay.stop()
            for word in words(100)[80:]:
                await out.send(word)
            relay = make_relay()
            for word in words(150)[100:]:
                await out.send(word)
            await out.complete()
            assert [token async for token in stream] == words(150)[20:]
            assert relay.registered, "the new relay knows the topic"

    @pytest.mark.promise("Token streams: publisher and reader", "a failed send breaks no chain; a full publisher waits")
    @awaited
    async def test_a_publisher_waits_for_a_relay_that_is_gone_and_says_when_that_takes_too_long(
        self, relay: TinyRelay, make_relay: Callable[..., TinyRelay]
    ) -> None:
        agreed = agree(relay)
        out = publisher(relay, agreed, timeout=0.05, keeping=RetentionOptions(unsent_max=5), format="chunk")
        await out.open()
        await out.send("0")
        relay.stop()
        sent = 1

        async def fill() -> None:
            nonlocal sent
            while sent < 10**4:
                await out.send(str(sent))
                sent += 1

        with pytest.raises(penstock.PenstockError, match="accepts no messages"):
            await fill()
        again = make_relay()
        await until(lambda: not out.unsent)
        await out.complete()
        await out.close()
        tokens, _ = await read(Agreement(agreed.stream_id, again.pub, agreed.keys))
        assert tokens == [str(number) for number in range(sent + 1)], "the token of the error is not lost"


class TestCancelling:
    @pytest.mark.promise(
        "Token streams: publisher and reader", "only the reader cancels, and each cancel message works once"
    )
    @awaited
    async def test_a_reader_stops_the_publisher_through_the_relay(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys, push=relay.push)
        async with asyncio.timeout(WAIT_S), stream, publisher(relay, agreed, pub=relay.pub) as out:
            await out.send("a")
            assert await anext(stream) == "a"
            await stream.cancel()
            await until(lambda: out.is_cancelled)
            with pytest.raises(penstock.StreamCancelled):
                await out.send("more")
            assert out.is_cancelled and out.is_over
            with pytest.raises(penstock.StreamFailed) as failed:
                async for _ in stream:
                    pass
        assert failed.value.failure.code == "cancelled"
        assert len(relay.registered) >= 2, "the control topic is registered too"

    @awaited
    async def test_a_cancellation_can_take_another_way_and_works_once(self, relay: TinyRelay) -> None:
        agreed = agree(relay)
        stream = penstock.TokenStream(agreed.endpoint, agreed.keys)
        with pytest.raises(penstock.PenstockError, match="no endpoint to send a cancellation"):
            await stream.cancel()
        message = stream.cancellation()
        async with publisher(relay, agreed) as out:
            assert not out.take_control(message[:-1] + bytes([message[-1] ^ 1]))
            assert not out.take_control(b"")
            assert not out.is_cancelled
            assert out.take_control(message)
            assert out.is_cancelled and not out.take_control(message)


class TestAgreeing:
    def test_both_ends_have_the_same_keys_and_each_offer_others(self) -> None:
        offers = [penstock.StreamOffer("s"), penstock.StreamOffer("s")]
        answers = [penstock.answer_offer(offer.text, "tcp://there:1", signer=KEY) for offer in offers]
        agreed = [o.accept(a.text, signer=KEY.public) for o, a in zip(offers, answers, strict=True)]
        assert [agreement.keys for agreement in agreed] == [answer.agreement.keys for answer in answers]
        assert agreed[0].keys.topic != agreed[1].keys.topic
        assert agreed[0].endpoint == "tcp://there:1"

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "keys are agreed on over Courier or a space, and a swapped key is rejected",
    )
    def test_an_answer_of_another_signer_is_rejected(self) -> None:
        """An intermediary could substitute its own key."""
        offer = penstock.StreamOffer("s")
        other = penstock.new_signing_key()
        for swapped in (
            penstock.answer_offer(offer.text, "tcp://there:1", signer=other),
            penstock.answer_offer(offer.text, "tcp://there:1", signer=None),
        ):
            with pytest.raises(penstock.PenstockError):
                offer.accept(swapped.text, signer=KEY.public)
        good = penstock.answer_offer(offer.text, "tcp://there:1", signer=KEY)
        with pytest.raises(penstock.PenstockError, match="another request"):
            penstock.StreamOffer("s").accept(good.text, signer=KEY.public)

    def test_over_a_trusted_way_no_signature_is_needed(self) -> None:
        offer = penstock.StreamOffer("s")
        plain = penstock.answer_offer(offer.text, "tcp://there:1", signer=None)
        assert offer.accept(plain.text, signer=None) == plain.agreement
        bare = answer_offer_with_key(offer.text, "tcp://there:1")
        assert offer.accept_key(bare.text, "tcp://there:1") == bare.agreement

    @pytest.mark.parametrize("text", ["", "?", "AAAA", "A" * 20_000])
    def test_nonsense_is_refused(self, text: str) -> None:
        with pytest.raises(penstock.PenstockError):
            penstock.answer_offer(text, "tcp://there:1", signer=KEY)
        for signer in (None, KEY.public):
            with pytest.raises(penstock.PenstockError):
                penstock.StreamOffer("s").accept(text, signer=signer)


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
