"""Checks of a large request in steps: the same verdicts as on a small one, and no step that holds the loop."""

from __future__ import annotations

import time

import pytest

from penstock.core.clock import Now
from penstock.core.errors import Refusal
from penstock.core.limits import Limits
from penstock.core.steps import STEP_BYTES, Steps
from penstock.dialects.courier.wire.request_checks import check_request
from tests.hostile_json import cpu_s, plain, shapes

LIMITS = Limits()
SIZE = 600_000
RATIO = 12


def envelope(payload: bytes = b"1") -> bytes:
    return b'{"id":"e","ts":"2026-11-16T00:00:00Z","type":"t","payload":%b}' % payload


def array(payload: bytes, size: int = 200_000) -> bytes:
    one = envelope(payload)
    return b'{"to":"q","envelopes":[%b]}' % b",".join([one] * (size // len(one)))


def verdict(data: bytes) -> tuple[Refusal | None, list[float]]:
    """What is wrong, and the CPU time of each step."""
    work = Steps(check_request(data, LIMITS))
    steps: list[float] = []
    is_done = False
    while not is_done:
        began = time.thread_time()
        is_done = work.step(Now(0, 0))
        steps.append(time.thread_time() - began)
    return work.result, steps


def test_an_array_takes_many_steps() -> None:
    problem, steps = verdict(array(plain(2_000), SIZE))
    assert problem is None
    assert len(steps) >= SIZE // STEP_BYTES


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (array(b'{"a":1,"a":2}'), "InvalidJSON"),
        (array(b"1e999"), "InvalidJSON"),
        (array(b'"\xff"'), "InvalidJSON"),
        (array(b"[" * 99 + b"]" * 99), "InvalidJSON"),
        (array(b"1") + b"}", "InvalidJSON"),
        (array(b"1")[:-1] + b',"to":"z"}', "InvalidJSON"),
        (array(b"1")[:-1] + b',"envelopes":[]}', "InvalidJSON"),
        (array(b"1", 600_000), "InvalidRequest"),
        (b'{"to":"q","envelopes":[%b]}' % b",".join([b"1"] * 500_000), "InvalidRequest"),
        (b'{"to":"q","envelope":%b}' % envelope(b'"%b"' % (b"x" * LIMITS.envelope_max)), "TooLarge"),
        (b'{"to":"%b","envelope":%b}' % (b"q" * LIMITS.envelope_max, envelope(b'"%b"' % (b"x" * 90_000))), "TooLarge"),
        (b'{"to":"q","type":"t","payload":{"a":"%b","a":1}}' % (b"x" * 200_000), "InvalidJSON"),
        (b'{"to":"q","type":"t","payload":"%b","type":"u"}' % (b"x" * 200_000), "InvalidJSON"),
        (b'{"to":"[%b]","envelopes":[%b]}' % (b"1," * 70_000 + b"1", b"1," * 70_000 + b"1"), "InvalidRequest"),
        (b"[%b]" % (b"1," * 70_000 + b"1"), None),
        (array(b'{"a":"\\u003a","b":[1.5]}', 200_000), None),
        (b'{"to":"q","type":"t","payload":"%b"}' % (b"x" * 200_000), None),
    ],
)
def test_a_large_request_is_judged_like_a_small_one(data: bytes, code: str | None) -> None:
    problem, _ = verdict(data)
    assert (None if problem is None else problem.code) == code


@pytest.mark.promise("Benchmarks and robustness", "no shape of JSON costs many times what plain JSON of its size costs")
@pytest.mark.parametrize("name", shapes(100))
def test_no_step_costs_much_more_than_a_step_of_plain_json(name: str) -> None:
    usual = min(max(verdict(array(plain(2_000), SIZE))[1]) for _ in range(3))
    hostile = array(shapes(2_000)[name], SIZE)
    assert min(max(verdict(hostile)[1]) for _ in range(3)) < RATIO * usual
    whole = b'{"to":"q","envelope":%b}' % envelope(plain(300_000))
    hostile = b'{"to":"q","envelope":%b}' % envelope(shapes(300_000)[name])
    assert cpu_s(lambda: verdict(hostile), 2) < RATIO * cpu_s(lambda: verdict(whole), 2)
