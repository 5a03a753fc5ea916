"""The nonce cache: no nonce is accepted twice, whatever the clock does, and none is evicted early."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from penstock.dialects.streamservice.relay_memory import (
    AGE_MAX_MS,
    NONCES_MAX,
    SIGNER_NONCES_MAX,
    SKEW_MAX_MS,
    NonceCache,
)

AGE, SKEW = 10, 3
A, B = b"a" * 32, b"b" * 32


def held(subject: NonceCache, signer: bytes) -> int:
    """The used part of a signer's quota."""
    return len(subject._seen.get(signer, ()))


def cache(total_max: int = 1_000, signer_max: int = 1_000) -> NonceCache:
    return NonceCache(age_max_ms=AGE, skew_max_ms=SKEW, total_max=total_max, signer_max=signer_max)


def test_the_bounds_are_those_that_are_promised() -> None:
    assert NonceCache().retention_ms == AGE_MAX_MS + SKEW_MAX_MS == 330_000
    assert SIGNER_NONCES_MAX < NONCES_MAX


def test_a_nonce_is_kept_to_the_last_moment_and_no_longer() -> None:
    subject = cache()
    assert subject.take(A, b"n", 3, 0) == "fresh"
    assert subject.take(A, b"n", 3, AGE + SKEW) == "replayed"
    assert len(subject) == 1
    subject.forget(AGE + SKEW + 1)
    assert len(subject) == 0
    assert held(subject, A) == 0


def test_a_clock_that_is_set_back_brings_nothing_back() -> None:
    subject = cache()
    assert subject.take(A, b"n", 0, 0) == "fresh"
    assert subject.take(A, b"m", 20, 20) == "fresh"
    assert subject.take(A, b"n", 0, 1) == "stale"
    assert subject.take(A, b"o", 1, 1) == "fresh"


def test_a_signer_at_its_quota_leaves_room_for_others() -> None:
    subject = cache(total_max=4, signer_max=3)
    verdicts = [subject.take(A, bytes([n]), 0, 0) for n in range(5)]
    assert verdicts == ["fresh", "fresh", "fresh", "quota", "quota"]
    assert subject.take(B, b"n", 0, 0) == "fresh"
    assert subject.take(B, b"m", 0, 0) == "full"
    assert [subject.take(A, bytes([n]), 0, 0) for n in range(3)] == ["replayed"] * 3
    assert (len(subject), held(subject, A), held(subject, B)) == (4, 3, 1)


steps = st.tuples(st.sampled_from([A, B]), st.integers(0, 3), st.integers(-SKEW - 2, AGE + 2), st.integers(-15, 15))


@pytest.mark.promise("Token streams: bytes, keys and signatures", "nonces cannot be poisoned, flooded or evicted early")
@settings(max_examples=300)
@given(st.lists(steps, max_size=60))
def test_no_envelope_is_ever_taken_twice(walk: list[tuple[bytes, int, int, int]]) -> None:
    subject = cache(total_max=6, signer_max=4)
    taken: set[tuple[bytes, bytes, int]] = set()
    now = 100
    for signer, number, age, step in walk:
        now += step
        timestamp, nonce = now - age, bytes([number])
        if not -SKEW <= age <= AGE:
            continue
        if subject.take(signer, nonce, timestamp, now) == "fresh":
            assert (signer, nonce, timestamp) not in taken
            taken.add((signer, nonce, timestamp))
        # Whatever was taken before and is young by this clock comes back at once.
        for again in sorted(taken):
            if -SKEW <= now - again[2] <= AGE:
                assert subject.take(again[0], again[1], again[2], now) != "fresh"
        assert len(subject) <= 6
        assert max(held(subject, A), held(subject, B)) <= 4


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 5), st.integers(0, 4)), max_size=60))
def test_it_agrees_with_the_obvious_memory(walk: list[tuple[bytes, int, int]]) -> None:
    """While the clock goes forwards and there is room: fresh if and only if not taken within the retention."""
    subject = cache()
    memory: dict[tuple[bytes, bytes], int] = {}
    now = 100
    for signer, number, step in walk:
        now += step
        nonce = bytes([number])
        held = memory.get((signer, nonce))
        expected = "replayed" if held is not None and now - held <= AGE + SKEW else "fresh"
        assert subject.take(signer, nonce, now, now) == expected
        if expected == "fresh":
            memory[signer, nonce] = now
