"""The partition key and the priority of an envelope, for streams that are `partitioned` or have `priority`; others never read them.

Both are read from the envelope's bytes, so a restart, a redrive and a staged batch find the same values as the enqueue. Cost: one decode.
"""
# size: two fields that only sorting streams read; the envelope parser must not pay for them

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.errors import Refusal
from penstock.core.queue.ready_order import LEVELS, NORMAL

KEY_MAX = 256
"""Characters of a partition key."""
KEY_FIELD = "partitionKey"
NAMED = {"high": 8, "normal": NORMAL, "low": 2}
"""The levels with a name."""


class _Sorted(msgspec.Struct, rename="camel"):
    """The fields that streams sort by."""

    partition_key: Any = None
    headers: dict[str, Any] | None = None


_sorted = msgspec.json.Decoder(_Sorted)


def partition_key(body: bytes) -> str | Refusal | None:
    """The envelope's `partitionKey`, else that of its headers; None when it has neither."""
    found = _sorted.decode(body)
    key, where = found.partition_key, KEY_FIELD
    if key is None and found.headers:
        key, where = found.headers.get(KEY_FIELD), f"headers.{KEY_FIELD}"
    if key is None:
        return None
    if isinstance(key, str) and 0 < len(key) <= KEY_MAX:
        return key
    message = f"`{where}` is a text of 1 to {KEY_MAX} characters"
    hint = "write a number as a text, or leave the key out of an envelope that has none"
    return Refusal("InvalidEnvelope", message, ref=where, hint=hint)


def priority(body: bytes) -> int:
    """The level of `headers.priority`: a name, or 0 to 9 as a number or a text. Any other value is normal."""
    headers = _sorted.decode(body).headers
    asked = headers.get("priority") if headers else None
    if isinstance(asked, str):
        if len(asked) == 1 and asked.isascii() and asked.isdigit():
            return int(asked)
        return NAMED.get(asked, NORMAL)
    if isinstance(asked, int) and not isinstance(asked, bool) and 0 <= asked < LEVELS:
        return asked
    return NORMAL
