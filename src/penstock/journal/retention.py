"""Retention: choose the sealed files to remove. A pure function; the sealer removes them.

A server does not need sealed history to run, because the live file has the live envelopes. So only age, size and readers count. A named
reader holds back what it has not read, up to a limit in bytes and in age; then its hold ends, visibly for the reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec

if TYPE_CHECKING:  # the config knows `Retention` and should load quickly
    from penstock.journal.named_readers import Reader
    from penstock.journal.parquet_table import DataFile

DAY_MS = 86_400_000
GIB = 1024**3


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `journal.retention`. Zero means no bound."""

    age_ms: Annotated[int, msgspec.Meta(ge=0)] = 30 * DAY_MS
    """Sealed history is kept this long."""
    bytes_max: Annotated[int, msgspec.Meta(ge=0)] = 50 * GIB
    """And up to this size."""
    hold_bytes_max: Annotated[int, msgspec.Meta(ge=0)] = 20 * GIB
    """What one reader may hold back beyond that, in bytes."""
    hold_age_max_ms: Annotated[int, msgspec.Meta(ge=0)] = 7 * DAY_MS
    """And in time since it last read."""


@dataclass
class Choice:
    """What retention decided."""

    remove: list[DataFile]
    ended: list[Reader]


def choose(
    files: Sequence[DataFile], readers: Sequence[Reader], retention: Retention, now_us: int, journal: str = ""
) -> Choice:
    """The oldest files beyond the limits that no reader of `journal` holds back, and the readers whose hold ends."""
    doomed: list[DataFile] = []
    left = sum(file.size for file in files)
    oldest_us = now_us - retention.age_ms * 1000
    for file in sorted(files, key=lambda file: (file.last_at_us, file.first)):
        is_old = retention.age_ms and file.last_at_us < oldest_us
        is_over = retention.bytes_max and left > retention.bytes_max
        if not is_old and not is_over:
            break
        doomed.append(file)
        left -= file.size
    ended: list[Reader] = []
    holds: list[int] = []
    for reader in readers:
        if reader.has_ended:
            continue
        held = sum(file.size for file in doomed if _is_wanted(file, journal, reader.offset))
        idle_us = now_us - reader.at_us
        too_much = retention.hold_bytes_max and held > retention.hold_bytes_max
        too_long = retention.hold_age_max_ms and idle_us > retention.hold_age_max_ms * 1000
        if held and (too_much or too_long):
            ended.append(reader)
        else:
            holds.append(reader.offset)
    floor = min(holds, default=None)
    remove = [file for file in doomed if floor is None or not _is_wanted(file, journal, floor)]
    return Choice(remove, ended)


def _is_wanted(file: DataFile, journal: str, offset: int) -> bool:
    return file.journal == journal and file.last >= offset
