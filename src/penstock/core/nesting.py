"""How deep JSON may be nested: the parsers of our readers have limits too."""

from __future__ import annotations

import re

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
