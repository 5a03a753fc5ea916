"""How far a query has read: the offset value that Spark keeps in its checkpoint, and the options that say where to begin.

    {"v": 1, "journals": {"<journal id>": {"<shard>": <next offset>}}}

A journal that recovered from a crash with loss has an epoch above 0, and the value then also has `"epochs"` of the same
shape: so a query notices that rows it has read are not the rows that are there now. Nothing else is ever in it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from penstock.spark.source.errors import SourceError

VERSION = 1
SHARD = "0"
"""The one shard of a journal on one machine."""
EARLIEST, LATEST = -2, -1
"""What may stand for an offset in an option, as in Spark's Kafka source."""


class Point(msgspec.Struct, frozen=True):
    """A place in one journal: everything before `offset` has been read, the last of it in `epoch`."""

    offset: int
    epoch: int = 0


Points = dict[str, Point]
"""A place in each of several journals, by their ids."""


def encode(points: Points) -> dict[str, Any]:
    """The value for Spark's checkpoint."""
    value: dict[str, Any] = {
        "v": VERSION,
        "journals": {journal: {SHARD: points[journal].offset} for journal in sorted(points)},
    }
    epochs = {journal: {SHARD: points[journal].epoch} for journal in sorted(points) if points[journal].epoch}
    return value | {"epochs": epochs} if epochs else value


def decode(value: Any, source: str = "the checkpoint", least: int = 0) -> Points:
    """Points from a value; `source` is where it stands, for the error."""
    try:
        parsed = msgspec.convert(value, _Value)
    except msgspec.ValidationError as error:
        example = '{"v": 1, "journals": {"<journal id>": {"0": 42}}}'
        raise SourceError(f"{source} holds no offsets: {error}; they look like {example}") from None
    if parsed.v != VERSION:
        raise SourceError(
            f"{source} holds offsets of version {parsed.v}, and only {VERSION} is known here; a newer Penstock wrote"
            " them: install that, or start with a new checkpoint"
        )
    points = {}
    for journal, shards in parsed.journals.items():
        if list(shards) != [SHARD]:
            raise SourceError(
                f"{source} names shards {', '.join(shards)} of a journal that has only shard {SHARD}"
            )
        if shards[SHARD] < least:
            raise SourceError(f"{source} has offset {shards[SHARD]}; the least is {least}")
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
        raise SourceError(f"`{option}` is `{text[:80]}`; write {words} or offsets as JSON") from None
    return decode(value, f"`{option}`", EARLIEST)


class _Value(msgspec.Struct):
    v: int
    journals: dict[str, dict[str, int]]
    epochs: dict[str, dict[str, int]] = {}
