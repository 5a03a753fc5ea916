"""Which rows of a range are wanted: by door, channel, event, and whether the pipeline's own count.

Says for a batch which rows pass, and for a part of a file, from its statistics alone, whether any row could. What is empty
bounds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

PIPELINE = "pipeline/"
"""How the sender of everything begins that a pipeline sent back through a door."""


class Range(msgspec.Struct, frozen=True):
    """The least and the greatest value of a column in some part of a file."""

    least: str
    greatest: str
    has_nulls: bool


Ranges = Callable[[str], Range | None]
"""The range of a column by its name, or None where nothing is known of it."""


class Selection(msgspec.Struct, frozen=True):
    """Bounds on rows; a row passes that meets all of them."""

    doors: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    """Names; `*` in one is any run of characters."""
    events: tuple[str, ...] = ()
    with_pipeline: bool = True
    """Whether rows count that a pipeline sent."""

    @property
    def columns(self) -> list[str]:
        """The columns that decide."""
        named = {
            "door": self.doors,
            "event": self.events,
            "channel": self.channels,
            "sender": not self.with_pipeline,
        }
        return [name for name, bound in named.items() if bound]

    def passed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that pass; it has at least the columns that decide."""
        masks = []
        for name, values in (("door", self.doors), ("event", self.events), ("channel", self.channels)):
            if values:
                masks.append(_matches(batch.column(name), values))
        if not self.with_pipeline:
            masks.append(pc.invert(pc.fill_null(pc.starts_with(batch.column("sender"), PIPELINE), False)))
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        if not masks or pc.all(masks[0], min_count=0).as_py():
            return batch
        return batch.filter(masks[0])

    def may_hold(self, ranges: Ranges) -> bool:
        """Whether a part of a file with these ranges can have a row that passes."""
        for name, values in (("door", self.doors), ("event", self.events), ("channel", self.channels)):
            found = ranges(name) if values else None
            if found is not None and not any(_reaches(found, value) for value in values):
                return False
        sender = ranges("sender") if not self.with_pipeline else None
        return (
            sender is None
            or sender.has_nulls
            or not (sender.least.startswith(PIPELINE) and sender.greatest.startswith(PIPELINE))
        )

    def must_pass(self, ranges: Ranges) -> bool:
        """Whether every row of a part of a file with these ranges passes."""
        for name, values in (("door", self.doors), ("event", self.events), ("channel", self.channels)):
            found = ranges(name) if values else None
            if values and (found is None or found.has_nulls or not _is_one_of(found, values)):
                return False
        sender = ranges("sender") if not self.with_pipeline else None
        return self.with_pipeline or (sender is not None and not _reaches(sender, f"{PIPELINE}*"))


def _is_one_of(found: Range, values: Sequence[str]) -> bool:
    return found.least == found.greatest and found.least in values


def _matches(column: Any, values: Sequence[str]) -> Any:
    names = [value for value in values if "*" not in value]
    mask = pc.is_in(column, pa.array(names, pa.string())) if names else None
    patterns = [value for value in values if "*" in value]
    if patterns:
        text = "|".join(".*".join(re.escape(part) for part in value.split("*")) for value in patterns)
        matched = pc.fill_null(pc.match_substring_regex(column, f"(?s)^(?:{text})$"), False)
        mask = matched if mask is None else pc.or_(mask, matched)
    return mask


def _reaches(found: Range, value: str) -> bool:
    """Whether a value, or one that a pattern allows, can lie in a range."""
    if "*" not in value:
        return found.least <= value <= found.greatest
    begin = value.partition("*")[0]
    return found.least[: len(begin)] <= begin <= found.greatest[: len(begin)]
