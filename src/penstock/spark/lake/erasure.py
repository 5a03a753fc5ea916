"""Erasure in the journal: rows of sealed history become tombstones, and the live file forgets what is erased.

A tombstone keeps the identity and the time of its row; every other column is null. So offsets stay dense, and tables that are built from
the journal again equal tables from which the rows were removed. The caller holds the journal's lock and has sealed every row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import PenstockError, Refusal
from penstock.core.rows import Row
from penstock.journal.columns import decode_rows
from penstock.journal.delta_log import DeltaLog
from penstock.journal.disk import Disk
from penstock.journal.lake_location import lake_of, open_parquet
from penstock.journal.open_and_repair import LIVE_PREFIX, named, read_live
from penstock.journal.parquet_table import FILE_SCHEMA, EventsTable
from penstock.journal.reader import JournalReader
from penstock.journal.segments import SHARD, Header

ERASED = "erased"
KEPT = ("journal", "shard", "epoch", "offset", "recorded_at")
"""Columns that a tombstone keeps; its door is `server`, its event `erased`."""
PARTIES = ("sender", "peer", "holder", "agent", "subject", "targets", "agents")
"""Columns, of the journal and of tables, whose values are agents or their addresses."""
PLACES = ("channel", "address")
TEXTS = ("body", "meta", "payload", "extra")
"""Columns of JSON text, in which members may name an agent."""
_MEMBERS = "from|to|targets?|owner|writers|participants?|participant_id|agent|peer|holder|subject|by|token"
SHOWN_MAX = 5
"""What a refusal names of what is live."""
_BEGIN = pa.array(["enqueue", "envelope"])
_NONE = pa.scalar(None, pa.string())


class Erasure(msgspec.Struct):
    """What is erased, its rows in the journals of a lake, and what they touch. Until it is complete, a file holds it."""

    agent: set[str] = set()
    corr: set[str] = set()
    id: set[str] = set()
    """The subject: agents, conversations and envelopes."""
    doomed: dict[str, set[int]] = {}
    gone: dict[str, set[int]] = {}
    """Offsets of rows to erase, and of tombstones, by journal."""
    ids: set[str] = set()
    corrs: set[str] = set()
    inboxes: set[str] = set()
    """Envelopes to erase, and conversations and inboxes that lose rows."""

    def record(self) -> str:
        """What the journal says of it: how many rows, and how many agents, conversations and envelopes were named."""
        by = {kind: len(getattr(self, kind)) for kind in ("agent", "corr", "id") if getattr(self, kind)}
        return json.dumps({"rows": sum(map(len, self.doomed.values())), "by": by})

    def marked(self, rows: pa.Table) -> pa.Array:
        """Which rows of a table belong to the subject, or come from a row of the journal that is erased."""
        mask = self.owned(rows)
        for journal in self.doomed if {"journal", "offset"} <= {*rows.schema.names} else ():
            offsets = pa.array(self.doomed[journal] | self.gone[journal], pa.int64())
            ours = pc.and_(pc.equal(rows.column("journal"), journal), pc.is_in(rows.column("offset"), offsets))
            mask = pc.or_(mask, pc.fill_null(ours, False))
        return mask

    def owned(self, rows: pa.Table | pa.RecordBatch) -> pa.Array:
        """Which rows belong to the subject, by the columns that they have."""
        exact, patterns = {"id": self.id | self.corr, "corr": self.corr}, self._patterns() if self.agent else {}
        mask = pa.nulls(rows.num_rows, pa.bool_()).fill_null(False)
        for name in {*exact, *patterns} & {*rows.schema.names}:
            column = rows.column(name)
            if name in exact:
                hits = pc.is_in(column, pa.array(exact[name], pa.string()))
            else:
                text = pc.binary_join(column, "\n") if pa.types.is_list(column.type) else column
                hits = pc.match_substring_regex(text, patterns[name])
            mask = pc.or_(mask, pc.fill_null(hits, False))
        return mask

    def _patterns(self) -> dict[str, str]:
        """What a column of an agent's row matches."""
        escaped = [json.dumps(name)[1:-1] for name in self.agent]  # as JSON may write a letter
        upper = [re.sub(r"(?<=\\u)\w{4}", lambda digits: digits[0].upper(), text) for text in escaped]
        names = f"(?:{'|'.join(map(re.escape, sorted({*self.agent, *escaped, *upper})))})"
        place = f"(?m)(?:^|/)agents/{names}(?:/|$)"
        member = rf'"(?:{_MEMBERS})"\s*:\s*(?:\[[^\]]*)?"{names}"'
        begin = r"(?:^|[^\w.-]|\\[bfnrt]|\\u[0-9A-Fa-f]{4})"  # an escape of JSON ends with a letter
        text = rf"{member}|{begin}agents\\?/{names}(?:[\"'/:*\s\\,;)\]}}]|$)"
        wanted = ((PARTIES, f"{place}|^{names}$"), (PLACES, place), (TEXTS, text))
        return {column: pattern for columns, pattern in wanted for column in columns}


_DECIDING = ["offset", "door", "event", "channel", "id", "sender", "peer", "corr", "meta", "body"]


