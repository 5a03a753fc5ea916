"""Merge small adjacent files of sealed history: a seal a minute would otherwise leave over a thousand files a day.

Rows, offsets and their order stay the same. The merged files stay on disk for a while, for readers that have them open; they are removed when
they are old and no kept version refers to them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.journal.columns import fitted
from penstock.journal.segments import DamageError

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.journal.parquet_table import DataFile

FILES_MIN = 30
"""Adjacent small files of one date that are worth merging."""
SMALL_BYTES = 16 * 1024 * 1024
MERGED_BYTES_MAX = 64 * 1024 * 1024
GROUP_BYTES = 64 * 1024 * 1024
"""Rows that are held in memory for one row group, about."""


def runs(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """The files to merge, in order of their offsets: each run is small files of one journal and date without a gap."""
    run: list[DataFile] = []
    for file in sorted(files, key=lambda file: (file.journal, file.first)):
        fits = bool(run) and file.first == run[-1].last + 1 and file.path[:15] == run[-1].path[:15]
        fits = fits and file.journal == run[-1].journal
        is_small = file.size < SMALL_BYTES
        if not fits or not is_small or sum(one.size for one in run) + file.size > MERGED_BYTES_MAX:
            if len(run) >= FILES_MIN:
                yield run
            run = []
        if is_small:
            run.append(file)
    if len(run) >= FILES_MIN:
        yield run


def groups(root: Path, run: Sequence[DataFile], schema: pa.Schema, rows_max: int) -> Iterator[pa.Table]:
    """The rows of a run, as large row groups; columns that an older file lacks are null."""
    held: list[pa.Table] = []
    for file in run:
        try:
            with pq.ParquetFile(root / file.path) as data:
                rows = data.read()
        except (OSError, pa.ArrowException) as error:
            raise DamageError(f"lake/{root.name}/{file.path}", None, str(error)) from error
        held.append(pa.Table.from_batches([fitted(batch, schema) for batch in rows.to_batches()], schema))
        together = pa.concat_tables(held)
        if together.num_rows >= rows_max or together.nbytes >= GROUP_BYTES:
            yield together
            held = []
    if held:
        yield pa.concat_tables(held)


def touch(root: Path, files: Sequence[DataFile]) -> None:
    """Reset their age, because readers may have them open."""
    now = time.time()
    for file in files:
        os.utime(root / file.path, (now, now))
