"""Batches of payloads: small at a low rate, large at a high rate, and never held back for long."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.dialects.streamservice.block_sizes import PAYLOAD_COST, Batcher, Batching, batch_size, cost
from penstock.dialects.streamservice.messages import Complete, Heartbeat, StreamFailure, Token

WORD = Token("word")


@pytest.mark.parametrize(("rate", "size"), [(0.0, 1), (1.0, 1), (10.0, 9), (100.0, 16), (100_000.0, 16)])
def test_the_size_of_a_batch_grows_with_the_logarithm_of_the_rate(rate: float, size: int) -> None:
    assert batch_size(rate, Batching()) == size


def test_equal_rates_make_a_step() -> None:
    step = Batching(min_batch=2, max_batch=8, min_rate=50, max_rate=50)
    assert [batch_size(rate, step) for rate in (49, 50, 51)] == [2, 8, 8]


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_batch": 0},
        {"min_batch": 5, "max_batch": 4},
        {"max_block_bytes": 0},
        {"max_delay_ms": -1},
        {"alpha": 0.0},
        {"alpha": 1.1},
    ],
)
def test_bounds_that_make_no_batch_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"batch|alpha"):
        Batching(**wrong)


def test_a_first_payload_is_sent_at_once() -> None:
    batcher = Batcher()
    assert batcher.add(0, WORD)
    assert batcher.take() == [WORD]
    assert (batcher.take(), batcher.due_us) == ([], None)


def test_at_a_high_rate_a_batch_is_sent_when_it_is_full_or_due() -> None:
    batcher = Batcher(Batching(max_batch=4))
    for number in range(20):  # 1,000 payloads a second
        if batcher.add(number * 1_000, WORD):
            batcher.take()
    batcher.take()
    assert [batcher.add(20_000 + number * 1_000, WORD) for number in range(4)] == [False, False, False, True]
    assert batcher.due_us == 20_000 + 30_000


def test_a_batch_ends_at_its_bytes() -> None:
    batcher = Batcher(Batching(min_batch=16, max_block_bytes=2 * (4 + PAYLOAD_COST)))
    assert [batcher.add(0, WORD), batcher.add(1, WORD)] == [False, True]


def test_a_payload_costs_its_text_in_bytes() -> None:
    assert cost(Token("é")) == 2 + PAYLOAD_COST
    assert cost(StreamFailure("ab", details="c")) == 3 + PAYLOAD_COST
    assert cost(Complete()) == cost(Heartbeat()) == PAYLOAD_COST
