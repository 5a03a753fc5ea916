"""The progress of a query: the offset value in Spark's checkpoint, and the options that say where to begin.

    {"v": 1, "journals": {"<journal id>": {"<shard>": <next offset>}}}

A journal that lost rows in a recovery has an epoch above 0, and the value then also has `"epochs"` of the same shape: by it a query
notices that rows it has read were replaced. The value has no other fields.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from penstock.spark.errors import SourceError

VERSION = 1
SHARD = "0"
"""The one shard of a journal on one machine."""
EARLIEST, LATEST = -2, -1
"""Special offsets in options, as in Spark's Kafka source."""


class Point(msgspec.Struct, frozen=True):
    """A position in one journal: rows before `offset` have been read, the last of them in `epoch`."""

    offset: int
    epoch: int = 0


Points = dict[str, Point]
"""A position in each of several journals, by their ids."""


def encode(points: Points) -> dict[str, Any]:
    """The value for Spark's checkpoint."""
    value: dict[str, Any] = {
        "v": VERSION,
        "journals": {journal: {SHARD: points[journal].offset} for journal in sorted(points)},
    }
    epochs = {journal: {SHARD: points[journal].epoch} for journal in sorted(points) if points[journal].epoch}
    return value | {"epochs": epochs} if epochs else value


def decode(value: Any, source: str = "the checkpoint", least: int = 0) -> Points:
    """Parse a value; `source` names its origin in errors."""
    try:
        parsed = msgspec.convert(value, _Value)
    except msgspec.ValidationError as error:
        example = '{"v": 1, "journals": {"<journal id>": {"0": 42}}}'
        raise SourceError(f"{source} has invalid offsets: {error}", f"write them as {example}") from None
    if parsed.v != VERSION:
        raise SourceError(
            f"{source} has offsets of version {parsed.v}, but this Penstock reads version {VERSION}",
            "a newer one wrote them: install it, or start with a new checkpoint",
        )
    points = {}
    for journal, shards in parsed.journals.items():
        if list(shards) != [SHARD]:
            raise SourceError(f"{source} names shards {', '.join(shards)} of a journal that has only shard {SHARD}")
        if shards[SHARD] < least:
            raise SourceError(f"{source} has offset {shards[SHARD]}", f"the minimum is {least}")
        points[journal] = Point(shards[SHARD], parsed.epochs.get(journal, {}).get(SHARD, 0))
    return points


def parse(option: str, text: str) -> Points | int:
    """The value of `startingOffsets` or `endingOffsets`: EARLIEST, LATEST, or a point for each journal."""
    word = text.strip().lower()
    if word == "latest":
        return LATEST
    if word == "earliest" and option != "endingOffsets":
        return EARLIEST
    try:
        value = json.loads(text)
    except ValueError:
        words = "`latest`" if option == "endingOffsets" else "`earliest`, `latest`"
        raise SourceError(f"`{option}` is `{text[:80]}`", f"write {words} or offsets as JSON") from None
    return decode(value, f"`{option}`", EARLIEST)


class _Value(msgspec.Struct):
    v: int
    journals: dict[str, dict[str, int]]
    epochs: dict[str, dict[str, int]] = {}
