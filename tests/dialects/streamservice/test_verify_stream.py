"""A reader's position in the chain: the next message, earlier ones, missing ones, and timeouts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.dialects.streamservice import encode
from penstock.dialects.streamservice.chain import BlockChain, ChainedStreamHmac
from penstock.dialects.streamservice.compose_stream import Batching, Composer
from penstock.dialects.streamservice.messages import Complete, Heartbeat, Payload, StreamFailure, Token
from penstock.dialects.streamservice.verify_stream import (
    Format,
    Gap,
    ResumeRequest,
    RetryOptions,
    StreamVerifier,
    Tampered,
    Truncated,
    Unreadable,
)
from tests.dialects.streamservice.attacker import keys_of

KEYS = keys_of("following")
TOPIC = KEYS.topic.encode()
MS = 1_000
SECOND = 1_000_000
FORMATS: list[Format] = ["chunk", "block"]


def messages(payloads: list[Payload], form: Format, keys=KEYS) -> list[tuple[bytes, ...]]:
    """What a reader of a stream gets: each payload in a message of its own."""
    composer = Composer(0, keys, format=form, batching=Batching(max_batch=1))
    out = []
    for payload in payloads:
        composer.add(0, payload)
        parts = composer.next()
        assert parts is not None
        out.append(parts if form == "block" else (TOPIC + parts[0],))
        composer.sent()
    return out


def tokens(count: int) -> list[Payload]:
    return [Token(f"t{number}") for number in range(count)]


def texts(follower: StreamVerifier, now_us: int, *arrived: tuple[bytes, ...]) -> list[str]:
    return [payload.text for parts in arrived for payload in follower.take(now_us, parts) if isinstance(payload, Token)]


def asks(follower: StreamVerifier, until_us: int) -> list[tuple[int, ResumeRequest]]:
    """What is asked for, and when."""
    found = []
    while follower.ending is None and follower.due_us() <= until_us:
        due_us = follower.due_us()
        ask = follower.step(due_us)
        if ask is not None:
            found.append((due_us, ask))
    return found


@pytest.mark.parametrize("form", FORMATS)
class TestOrder:
    def test_what_is_next_is_given_out_and_the_end_is_the_end(self, form: Format) -> None:
        sent = messages([*tokens(3), Heartbeat(), Complete(tokens=3), Token("late")][:5], form)
        follower = StreamVerifier(0, KEYS)
        assert texts(follower, 1, *sent) == ["t0", "t1", "t2"]
        assert follower.ending == Complete(tokens=3)
        assert texts(follower, 2, *sent) == []

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a reader distinguishes a gap from tampering, and both from earlier messages",
    )
    def test_what_came_before_is_dropped_unseen(self, form: Format) -> None:
        sent = messages(tokens(4), form)
        follower = StreamVerifier(0, KEYS)
        assert texts(follower, 1, *sent[:3]) == ["t0", "t1", "t2"]
        assert texts(follower, 1, *sent) == ["t3"]
        assert follower.counts.duplicates == 3 and follower.counts.tampered == follower.counts.ahead == 0
        assert asks(follower, SECOND) == []

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a reader distinguishes a gap from tampering, and both from earlier messages",
    )
    def test_a_missing_message_is_asked_for_by_the_last_good_mac(self, form: Format) -> None:
        sent = messages(tokens(4), form)
        follower = StreamVerifier(0, KEYS, jitter=0.5)
        assert texts(follower, 1, sent[0], sent[2], sent[3]) == ["t0"]
        assert follower.counts.ahead == 2 and follower.counts.tampered == 0
        assert follower.step(1) == ResumeRequest(follower.mark)
        assert texts(follower, 2, *sent[1:]) == ["t1", "t2", "t3"]
        assert asks(follower, SECOND) == []

    def test_a_missing_beginning_is_asked_for_by_a_new_subscription(self, form: Format) -> None:
        sent = messages(tokens(2), form)
        follower = StreamVerifier(0, KEYS)
        assert texts(follower, 1, sent[1]) == []
        assert follower.step(1) == ResumeRequest(None)
        assert texts(follower, 2, *sent) == ["t0", "t1"]

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a reader distinguishes a gap from tampering, and both from earlier messages",
    )
    def test_a_changed_message_is_distinguished_from_a_gap(self, form: Format) -> None:
        sent = messages(tokens(2), form)
        lie = messages([Token("lie")], form, keys_of("another"))[0]
        follower = StreamVerifier(0, KEYS)
        at = 1 if form == "block" else 0
        changed = bytearray(sent[1][at])
        changed[-70 if form == "chunk" else -3] ^= 1
        spoilt = (*sent[1][:at], bytes(changed), *sent[1][at + 1 :])
        if form == "chunk":
            lie = (TOPIC + lie[0][64:],)
        assert texts(follower, 1, sent[0], spoilt) == ["t0"]
        assert follower.counts.tampered == 1 and follower.counts.ahead == 0
        assert texts(follower, 1, lie, sent[1]) == ["t1"]

    def test_the_end_may_be_an_error(self, form: Format) -> None:
        failure = StreamFailure("no more", "timeout", "…")
        follower = StreamVerifier(0, KEYS)
        follower.take(1, messages([failure], form)[0])
        assert follower.ending == failure

    def test_messages_are_not_taken_in_the_other_format(self, form: Format) -> None:
        other: Format = "chunk" if form == "block" else "block"
        follower = StreamVerifier(0, KEYS)
        assert texts(follower, 1, *messages(tokens(1), form)) == ["t0"]
        assert texts(follower, 1, *messages(tokens(2), other)) == []
        assert follower.counts.foreign == 2
        pinned = StreamVerifier(0, KEYS, format=other)
        assert texts(pinned, 1, *messages(tokens(1), form)) == []


class TestForms:
    @pytest.mark.promise(
        "Token streams: publisher and reader", "no check is skipped: MACs of other sizes, disguised formats"
    )
    def test_a_chunk_in_the_disguise_of_a_block_neither_passes_nor_ends_the_stream(self) -> None:
        """A MAC of 16 bytes can be cut from one of 32."""
        (chunk,) = messages(tokens(1), "chunk")
        data = encode.payload(Token("t0"))
        mac = ChainedStreamHmac(KEYS.mac_key, KEYS.topic).compute_next(data)
        follower = StreamVerifier(0, KEYS)
        assert texts(follower, 1, (TOPIC, data, mac[:16])) == []
        assert follower.ending is None and follower.counts.tampered == 1
        assert texts(follower, 1, chunk) == ["t0"]

    def test_a_heartbeat_in_the_disguise_of_an_empty_block_does_not_settle_the_form(self) -> None:
        heartbeat, chunk = messages([Heartbeat(), Token("t0")], "chunk")
        data = encode.payload(Heartbeat())
        mac = ChainedStreamHmac(KEYS.mac_key, KEYS.topic).compute_next(data)
        follower = StreamVerifier(0, KEYS)
        assert texts(follower, 1, (TOPIC, data, mac[:16])) == []
        assert texts(follower, 1, heartbeat, chunk) == ["t0"]

    @pytest.mark.promise(
        "Token streams: publisher and reader", "no check is skipped: MACs of other sizes, disguised formats"
    )
    @pytest.mark.parametrize("size", [0, 1, 15, 17, 32])
    def test_a_mac_of_another_size_never_skips_the_check(self, size: int) -> None:
        frame = encode.block(TOPIC[:16], [Token("x")])
        mac = (BlockChain(KEYS.mac_key, KEYS.topic).compute_next(frame) * 2)[:size]
        follower = StreamVerifier(0, KEYS)
        assert texts(follower, 1, (TOPIC, frame, mac)) == []

    def test_messages_of_others_are_none_of_ours(self) -> None:
        follower = StreamVerifier(0, KEYS)
        for parts in [
            (),
            (b"",),
            (b"x" * 64,),
            (TOPIC,),
            (TOPIC, b""),
            (TOPIC, b"", b"", b""),
            (b"y", b"\x03"),
        ]:
            assert follower.take(1, parts) == []
        assert follower.counts.foreign + follower.counts.tampered == 7

    def test_what_the_publisher_made_and_we_cannot_read_ends_the_stream(self) -> None:
        good = encode.block(TOPIC[:16], [Token("x")])
        chain = BlockChain(KEYS.mac_key, KEYS.topic)
        follower = StreamVerifier(0, KEYS)
        assert texts(follower, 1, (TOPIC, good, chain.compute_next(good))) == ["x"]
        follower.take(1, (TOPIC, b"nonsense", chain.compute_next(b"nonsense")))
        assert isinstance(follower.ending, Unreadable)

    def test_payloads_after_the_end_are_not_given_out(self) -> None:
        frame = encode.block(TOPIC[:16], [Token("a"), Complete(), Token("b")])
        follower = StreamVerifier(0, KEYS)
        mac = BlockChain(KEYS.mac_key, KEYS.topic).compute_next(frame)
        assert texts(follower, 1, (TOPIC, frame, mac)) == ["a"]
        assert follower.ending == Complete()


class TestPatience:
    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a reader retries with increasing pauses and gives up at a limit",
    )
    def test_asking_gets_rarer_and_ends_in_a_gap(self) -> None:
        sent = messages(tokens(3), "block")
        follower = StreamVerifier(0, KEYS, jitter=0.5)
        texts(follower, 0, sent[0], sent[2])
        times = [at for at, _ in asks(follower, 60 * SECOND)]
        waits = [later - earlier for earlier, later in pairwise(times)]
        assert waits == [ms * MS for ms in (50, 100, 200, 400, 800, 1600, 3200)]
        assert follower.ending == Gap(is_gone=False)

    def test_a_gap_that_the_relay_confirms_says_so(self) -> None:
        sent = messages(tokens(3), "block")
        follower = StreamVerifier(0, KEYS)
        texts(follower, 0, sent[0], sent[2])
        assert follower.mark is not None
        follower.take(0, (TOPIC, b"\x03" + follower.mark))
        asks(follower, 60 * SECOND)
        assert follower.ending == Gap(is_gone=True)

    def test_an_answer_about_another_mac_is_not_for_us(self) -> None:
        sent = messages(tokens(3), "block")
        follower = StreamVerifier(0, KEYS)
        texts(follower, 0, sent[0], sent[2])
        follower.take(0, (TOPIC, b"\x03" + bytes(16)))
        asks(follower, 60 * SECOND)
        assert follower.ending == Gap(is_gone=False)

    def test_a_relay_that_lost_its_memory_is_waited_for(self) -> None:
        """The publisher sends its latest messages again; until then the relay does not know our place."""
        sent = messages(tokens(3), "block")
        follower = StreamVerifier(0, KEYS)
        texts(follower, 0, sent[0], sent[2])
        assert follower.mark is not None
        follower.take(0, (TOPIC, b"\x03" + follower.mark))
        asks(follower, 2 * SECOND)
        assert texts(follower, 2 * SECOND, *sent) == ["t1", "t2"]

    @pytest.mark.promise(
        "Token streams: publisher and reader", "an attacker that can only add messages cannot end a stream"
    )
    def test_one_added_message_ends_no_stream_that_shows_signs_of_life(self) -> None:
        """An attacker that can only add must suppress heartbeats for longer than their interval."""
        sent = messages([Token("t0"), *[Heartbeat()] * 20, Complete()], "block")
        follower = StreamVerifier(0, KEYS)
        texts(follower, 0, sent[0])
        for number, parts in enumerate(sent[1:], 1):
            lie = encode.block(bytes([number]) * 16, [Token("lie")])
            follower.take((number - 1) * 5 * SECOND, (TOPIC, lie, bytes(16)))
            asks(follower, number * 5 * SECOND - 1)
            follower.take(number * 5 * SECOND, parts)
        assert follower.ending == Complete()

    def test_too_many_tampered_messages_are_the_end(self) -> None:
        follower = StreamVerifier(0, KEYS, RetryOptions(tampered_max=3))
        (good,) = messages(tokens(1), "block")
        lie = (TOPIC, encode.block(TOPIC[:16], [Token("lie")]), bytes(16))
        for _ in range(2):
            follower.take(0, lie)
        assert texts(follower, 0, good) == ["t0"]
        for _ in range(2):
            follower.take(0, lie)
        assert follower.ending is None
        follower.take(0, lie)
        assert follower.ending == Tampered(3)

    @pytest.mark.promise(
        "Token streams: publisher and reader",
        "a reader retries with increasing pauses and gives up at a limit",
    )
    def test_silence_is_probed_and_then_a_cut(self) -> None:
        """The last messages may be lost without a later one to show it."""
        sent = messages(tokens(1), "block")
        follower = StreamVerifier(0, KEYS, jitter=0.5)
        texts(follower, 0, *sent)
        probes = asks(follower, 60 * SECOND)
        assert [at // SECOND for at, _ in probes][:4] == [2, 4, 8, 13]
        assert {ask.mark for _, ask in probes} == {follower.mark}
        assert follower.ending == Truncated("idle")

    def test_a_stream_ends_with_its_time(self) -> None:
        follower = StreamVerifier(0, KEYS, RetryOptions(idle_ms=None), ends_us=7 * SECOND)
        asks(follower, 60 * SECOND)
        assert follower.ending == Truncated("expired")

    def test_without_a_bound_on_silence_it_goes_on_asking(self) -> None:
        follower = StreamVerifier(0, KEYS, RetryOptions(idle_ms=None))
        assert len(asks(follower, 60 * SECOND)) > 10
        assert follower.ending is None

    def test_a_link_that_is_back_is_used_at_once(self) -> None:
        sent = messages(tokens(1), "block")
        follower = StreamVerifier(0, KEYS)
        texts(follower, 0, *sent)
        follower.reconnected(SECOND)
        assert follower.step(SECOND) == ResumeRequest(follower.mark)
        follower.reconnected(SECOND + 1)
        assert follower.step(SECOND + 1) is None, "a link that flaps must not flood the relay"

    def test_silence_that_is_ours_does_not_count(self) -> None:
        follower = StreamVerifier(0, KEYS)
        follower.rested(29 * SECOND)
        assert follower.step(31 * SECOND) == ResumeRequest(None)
        assert follower.ending is None

    @pytest.mark.promise("Token streams: publisher and reader", "buffers at either end are bounded")
    def test_what_is_remembered_is_bounded(self) -> None:
        sent = messages(tokens(20), "block")
        follower = StreamVerifier(0, KEYS, RetryOptions(remembered_max=5))
        texts(follower, 0, *sent)
        assert len(follower._seen) == 5