def _parts(data: Path, columns: list[str]) -> Iterator[tuple[str, pa.Table]]:
    """Rows of every journal of a lake, sealed or not, each part with the id of its journal."""
    reader, bronze = JournalReader(data), EventsTable(lake_of(data))
    bounds = reader.bounds()
    for file in bronze.files():
        with open_parquet(bronze.path / file.path) as rows:
            yield file.journal, rows.read(columns)
    for batch in reader.batches(bounds.sealed_end, bounds.end, columns):
        yield bounds.journal, pa.Table.from_batches([batch])


def find(data: Path, erasure: Erasure) -> None:
    """Add the rows of the subject to an erasure.

    Settles and dead letters of an erased envelope go with it. The settle of another's envelope by an erased agent goes alone.
    """
    names: set[str] = set()
    for journal, rows in _parts(data, _DECIDING):
        mask = erasure.owned(rows)
        is_tombstone = pc.and_(pc.equal(rows.column("event"), ERASED), pc.is_null(rows.column("meta")))
        for found, which in ((erasure.doomed, mask), (erasure.gone, is_tombstone)):
            found.setdefault(journal, set()).update(rows.filter(which).column("offset").to_pylist())
        names |= set(_envelopes(rows.filter(pc.and_(mask, pc.is_in(rows.column("event"), _BEGIN)))).to_pylist())
    for journal, rows in _parts(data, _DECIDING[:-2]):
        known = pc.is_in(rows.column("offset"), pa.array(erasure.doomed[journal], pa.int64()))
        rows = rows.filter(pc.or_(known, pc.is_in(_envelopes(rows), pa.array(names, pa.string()))))
        begun = rows.filter(pc.is_in(rows.column("event"), _BEGIN))
        erasure.doomed[journal].update(rows.column("offset").to_pylist())
        erasure.ids |= set(begun.column("id").to_pylist())
        named_by_id = pc.if_else(pc.equal(rows.column("event"), "envelope"), rows.column("id"), _NONE)
        erasure.corrs |= set(pc.coalesce(rows.column("corr"), named_by_id).to_pylist()) - {None}
        erasure.inboxes |= {one for one in begun.column("channel").to_pylist() if one.endswith("/inbox")}


def _envelopes(rows: pa.Table) -> Any:
    """What tells an envelope from others: its id and its sender; without one, its stream."""
    stream = pc.replace_substring_regex(pc.fill_null(rows.column("channel"), ""), "^dlq/", "")
    return pc.binary_join_element_wise(rows.column("id"), pc.coalesce(rows.column("sender"), stream), "\n")


def bury(data: Path, erasure: Erasure) -> None:
    """Make tombstones of the rows, and remove every earlier version of the table. Again after a crash, it goes on."""
    bronze = EventsTable(lake_of(data))
    for file in bronze.files():
        left = erasure.doomed[file.journal] - erasure.gone[file.journal]
        doomed = pa.array([one for one in left if file.first <= one <= file.last], pa.int64())
        if len(doomed):
            bronze.rewrite(file, partial(_tombstones, doomed))
    if bronze.table() is not None:
        DeltaLog(bronze.path).purge()


def _tombstones(doomed: pa.Array, rows: pa.Table) -> pa.Table:
    mask, words = pc.is_in(rows.column("offset"), doomed), {"door": "server", "event": ERASED}
    for number, column in enumerate(FILE_SCHEMA):
        if column.name not in KEPT:
            left = pc.if_else(mask, pa.scalar(words.get(column.name), column.type), rows.column(number))
            rows = rows.set_column(number, column, left)
    return rows


def survivors(disk: Disk, erasure: Erasure) -> tuple[Header, Iterator[Row], int] | None:
    """What to write as the live file, without counts of the subject's streams, ids, views and grants; None if it has none of them.

    Refuses what is not over: envelopes that wait, and open streams and triggers that name an agent.
    """
    for name in named(disk, LIVE_PREFIX)[-1:]:
        scan, batches = read_live(disk.read(name), name)
        kept: list[Row] = []
        live: list[str] = []
        for batch in batches:
            rows = decode_rows(batch, scan.header.journal, SHARD, scan.header.epoch)
            for row, is_ours in zip(rows, erasure.owned(batch).to_pylist(), strict=True):
                id_ = json.loads(row.body or b"{}").get("id") if row.event == "view" else row.id
                if is_ours and (row.event in ("enqueue", "stream_open") or row.door == "server"):
                    live.append(id_ or f"trigger {json.loads(row.meta or '{}').get('trigger')}")
                elif not is_ours and not (row.event in ("seen", "view") and id_ in erasure.ids):
                    kept.append(row)
        if live:
            shown = ", ".join(f"`{one}`" for one in live[:SHOWN_MAX]) + (", …" if len(live) > SHOWN_MAX else "")
            hint = "start the server, settle or `penstock drop --id` envelopes, close streams, `penstock trigger rm` triggers"
            raise PenstockError(Refusal("EnvelopeLive", f"still in use: {shown}", hint=f"{hint}; then stop it"))
        if len(kept) < sum(batch.num_rows for batch in batches):
            return scan.header, iter(kept[:-1]), kept[-1].recorded_at
    return None
