"""Selections of rows by door, channel, event and so on, with or without the pipeline's own.

Filters batches, and decides from the statistics of a row group whether any row can pass, or all do. An empty condition selects everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

PIPELINE = "pipeline/"
"""The sender prefix of what a pipeline sent."""


class ColumnRange(msgspec.Struct, frozen=True):
    """The least and the greatest value of a column in some part of a file."""

    least: str
    greatest: str
    has_nulls: bool


BOUND = ("door", "event", "channel", "kind", "sender", "id", "corr")
"""Columns that a selection may bind to values."""
Ranges = Callable[[str], ColumnRange | None]
"""The range of a column by its name, or None where nothing is known of it."""


class Selection(msgspec.Struct, frozen=True):
    """Bounds on rows; a row passes that meets all of them."""

    doors: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    """Names; `*` in one is any run of characters."""
    events: tuple[str, ...] = ()
    with_pipeline: bool = True
    """Whether rows count that a pipeline sent."""
    kinds: tuple[str, ...] = ()
    senders: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    corrs: tuple[str, ...] = ()

    @classmethod
    def of(cls, **given: str | None) -> Selection:
        """At most one value a column, by the column's name, as people ask."""
        return msgspec.structs.replace(cls(), **{f"{name}s": (value,) for name, value in given.items() if value})

    @property
    def bounds(self) -> list[tuple[str, tuple[str, ...]]]:
        """The columns that are bound to values, with these."""
        return [(name, values) for name in BOUND if (values := getattr(self, f"{name}s"))]

    @property
    def columns(self) -> list[str]:
        """The columns that decide."""
        names = [name for name, _ in self.bounds]
        return names if self.with_pipeline or "sender" in names else [*names, "sender"]

    def passed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that pass; it has at least the columns that decide."""
        masks = [_matches(batch.column(name), values) for name, values in self.bounds]
        if not self.with_pipeline:
            masks.append(pc.invert(pc.fill_null(pc.starts_with(batch.column("sender"), PIPELINE), False)))
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        if not masks or pc.all(masks[0], min_count=0).as_py():
            return batch
        return batch.filter(masks[0])

    def may_hold(self, ranges: Ranges) -> bool:
        """Whether a part of a file with these ranges can have a row that passes."""
        for name, values in self.bounds:
            found = ranges(name)
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
        for name, values in self.bounds:
            found = ranges(name)
            if found is None or found.has_nulls or found.least != found.greatest or found.least not in values:
                return False
        sender = ranges("sender") if not self.with_pipeline else None
        return self.with_pipeline or (sender is not None and not _reaches(sender, f"{PIPELINE}*"))


def _matches(column: Any, values: Sequence[str]) -> Any:
    names = [value for value in values if "*" not in value]
    mask = pc.is_in(column, pa.array(names, pa.string())) if names else None
    patterns = [value for value in values if "*" in value]
    if patterns:
        text = "|".join(".*".join(re.escape(part) for part in value.split("*")) for value in patterns)
        matched = pc.fill_null(pc.match_substring_regex(column, f"(?s)^(?:{text})$"), False)
        mask = matched if mask is None else pc.or_(mask, matched)
    return mask


def _reaches(found: ColumnRange, value: str) -> bool:
    """Whether a value, or one that a pattern allows, can lie in a range."""
    if "*" not in value:
        return found.least <= value <= found.greatest
    begin = value.partition("*")[0]
    return found.least[: len(begin)] <= begin <= found.greatest[: len(begin)]
