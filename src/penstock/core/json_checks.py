"""Bounds on JSON that a peer wrote: how deep it is nested, and what its numbers cost to read.

The decoder takes about a thousand times longer for `1e300` than for `1.5`, so a message full of such numbers could stall the loop.
`decode` reads every number in about the same time and rejects those that no program can hold with a `ValidationError`.
"""
# size: all dialects and the pipeline share these checks, and nothing else.

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from penstock.core.errors import Refusal

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.S)
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def depth_problem(data: bytes, levels: int) -> Refusal | None:
    """Whether well-formed JSON is nested deeper than `levels`. Few brackets need no closer look."""
    if data.count(b"{") + data.count(b"[") <= levels:
        return None
    brackets = _STRING.sub(b"", data).translate(_TO_SQUARE, _NOT_BRACKETS)
    for _ in range(levels):  # each pass removes the innermost level
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return None
    return Refusal("InvalidJSON", f"nested deeper than {levels} levels")


def finite(text: str) -> float:
    """The number that a text with a point or an exponent means."""
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is out of range")
    return value


_decoder = msgspec.json.Decoder(float_hook=finite)


def decode(data: bytes | msgspec.Raw) -> Any:
    """The value that JSON of a peer means."""
    return _decoder.decode(data)
