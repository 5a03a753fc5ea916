"""Numbers in JSON that a peer wrote: read in about the same time whatever they are, and only those that a program can hold.

The decoder below takes some thousand times longer for `1e300` than for `1.5`, so a peer could hold everybody up with a message full of
those. What is out of range is a `ValidationError`, as everywhere else.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec


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
