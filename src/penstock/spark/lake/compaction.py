"""Compaction of a table: few files, a short log, no unreferenced files.

Files of about the same size (a tier) are merged when there are enough of them, so a row is rewritten at most once a tier, however
many commits there are. Rows, their order of arrival and the progress of applications do not change.
"""

# size: which files are merged; the table reads, writes and commits them

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.spark.lake.data_files import LiveFile

if TYPE_CHECKING:
    from penstock.spark.lake.table import LakeTable

EVERY_S = 300
EVERY_COMMITS = 50
"""Compaction is due after this time, or this many commits."""
TIER_FILES = 8
"""Files of one tier that are merged into one."""
TIERS_BYTES = (256 * 1024, 4 * 1024 * 1024, 64 * 1024 * 1024)
"""Upper sizes of the tiers; larger files are never merged."""


def groups(files: Sequence[LiveFile], files_min: int) -> Iterator[list[LiveFile]]:
    """The files to merge: groups of one partition and one tier, up to the size of the largest tier."""
    tiers: dict[tuple[tuple[tuple[str, str], ...], int], list[LiveFile]] = {}
    for file in sorted(files, key=_arrival):
        tier = next((number for number, size in enumerate(TIERS_BYTES) if file.size < size), None)
        if tier is not None:
            partition = tuple((name, repr(value)) for name, value in sorted(file.partition.items()))
            tiers.setdefault((partition, tier), []).append(file)
    for tier_files in tiers.values():
        if len(tier_files) < files_min:
            continue
        group: list[LiveFile] = []
        for file in tier_files:
            if group and sum(one.size for one in group) + file.size > 2 * TIERS_BYTES[-1]:
                yield group
                group = []
            group.append(file)
        if len(group) > 1:
            yield group


def _arrival(file: LiveFile) -> tuple[int, str]:
    """Sort by offset where there is one, so that rows stay in order and the bounds of files do not overlap."""
    offset = file.least.get("offset")
    return (offset if isinstance(offset, int) else 0, file.path)


def shorten(table: LakeTable) -> int:
    """Write a checkpoint if one is due, and remove log entries that no kept version needs."""
    delta = table.delta()
    if delta is not None and table.log.needs_checkpoint():
        delta.create_checkpoint()
    return table.log.shorten()
