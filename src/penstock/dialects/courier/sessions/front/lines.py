"""Where a line of Control v1 belongs: the members that place it, and the shard of a stream or of a lease.

The front decodes these members only; the cell decodes and checks the rest. A line that cannot be read here goes to any cell, which refuses it.
"""
# size: one decoder and two rules

from __future__ import annotations

from functools import lru_cache

import msgspec

from penstock.core.placement import SHARDS, shard_of, stream_key

BY_STREAM = frozenset((
    "enqueue", "send", "subscribe", "tap", "stats", "peek", "explain", "redrive", "purge", "drop", "pull",
))  # fmt: skip
"""Requests that their stream places."""
SETTLES = frozenset(("ack", "nack", "release", "term", "extend"))
"""Requests that the subscription or the lease places."""
MERGED = frozenset(("metrics", "where", "snapshot", "trigger"))
"""Requests that every cell answers."""


class LinePlace(msgspec.Struct, rename="camel"):
    """What the front reads of a line."""

    type: str
    to: str | None = None
    stream: str | None = None
    sub_id: str | None = None
    lease_id: str | None = None
    req_id: str | int | None = None
    op: str = "ls"


decode_place = msgspec.json.Decoder(LinePlace).decode


@lru_cache(maxsize=16_384)
def shard_of_stream(channel: str) -> int:
    """The shard of a channel."""
    return shard_of(stream_key(channel))


def shard_suffix(shard: int) -> str:
    """What the lease ids of a shard end with, and the labels that it makes up."""
    return f"-{shard:x}"


def shard_of_suffix(name: str) -> int | None:
    """The shard that made up a lease id or a label; None if it does not say so."""
    _, dash, shard = name.rpartition("-")
    try:
        number = int(shard, 16) if dash else SHARDS
    except ValueError:
        return None
    return number if 0 <= number < SHARDS else None
