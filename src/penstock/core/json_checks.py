"""Bounds on JSON that a peer wrote: how deep it is nested, how much it holds, and what its numbers cost to read.

The decoder takes about a thousand times longer for `1.5e300` than for `1.5`, so a message full of such numbers could stall the loop. The
functions here leave numbers undecoded where their values do not matter. No shape of JSON costs more than a few times what plain JSON costs.
"""

from __future__ import annotations

import math
from array import array
from itertools import accumulate
from typing import Any

import msgspec

from penstock.core.errors import Refusal

CONTAINERS_MAX = 100_000
"""Arrays and objects in one message: each costs about 0.3 µs, however few bytes it has."""
DIGITS_MAX = 1_000
"""Digits in a row of a number: the cost of a longer integer grows with the square of its length."""
EXTREME_MAX = 10_000
"""Numbers of one message with an exponent of 100 or more: each costs ten times what another number costs."""

_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_LONG = b"0" * (DIGITS_MAX + 1)
_RANGE = 200
"""A number with fewer characters is in range if its exponent has at most two digits."""
_MARKS = (b"e000", b"e+000")
"""An exponent of 100 or more, its digits as zeros."""
_TO_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""Each bracket as one level up or down."""
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def outside_strings(data: bytes) -> bytes:
    """Well-formed JSON without its strings: brackets, commas, colons, numbers and names."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b" ".join(data.split(b'"')[::2])


def depth_problem(data: bytes, levels: int) -> Refusal | None:
    """Whether well-formed JSON is nested deeper than `levels`. Few brackets need no closer look."""
    if data.count(b"{") + data.count(b"[") <= levels:
        return None
    steps = array("b", outside_strings(data).translate(_TO_STEPS, _NOT_BRACKETS))
    if max(accumulate(steps)) <= levels:
        return None
    return Refusal("InvalidJSON", f"nested deeper than {levels} levels")


def cost_problem(data: bytes) -> Refusal | None:
    """Why a message would cost too much to check. Costs about a memory scan; brackets and digits in strings get a closer look."""
    if len(data) <= DIGITS_MAX:
        return None
    is_long = _LONG in data.translate(_DIGITS)
    is_full = data.count(b"{") + data.count(b"[") > CONTAINERS_MAX
    if not (is_long or is_full):
        return None
    rest = outside_strings(data)
    if rest.count(b"{") + rest.count(b"[") > CONTAINERS_MAX:
        hint = "send several messages, or encode the data as a string"
        return Refusal("TooLarge", f"the message has more than {CONTAINERS_MAX} arrays and objects", hint=hint)
    if _LONG in rest.translate(_DIGITS):
        hint = "write long numbers as strings"
        return Refusal("InvalidJSON", f"a number is too large: it has more than {DIGITS_MAX} digits", hint=hint)
    return None


_floats: list[str] = []
"""The numbers with a point or an exponent that `_tree` has read. The decoder runs without a switch of threads."""
_tree = msgspec.json.Decoder(float_hook=_floats.append)


def without_floats(data: bytes) -> Any:
    """The value that JSON means, with null for each number that has a point or an exponent. Rejects such a number that is out of range."""
    try:
        value = _tree.decode(data)
        if _floats:
            _check_range(_floats.copy())
        return value
    finally:
        _floats.clear()


def _check_range(texts: list[str]) -> None:
    """Reject numbers that no program can hold. Only an extreme exponent or very many digits can make one."""
    joined = " ".join([*texts, ""])
    suspects = [text for text in texts if len(text) > _RANGE] if len(joined) > _RANGE else []
    if "e" in joined or "E" in joined:
        digits = joined.encode().translate(_DIGITS)
        if sum(map(digits.count, _MARKS)) > EXTREME_MAX:
            raise msgspec.ValidationError(f"More than {EXTREME_MAX} numbers have an exponent of 100 or more")
        for mark in _MARKS:
            at = -1
            while (at := digits.find(mark, at + 1)) >= 0:
                suspects.append(joined[joined.rfind(" ", 0, at) + 1 : joined.index(" ", at)])
    for text in suspects:
        if math.isinf(float(text)):
            raise msgspec.ValidationError("Number out of range")


def check_numbers(data: bytes) -> None:
    """Reject well-formed JSON with a number out of range. Most messages need no decoding for that."""
    digits = data.translate(_DIGITS)
    if any(mark in digits for mark in (*_MARKS, _LONG[:_RANGE])):
        without_floats(data)


def finite(text: str) -> float:
    """The number that a text with a point or an exponent means."""
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is out of range")
    return value


_quick = msgspec.json.Decoder()
_decoder = msgspec.json.Decoder(float_hook=finite)


def decode(data: bytes | msgspec.Raw) -> Any:
    """The value that JSON of a peer means. Rejects a number out of range with a `ValidationError`."""
    has_exponents = b"0e" in bytes(data).translate(_DIGITS)
    return (_decoder if has_exponents else _quick).decode(data)
