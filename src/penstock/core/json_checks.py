"""Bounds on JSON that a peer wrote: how deep it is nested, how much it holds, and what its numbers cost to read.

The decoder takes about a thousand times longer for `1.5e300` than for `1.5`, so a message full of such numbers could stall the loop.
Messages with such numbers are decoded by another function for numbers. No shape of JSON costs more than a few times what plain JSON
costs.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Generator, Iterable
from itertools import accumulate
from typing import Any

import msgspec

from penstock.core.errors import Refusal

try:
    from penstock_native import scan as _scan
except ImportError:  # the wheel is optional: the checks in Python then look at everything
    _scan = None

IS_NATIVE = _scan is not None
plain_depth: Callable[[bytes], int] = _scan or (lambda data: -1)
"""How deep plain JSON is nested, or -1: look closer. Plain JSON is well-formed, repeats no key and costs little to decode."""

CONTAINERS_MAX = 100_000
"""Arrays and objects in one message: each costs about 0.3 µs, however few bytes it has."""
VALUES_MAX = 100_000
"""Values of a payload that the server itself reads: about 20 ms. What it only passes on may have more."""
DIGITS_MAX = 1_000
"""Digits in a row of a number: the cost of a longer integer grows with the square of its length."""
EXTREME_MAX = 10_000
"""Numbers of one message with an exponent of 100 or more, or -100 or less: each costs ten times what another number costs."""
RANGE_STEP = 500
"""Numbers of which one step finds out whether they are in range."""
WINDOW = 256 * 1024
"""Bytes from which one step takes the strings: at most some milliseconds."""
SMALL = 1_000
"""Bytes up to which a message costs less to decode than to look for costly shapes."""
EVEN_MAX, POINT_BYTES = 64 * 1024, 64
"""A message of at most so many bytes, with more than so many for each decimal point, costs less to decode as if it had costly shapes than
to look for them."""

_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_TOKENS = bytes.maketrans(b"123456789E,:[]{}\t\r\n", b"000000000e" + b" " * 9)
"""Digits as zeros, and a space on both sides of each number."""
_RUNS = bytes(byte if byte in b"0" else 32 for byte in range(256))
"""Zeros, and all else as spaces."""
_HALF = b"0" * (DIGITS_MAX // 2)
_EXPONENTS = (b"0e000", b"0e+000", b"0e-000")
"""An exponent of three or more digits, its digits as zeros."""
_COSTLY = (*_EXPONENTS, b"0" * 32)
_BEYOND = (*_EXPONENTS[:2], b"0" * 200)
"""Each number out of range has one of these."""
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
    if len(data) <= SMALL or _cost_problem(data) is None:
        return None
    return _cost_problem(outside_strings(data))


def cost_steps(data: bytes) -> Generator[None, None, Refusal | None]:
    """`cost_problem` in steps."""
    if len(data) <= SMALL or (yield from _cost_steps(data)) is None:
        return None
    rest = yield from _outside_strings_steps(data)
    return (yield from _cost_steps(rest))


def _outside_strings_steps(data: bytes) -> Generator[None, None, bytes]:
    """`outside_strings` in steps: a message may have a string for every three bytes."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"")
        yield
        data = data.replace(b'\\"', b"")
        yield
    kept: list[bytes] = []
    is_inside = False
    for at in range(0, len(data), WINDOW):
        pieces = data[at : at + WINDOW].split(b'"')
        kept.append(b" ".join(pieces[is_inside::2]))
        is_inside ^= len(pieces) % 2 == 0
        if is_inside:
            kept.append(b" ")
        yield
    return b"".join(kept)


def _cost_problem(data: bytes) -> Refusal | None:
    return _containers_problem(data) or _digits_problem(digits := data.translate(_DIGITS)) or _extremes_problem(digits)


def _cost_steps(data: bytes) -> Generator[None, None, Refusal | None]:
    problem = _containers_problem(data)
    if problem is not None:
        return problem
    yield
    digits = data.translate(_DIGITS)
    yield
    problem = _digits_problem(digits)
    yield
    return problem or _extremes_problem(digits)


