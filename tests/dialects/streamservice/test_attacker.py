"""Token streams under attack, with many seeds, and planted faults that the checks must find."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

import pytest

from penstock.dialects.streamservice import verify_stream
from penstock.dialects.streamservice.chain import ChainedStreamHmac
from penstock.dialects.streamservice.compose_stream import Composer
from penstock.dialects.streamservice.messages import Complete, Payload
from penstock.dialects.streamservice.verify_stream import ResumeRequest, StreamVerifier
from tests.dialects.streamservice.attacker import Broken, attack

SEEDS = 150
MILD_SEEDS = 60
MUTANT_SEEDS = 60
"""A fault that needs more attacks than this to show is not caught."""


@pytest.mark.promise(
    "Token streams: publisher and reader",
    "under attack a reader gets a prefix of what was sent, or an error; planted faults are found",
)
@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_a_reader_gets_a_beginning_of_what_was_sent_or_an_error(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            attack(seed)
        except Exception as error:
            error.add_note(f"attack({seed})")
            raise


@pytest.mark.promise(
    "Token streams: publisher and reader",
    "under attack a reader gets a prefix of what was sent, or an error; planted faults are found",
)
def test_a_stream_that_can_get_through_does() -> None:
    """Everything that only passes the reader by, or comes twice, or is not the publisher's, is made good."""
    for seed in range(MILD_SEEDS):
        try:
            attack(seed, is_mild=True)
        except Exception as error:
            error.add_note(f"attack({seed}, is_mild=True)")
            raise


@pytest.mark.promise(
    "Token streams: publisher and reader",
    "under attack a reader gets a prefix of what was sent, or an error; planted faults are found",
)
@pytest.mark.parametrize("seed", range(5))
def test_equal_seeds_give_equal_attacks(seed: int) -> None:
    assert attack(seed) == attack(seed)


Plant = Callable[[pytest.MonkeyPatch], None]


def any_mac_will_do(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hmac, "compare_digest", lambda _one, _other: True)


def only_the_first_bytes_of_a_mac_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hmac, "compare_digest", lambda one, other: one[:1] == other[:1] or not other)


def the_chain_does_not_cover_what_came_before(patch: pytest.MonkeyPatch) -> None:
    def next_mac(chain: Any, data: bytes) -> bytes:
        return bytes(chain._mac(chain.topic, data)[: chain.SIZE])

    patch.setattr(ChainedStreamHmac, "next_mac", next_mac)


def silence_is_a_good_end(patch: pytest.MonkeyPatch) -> None:
    step = StreamVerifier.step

    def quiet(follower: StreamVerifier, now_us: int) -> ResumeRequest | None:
        ask = step(follower, now_us)
        if follower.ending is not None and not isinstance(follower.ending, Complete | verify_stream.StreamFailure):
            follower.ending = Complete()
        return ask

    patch.setattr(StreamVerifier, "step", quiet)


def what_is_not_next_is_given_out_all_the_same(patch: pytest.MonkeyPatch) -> None:
    def doubt(follower: Any, now_us: int, prev: bytes | None, chain: ChainedStreamHmac) -> None:
        if prev is not None and len(prev) == chain.SIZE and prev not in follower._seen:
            chain.advance(prev)  # start afresh behind the gap

    patch.setattr(StreamVerifier, "_doubt", doubt)


def nothing_is_asked_for_again(patch: pytest.MonkeyPatch) -> None:
    step = StreamVerifier.step

    def mute(follower: StreamVerifier, now_us: int) -> ResumeRequest | None:
        step(follower, now_us)
        return None

    patch.setattr(StreamVerifier, "step", mute)


def the_end_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    accept = StreamVerifier._accept

    def deaf(follower: StreamVerifier, *args: Any) -> list[Payload]:
        payloads = accept(follower, *args)
        follower.ending = None
        return payloads

    patch.setattr(StreamVerifier, "_accept", deaf)


def what_could_not_be_sent_is_skipped(patch: pytest.MonkeyPatch) -> None:
    def sent(composer: Any) -> None:
        composer._unsent.popleft()
        if len(composer._unsent) > 2:
            composer._unsent.popleft()

    patch.setattr(Composer, "sent", sent)


def one_tampered_message_is_the_end(patch: pytest.MonkeyPatch) -> None:
    def doubt(follower: Any, *_: Any) -> None:
        follower.ending = verify_stream.Tampered(1)

    patch.setattr(StreamVerifier, "_doubt", doubt)


MUTANTS: list[tuple[Plant, bool]] = [
    (any_mac_will_do, False),
    (only_the_first_bytes_of_a_mac_count, False),
    (the_chain_does_not_cover_what_came_before, False),
    (silence_is_a_good_end, False),
    (what_is_not_next_is_given_out_all_the_same, False),
    (nothing_is_asked_for_again, True),
    (the_end_is_not_noticed, True),
    (what_could_not_be_sent_is_skipped, True),
    (one_tampered_message_is_the_end, True),
]


@pytest.mark.promise(
    "Token streams: publisher and reader",
    "under attack a reader gets a prefix of what was sent, or an error; planted faults are found",
)
@pytest.mark.parametrize(("plant", "is_mild"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_fault_is_found(plant: Plant, is_mild: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(is_found(seed, is_mild) for seed in range(MUTANT_SEEDS))


def is_found(seed: int, is_mild: bool) -> bool:
    try:
        attack(seed, is_mild=is_mild)
    except Broken:
        return True
    return False
