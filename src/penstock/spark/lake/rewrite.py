"""Which files of a table are rewritten: those with rows that a merge replaces, and small ones that are compacted.

Files are immutable, so a file with a replaced row is rewritten without it. Only files whose bounds and Bloom filters allow a key are
read, first only their key columns, and files are small: the cost is that of the rows that are hit, not that of the table. The remaining rows of small files are written together with the new
rows, so the rows that change most (the current minutes) end up in a small file of their own, and the next merge rewrites only that.

Files of about the same size (a tier) are compacted when there are enough of them, so a row is rewritten at most once a tier, however
many commits there are. Rows, their order of arrival and the progress of applications do not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.journal.lake_location import LakePath
from penstock.spark.lake import data_files
from penstock.spark.lake.data_files import LiveFile, SchemaError

if TYPE_CHECKING:
    from penstock.spark.lake.key_filters import KeyFilters
    from penstock.spark.lake.table import LakeTable

CHANGE_TYPE = "_change_type"
INSERT, PREIMAGE, POSTIMAGE, DELETE = "insert", "update_preimage", "update_postimage", "delete"
"""What happened to a row of the change feed, and the column that says so, in the words of Delta."""
SMALL_ROWS = 4_000
"""The remaining rows of files up to this size are written together with the new rows."""


@dataclass
class MergePlan:
    """The files that one commit removes, and the rows that it adds."""

    removed: list[LiveFile] = field(default_factory=list)
    together: list[pa.Table] = field(default_factory=list)
    """Rows of one new file: the new rows and the remaining rows of small files."""
    apart: list[pa.Table] = field(default_factory=list)
    """The remaining rows of large files, one new file each."""
    changes: pa.Table | None = None
    """The rows that change, with `CHANGE_TYPE`; None if every row that is added or removed with its file changes."""


def one_per_key(rows: pa.Table, key: Sequence[str], newest: str | None, name: str) -> pa.Table:
    """Rows with each key once: the newest of each; without a column `newest`, a repeated key is refused."""
    keys = keys_of(rows, key)
    if len(set(keys)) == len(keys):
        return rows
    if newest is None:
        twice = Counter(keys).most_common(1)[0][0]
        shown = ", ".join(f"{column}={value}" for column, value in zip(key, twice, strict=True))
        raise SchemaError(f"two rows for table `{name}` have the same key ({shown})", "keep one of them")
    chosen: dict[tuple[Any, ...], int] = {}
    values = rows.column(newest).to_pylist()
    for index, one in enumerate(keys):
        if one not in chosen or _wins(values[index], values[chosen[one]]):
            chosen[one] = index
    return rows.take(pa.array(sorted(chosen.values()), pa.int64()))


def plan(
    root: LakePath,
    files: Sequence[LiveFile],
    rows: pa.Table,
    schema: pa.Schema,
    key: Sequence[str],
    newest: str | None,
    dropped: int = 0,
) -> MergePlan:
    """Plan the merge of rows, each key once, into those files of a table that may hold a key. The last `dropped` rows only remove."""
    change = MergePlan()
    if rows.num_rows == 0:
        return change
    source = {one: index for index, one in enumerate(keys_of(rows, key))}
    values = rows.column(newest).to_pylist() if newest is not None else []
    beaten: set[int] = set()
    stay = rows.num_rows - dropped
    before: list[pa.Table] = []
    kinds: list[str] = []
    updated: set[int] = set()
    looked_at = list(dict.fromkeys([*key, *([newest] if newest is not None else [])]))
    wanted = {name: pc.unique(rows.column(name)) for name in key}
    for file in files:
        found = data_files.read(root, file, schema, looked_at)
        # A fast prefilter: each key column on its own has a wanted value. Whole keys are compared below, for the few rows left.
        hits = [pc.is_in(found.column(name), value_set=wanted[name]) for name in key]
        indices = pc.indices_nonzero(reduce(pc.and_, hits))
        near = found.take(indices)
        stored = near.column(newest).to_pylist() if newest is not None else []
        replaced = []
        for number, (place, one) in enumerate(zip(indices.to_pylist(), keys_of(near, key), strict=True)):
            index = source.get(one)
            if index is None:
                continue
            if newest is not None and not _wins(values[index], stored[number]):
                beaten.add(index)
            else:
                replaced.append(place)
                kinds.append(PREIMAGE if index < stay else DELETE)
                updated.add(index)
        if replaced:
            change.removed.append(file)
            whole = data_files.read(root, file, schema)
            before.append(whole.take(pa.array(replaced, pa.int64())))
            left = _without(whole, replaced)
            if left.num_rows:
                (change.together if file.rows <= SMALL_ROWS else change.apart).append(left)
    added = _without(rows.slice(0, stay), sorted(beaten)) if beaten else rows.slice(0, stay)
    if added.num_rows:
        change.together.append(added)
    if before:
        kinds += [POSTIMAGE if index in updated else INSERT for index in range(stay) if index not in beaten]
        change.changes = pa.concat_tables([*before, added]).append_column(CHANGE_TYPE, pa.array(kinds))
    return change


def candidates(
    files: Sequence[LiveFile], rows: pa.Table, key: Sequence[str], filters: KeyFilters, filtered: Sequence[str]
) -> list[LiveFile]:
    """The files whose bounds and filters allow a key of the rows."""
    if any(rows.column(name).null_count == rows.num_rows for name in key):  # no row has a whole key
        return []
    bounds = {}
    for name in key:
        if data_files.has_bounds(rows.schema.field(name).type):
            both = pc.min_max(rows.column(name))
            bounds[name] = both["min"].as_py(), both["max"].as_py()
    found = [file for file in files if all(file.may_hold(name, *both) for name, both in bounds.items())]
    for name in filtered:
        found = filters.holding(found, {name: rows.column(name)})
    return found


def keys_of(rows: pa.Table, key: Sequence[str]) -> list[tuple[Any, ...]]:
    """The keys of rows, in order."""
    return list(zip(*[rows.column(name).to_pylist() for name in key], strict=True))


def _wins(new: Any, old: Any) -> bool:
    """Whether a row replaces a stored one: its value is not less. Equal values win, so that a replay gives the same table."""
    return old is None or (new is not None and new >= old)


def _without(rows: pa.Table, indices: Sequence[int]) -> pa.Table:
    stays = pc.invert(pc.is_in(pa.array(range(rows.num_rows), pa.int64()), value_set=pa.array(indices, pa.int64())))
    return rows.filter(stays)


_MICROSECONDS = pa.timestamp("us", tz="UTC")
EXPIRY_SLACK = timedelta(days=1)
"""Rows may stay this long after they expire, so that a file with other rows is rewritten at most once in this time."""


def expired(root: LakePath, files: Sequence[LiveFile], schema: pa.Schema, before: datetime) -> list[MergePlan]:
    """Plan the removal of rows older than a time, by partition, else by the newest time of a row: of whole files, then of others."""
    whole, partial = MergePlan(), MergePlan()
    gone: list[pa.Table] = []
    times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
    for file in files:
        day = file.partition.get("date")
        if isinstance(day, date):
            if day < before.date():
                whole.removed.append(file)
            continue
        sure = [file.least.get(name) for name in times if file.nulls.get(name) == 0]
        if not times or any(least is not None and least >= before for least in sure):
            continue
        found = data_files.read(root, file, schema, times)
        newest = pc.max_element_wise(*(column.cast(_MICROSECONDS).cast(pa.int64()) for column in found.columns))
        stays = pc.fill_null(pc.greater_equal(newest, int(before.timestamp() * 1e6)), True)
        oldest = pc.min(newest).cast(_MICROSECONDS).as_py()
        if not pc.any(stays).as_py():
            whole.removed.append(file)
        elif oldest is not None and oldest < before - EXPIRY_SLACK:
            partial.removed.append(file)
            rows = data_files.read(root, file, schema)
            partial.apart.append(rows.filter(stays))
            gone.append(rows.filter(pc.invert(stays)))
    if gone:
        rows = pa.concat_tables(gone)
        partial.changes = rows.append_column(CHANGE_TYPE, pa.array([DELETE] * rows.num_rows))
    return [change for change in (whole, partial) if change.removed]


EVERY_S = 300
EVERY_COMMITS = 50
"""Compaction is due after this time, or this many commits."""
TIER_FILES = 8
"""Files of one tier that are merged into one."""
TIERS_BYTES = (256 * 1024, 4 * 1024 * 1024, 64 * 1024 * 1024)
"""Upper sizes of the tiers; larger files are never merged."""


def groups(files: Sequence[LiveFile], files_min: int, file_rows: int) -> Iterator[list[LiveFile]]:
    """The files to merge: groups of one partition and one tier, up to the size of the largest tier or so many rows."""
    tiers: dict[tuple[tuple[tuple[str, str], ...], int], list[LiveFile]] = {}
    for file in sorted(files, key=_arrival):
        tier = next((number for number, size in enumerate(TIERS_BYTES) if file.size < size), None)
        if tier is not None and file.rows < file_rows // 2:
            partition = tuple((name, repr(value)) for name, value in sorted(file.partition.items()))
            tiers.setdefault((partition, tier), []).append(file)
    for tier_files in tiers.values():
        if len(tier_files) < files_min:
            continue
        group: list[LiveFile] = []
        for file in tier_files:
            full = sum(one.size for one in group) + file.size > 2 * TIERS_BYTES[-1]
            if group and (full or sum(one.rows for one in group) + file.rows > file_rows):
                yield group
                group = []
            group.append(file)
        if len(group) > 1:
            yield group


def _arrival(file: LiveFile) -> tuple[int, str, str]:
    """Sort by offset or time where there is one, so that rows stay in order and the bounds of files overlap little."""
    offset = file.least.get("offset")
    moment = next((value for value in file.least.values() if isinstance(value, datetime)), "")
    return (offset if isinstance(offset, int) else 0, str(moment), file.path)


def shorten(table: LakeTable) -> int:
    """Write a checkpoint if one is due, and remove log entries that no kept version needs.

    A table with a retention keeps no version that is older than a day: such versions hold rows that expired.
    """
    if table.log.needs_checkpoint():
        table.log.checkpoint()
    return table.log.shorten(before=table.clock() - EXPIRY_SLACK.total_seconds() if table.retention() else 0.0)