def _containers_problem(data: bytes) -> Refusal | None:
    if data.count(b"{") + data.count(b"[") <= CONTAINERS_MAX:
        return None
    hint = "send several messages, or encode the data as a string"
    return Refusal("TooLarge", f"the message has more than {CONTAINERS_MAX} arrays and objects", hint=hint)


def _digits_problem(digits: bytes) -> Refusal | None:
    if not _has_long(digits):
        return None
    hint = "write long numbers as strings"
    return Refusal("InvalidJSON", f"a number is too large: it has more than {DIGITS_MAX} digits", hint=hint)


def _extremes_problem(digits: bytes) -> Refusal | None:
    if digits.count(b"0e") <= EXTREME_MAX or sum(map(digits.count, _EXPONENTS)) <= EXTREME_MAX:
        return None
    hint = "send several messages, or write the numbers as strings"
    message = f"more than {EXTREME_MAX} numbers have an exponent of 100 or more, or -100 or less"
    return Refusal("InvalidJSON", message, hint=hint)


def _has_long(digits: bytes) -> bool:
    """Whether more than `DIGITS_MAX` zeros are in a row. They fill an aligned block of half as many; a search for all takes ten times longer."""
    half, runs = len(_HALF), b""
    for at in range(0, len(digits), half):
        if digits[at : at + half] == _HALF:
            runs = runs or digits.translate(_RUNS) + b" "
            if runs.index(b" ", at) - runs.rfind(b" ", 0, at) - 1 > DIGITS_MAX:
                return True
    return False


def range_steps(data: bytes) -> Generator[None, None, Refusal | None]:
    """Whether a number of well-formed JSON is out of range: many programs cannot read it. Most messages need one scan, and are one step."""
    digits = data.translate(_DIGITS)
    if not any(mark in digits for mark in _BEYOND):
        return None
    yield
    rest = (yield from _outside_strings_steps(data)) + b" "
    digits = rest.translate(_TOKENS)
    looked = 0
    for mark in _BEYOND:
        yield
        at = digits.find(mark)
        while at >= 0:
            looked += 1
            if looked % RANGE_STEP == 0:
                yield
            end = digits.index(b" ", at)
            number = rest[digits.rfind(b" ", 0, at) + 1 : end]
            if number.strip(b"-0123456789") and math.isinf(float(number)):
                return Refusal("InvalidJSON", "a number is out of range", hint="write large numbers as strings")
            at = digits.find(mark, end)
    return None


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is out of range")
    return value


_quick = msgspec.json.Decoder()
_even = msgspec.json.Decoder(float_hook=float)
_strict = msgspec.json.Decoder(float_hook=_finite)


def _is_costly(data: bytes) -> bool:
    digits = data.translate(_DIGITS)
    return any(mark in digits for mark in _COSTLY)


def decode_any(data: bytes) -> Any:
    """The value that JSON means, for checks: a number out of range may be infinite, which encodes as null."""
    is_plain = len(data) <= SMALL or (len(data) <= EVEN_MAX and data.count(b".") * POINT_BYTES < len(data))
    return (_even if is_plain or _is_costly(data) else _quick).decode(data)


def decode(data: bytes) -> Any:
    """The value of a payload that the server reads. Rejects a number out of range, and too many values, with a `ValidationError`."""
    if data.count(b",") > VALUES_MAX and outside_strings(data).count(b",") > VALUES_MAX:
        raise msgspec.ValidationError(f"It has more than {VALUES_MAX} values")
    return (_strict if _is_costly(data) else _quick).decode(data)


def nonfinite_problem(value: Any, name: str = "") -> Refusal | None:
    """Why a value of a program has no JSON: the encoder writes null for NaN and infinities, so only what has a null needs this look."""
    found = _nonfinite(msgspec.to_builtins(value), name)
    if found is None:
        return None
    hint = "send null for a missing number, or text"
    return Refusal("InvalidJSON", f"`{found[0]}` is {found[1]}, which JSON cannot express", ref=found[0], hint=hint)


def _nonfinite(value: Any, path: str) -> tuple[str, float] | None:
    """The first number that JSON cannot express, and where it is."""
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, value)
    steps: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        steps = ((f"{path}.{key}" if path else str(key), inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        steps = ((f"{path}[{index}]", inner) for index, inner in enumerate(value))
    return next((found for step, inner in steps if (found := _nonfinite(inner, step)) is not None), None)
