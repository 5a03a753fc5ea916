"""Bounds on what JSON of a peer costs, and that the cheap checks judge as a full decoder does."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import json_checks
from penstock.core.errors import Refusal
from penstock.core.json_checks import (
    CONTAINERS_MAX,
    DIGITS_MAX,
    EXTREME_MAX,
    SMALL,
    VALUES_MAX,
    cost_problem,
    depth_problem,
)
from penstock.core.steps import Steps
from penstock.dialects.courier.wire.envelopes import json_problem
from tests.hostile_json import cpu_s, plain, shapes

SIZE = 200_000
RATIO = 12
"""What a hostile byte may cost, in bytes of plain JSON. Before the checks of this module it was 100 for numbers."""

_exact = msgspec.json.Decoder()
_digits = st.text("0123456789", min_size=1, max_size=330).map(lambda text: text.lstrip("0") or "0")
_exponents = st.tuples(
    st.sampled_from("eE"),
    st.sampled_from(["", "+", "-"]),
    st.sampled_from(["", "0", "000"]),
    st.sampled_from([0, 22, 99, 100, 200, 290, 299, 300, 301, 307, 308, 309, 400, 999, 1000, 99999]).map(str),
).map("".join)
_numbers = st.tuples(
    st.sampled_from(["", "-"]), _digits, st.one_of(st.just(""), st.just(".5"), st.just("." + "7" * 250)), _exponents
).map("".join)


def _accepts(judge: Callable[[bytes], object], data: bytes) -> bool:
    try:
        return not isinstance(judge(data), Refusal)
    except msgspec.ValidationError:
        return False


@given(st.lists(_numbers, min_size=1, max_size=4), st.sampled_from(["", "1e400 null", "[1e-999", "x" * SMALL]))
def test_a_number_is_judged_as_the_decoder_judges_it(numbers: list[str], text: str) -> None:
    data = b'{"a":[%b],"b":"%b"}' % (",".join(numbers).encode(), text.encode())
    expected = _accepts(_exact.decode, data)
    assert _accepts(json_problem, data) == expected
    assert _accepts(lambda data: Steps(json_checks.range_steps(data)).all(), data) == expected
    assert _accepts(json_checks.decode, data) == expected


def test_a_large_integer_does_not_hide_what_is_wrong() -> None:
    huge = b"1" * 30
    assert json_problem(b'{"a":%b,"b":"Infinity"}' % huge) is None
    for bad in (b'{"a":%b,"a":1}' % huge, b'{"a":%b,"b":1e999}' % huge):
        assert json_problem(bad) is not None


def test_a_payload_that_the_server_reads_has_not_too_many_values() -> None:
    json_checks.decode(b'["%b"]' % (b"," * 2 * VALUES_MAX))
    with pytest.raises(msgspec.ValidationError, match="more than 100000 values"):
        json_checks.decode(b"[1%b]" % (b",1" * (VALUES_MAX + 1)))


def test_strings_are_left_out_whatever_they_escape() -> None:
    value = ['"', "\\", '\\"', "[{:", '"\\', "a:b", '\\\\"']
    assert json_checks.outside_strings(msgspec.json.encode({"k": value})).replace(b" ", b"") == b"{:[,,,,,,]}"
    assert depth_problem(msgspec.json.encode([["[" * 200, 1], "]"]), 2) is None
    assert depth_problem(b"[[[1]]]" + b" " * 5, 2) is not None


@pytest.mark.parametrize("window", [1, 2, 3, 7, 100])
def test_strings_that_are_left_out_in_steps_leave_the_same(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_checks, "WINDOW", window)
    data = msgspec.json.encode({"k": ['"', "\\", '\\"', "1234", '"\\', 1234567, -1.5e100], "": "", "z": [[], {}, None]})
    found = Steps(json_checks._outside_strings_steps(data)).all()
    assert found.split() == json_checks.outside_strings(data).split(), "tokens are neither cut nor joined"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"[" + b",".join([b"[]"] * CONTAINERS_MAX) + b"]", "TooLarge"),
        (b"[" + b"1" * (DIGITS_MAX + 1) + b"]", "InvalidJSON"),
        (b'["' + b"[" * (CONTAINERS_MAX + 1) + b'"]', None),
        (b'["' + b"1" * (DIGITS_MAX + 1) + b'"]', None),
        (b"[" + b"1" * DIGITS_MAX + b"]", None),
    ],
)
def test_what_costs_too_much_is_refused_and_what_only_looks_so_is_not(data: bytes, code: str | None) -> None:
    problem = cost_problem(data)
    assert (None if problem is None else problem.code) == code
    assert problem is None or problem.hint
    assert Steps(json_checks.cost_steps(data)).all() == problem


def test_numbers_with_large_exponents_are_counted() -> None:
    largest = b"1.7976931348623157e308"
    assert cost_problem(b"[%b]" % b",".join([largest] * EXTREME_MAX)) is None
    problem = cost_problem(b"[%b]" % b",".join([largest] * (EXTREME_MAX + 1)))
    assert problem is not None
    assert cost_problem(b'["%b"]' % b'","'.join([largest] * (EXTREME_MAX + 1))) is None
    assert "exponent of 100 or more" in problem.message


@pytest.mark.promise("Benchmarks and robustness", "no shape of JSON costs many times what plain JSON of its size costs")
@pytest.mark.parametrize("name", shapes(100))
def test_no_shape_costs_much_more_than_plain_json(name: str) -> None:
    def check(data: bytes) -> object:
        return cost_problem(data) or json_problem(data) or depth_problem(data, 64)

    usual, hostile = plain(SIZE), b'{"a":{},"b":%b}' % shapes(SIZE)[name]
    bound = RATIO * cpu_s(lambda: check(usual))
    assert cpu_s(lambda: check(hostile)) < bound


class Reading(msgspec.Struct):
    celsius: float
    at: str | None = None


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "payload"),
        ({"a": [1, {"b": float("inf")}]}, "payload.a[1].b"),
        ([(1.0, float("-inf"))], "payload[0][1]"),
        (Reading(float("nan")), "payload.celsius"),
    ],
)
def test_numbers_that_json_cannot_express_are_found(value: object, path: str) -> None:
    assert b"null" in msgspec.json.encode(value), "the encoder hides them"
    problem = json_checks.nonfinite_problem(value, "payload")
    assert problem is not None
    assert (problem.code, problem.ref) == ("InvalidJSON", path)


@pytest.mark.parametrize("value", [None, {"a": None}, [1.5, "nan"], Reading(1.0), "null", {"a": b"\x00"}])
def test_nothing_else_is_taken_for_one(value: object) -> None:
    assert json_checks.nonfinite_problem(value) is None
