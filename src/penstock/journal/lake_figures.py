"""How large each table of a lake is and how far it has come, from its log alone.

The tables are the one source of their progress: each commit carries the end offset of what it holds. So metrics, the status of the
pipeline and the console show the same numbers whether the pipeline runs, starts or is down. A table is read again only when its log
has a newer entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.ipc.pipeline import TableStatus
from penstock.journal.delta_log import newest_entry, table_names
from penstock.journal.lake_location import lake_of, open_delta
from penstock.journal.reader import JournalError, JournalReader
from penstock.journal.segments import SHARD, DamageError

NOT_FILLED = ("events", "gaps")
"""Tables whose progress is not that of the pipeline: sealing writes the first, and the second only changes after a loss."""


def table_figures(table: DeltaTable, journals: Iterable[str] = ()) -> TableStatus:
    """The figures of one table, with its progress in these journals."""
    files = pa.table(table.get_add_actions(flatten=True))
    last = table.history(1)
    ends = {one: table.transaction_version(f"{one}/{SHARD}") for one in journals}
    return TableStatus(
        rows=pc.sum(files.column("num_records"), min_count=0).as_py(),
        files=files.num_rows,
        bytes=pc.sum(files.column("size_bytes"), min_count=0).as_py(),
        version=table.version(),
        at_us=1000 * last[0].get("timestamp", 0) if last else 0,
        ends={one: end for one, end in ends.items() if end is not None},
    )


class LakeFigures:
    """The figures of every table that the pipeline fills. For one thread."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._known: dict[str, tuple[str, TableStatus]] = {}
        self._reader: JournalReader | None = None

    def read(self, ends: Mapping[str, int], now_us: int) -> dict[str, TableStatus]:
        """The figures by table; `ends` are the ends of the journals. Tables that cannot be opened are left out."""
        try:
            lake = lake_of(self._data)
            names = table_names(lake)
        except OSError:
            return {}  # an object store does not answer
        known, self._known = self._known, {}
        for name in names:
            if name in NOT_FILLED:
                continue
            kept = known.get(name)
            try:
                entry = newest_entry(lake / name)
                found = (
                    kept[1] if kept is not None and kept[0] == entry else table_figures(open_delta(lake / name), ends)
                )
            except (DeltaError, OSError):
                continue  # the health of the lake says so
            if found.ends:  # otherwise another program fills it
                found.lag_rows = sum(max(end - found.ends.get(one, 0), 0) for one, end in ends.items())
                found.lag_seconds = self._lag_seconds(found, ends, now_us) if found.lag_rows else 0.0
                self._known[name] = (entry, found)
        return {name: found for name, (_, found) in self._known.items()}

    def _lag_seconds(self, table: TableStatus, ends: Mapping[str, int], now_us: int) -> float:
        """The age of the oldest row of the journal in this directory that the table lacks."""
        try:
            self._reader = self._reader or JournalReader(self._data)
            one = self._reader.identity().id
            first = table.ends.get(one, 0)
            if first < ends.get(one, 0):
                for batch in self._reader.batches(first, first + 1, ["recorded_at"]):
                    return max(now_us - int(batch.column(0).cast(pa.int64())[0].as_py()), 0) / 1_000_000
        except (JournalError, DamageError, OSError):
            pass  # the row is gone, or the journal is elsewhere
        return 0.0
