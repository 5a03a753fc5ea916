"""Erasure in the tables: rows of a subject leave them, and what combines rows of the journal is computed again, as in a table built anew."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.journal.delta_log import table_names
from penstock.journal.lake_location import LakePath
from penstock.spark.lake import data_files, schemas
from penstock.spark.lake.catalog import open_table
from penstock.spark.lake.erasure import PARTIES, PLACES, TEXTS, Erasure
from penstock.spark.lake_tables.conversations import conversations
from penstock.spark.lake_tables.envelopes import latest, latest_per_agent
from penstock.spark.lake_tables.minutes import from_us
from penstock.spark.pipeline.batch import JournalBatch
from penstock.spark.pipeline.ingest import Ingest, LostRowsError
from penstock.spark.pipeline.journal_rows import JournalRange
from penstock.spark.pipeline.rebuild import rebuild_table
from penstock.spark.pipeline.steps import StepError

if TYPE_CHECKING:
    from penstock.spark.lake.table import LakeTable


def split(lake: LakePath) -> tuple[list[str], list[str]]:
    """The tables of the pipeline, typed payloads included and `events` not, and the others, which users fill."""
    names = [name for name in table_names(lake) if name != schemas.EVENTS.name]
    built_in = [name for name in names if name in schemas.TABLES or name.startswith("types_")]
    return built_in, [name for name in names if name not in built_in]


def look(lake: LakePath, erasure: Erasure) -> dict[str, int]:
    """How many rows of each table belong to an erasure; adds the conversations that lose rows to it."""
    counts = {schemas.EVENTS.name: sum(map(len, erasure.doomed.values()))}
    columns = {"journal", "offset", "id", "corr", *((*PARTIES, *PLACES, *TEXTS) if erasure.agent else ())}
    for name in split(lake)[0]:
        table, counts[name] = open_table(lake, name), 0
        schema = table.schema()
        for file in table.files():
            rows = data_files.read(table.path, file, schema, [one for one in schema.names if one in columns])
            doomed = rows.filter(erasure.marked(rows))
            counts[name] += doomed.num_rows
            if "corr" in rows.column_names:
                erasure.corrs |= set(pc.unique(doomed.column("corr")).to_pylist()) - {None}
    return counts


def scrub(lake: LakePath, erasure: Erasure) -> None:
    """Remove the rows of an erasure from the tables of the pipeline."""
    for name in split(lake)[0]:
        open_table(lake, name).rewrite(partial(_without, name, erasure))


def _without(name: str, erasure: Erasure, rows: pa.Table) -> pa.Table:
    mask = erasure.marked(rows)
    if not pc.any(mask).as_py():
        return rows
    if name == schemas.AGENTS.name:  # when another agent was last active stays known; in which stream does not
        channels = pc.if_else(mask, pa.scalar(None, pa.string()), rows.column("channel"))
        rows = rows.set_column(rows.column_names.index("channel"), "channel", channels)
        mask = erasure.owned(rows)
    return rows.filter(pc.invert(mask))


MINUTES = tuple(table.name for table in (schemas.QUEUE_MINUTES, schemas.TRIGGER_MINUTES, schemas.FANOUT_MINUTES))
COMBINED = (*MINUTES, schemas.CONVERSATIONS.name, schemas.LATEST_PER_AGENT.name)
"""Tables that Spark computes again."""


def recompute(ingest: Ingest, erasure: Erasure, own: Sequence[str] = ()) -> list[str]:
    """Compute the minutes from the first erased row on again, the conversations and inboxes that lost rows, and users' tables.

    Returns tables that cannot be: of other data directories or a former journal too, not in the config, or without their oldest rows.
    """
    sent = ingest.table(schemas.ENVELOPES.name)
    files, schema = ([], None) if sent.version() is None else (sent.files(), sent.schema())
    parts = (data_files.read(sent.path, file, schema, ["journal"]).column(0) for file in files)
    if any({*pc.unique(part).to_pylist()} - erasure.doomed.keys() for part in parts):
        return [*COMBINED, *own]
    [(one, journal)] = ingest.group.journals.items()
    since = min(erasure.doomed.get(one, ()), default=sys.maxsize)
    for step in ingest.steps:
        table, name = ingest.table(step.table.name), step.table.name
        first, end = max(since if name in MINUTES else 0, journal.bounds().first), ingest.group.stored(table)[one]
        if name not in COMBINED or first >= end:
            continue
        part = JournalRange(journal, first, end, journal.time_of(end - 1))
        batch = JournalBatch(ingest.spark, ingest.table, ingest.group, {one: part})
        if name in MINUTES:
            made = step.rows(batch).toArrow()
            replaced = (pc.field("journal") == one) & (pc.field("minute") >= pa.scalar(from_us(part.minutes_since_us)))
        elif step.table is schemas.CONVERSATIONS:
            talks = pa.array(sorted(erasure.corrs), pa.string())
            envelopes, deliveries = map(batch.frame, batch.members_of(talks))
            made = conversations(envelopes, deliveries, ingest.group.cluster).toArrow()
            replaced = (pc.field("cluster") == ingest.group.cluster) & pc.field("corr").isin(talks)
        else:
            inboxes = latest(batch.events.where(batch.events.channel.isin(sorted(erasure.inboxes))))
            made = batch.mapped(inboxes, latest_per_agent, step.table.schema).toArrow()
            replaced = pc.scalar(False)
        _replace(table, made, replaced)
    left = [*own, *(COMBINED if any(rows for other, rows in erasure.doomed.items() if other != one) else ())]
    for name in own:
        with suppress(LostRowsError, StepError):
            rebuild_table(ingest, name)
            left.remove(name)
    return left


def _replace(table: LakeTable, made: pa.Table, replaced: pc.Expression) -> None:
    """Merge rows, and remove the stored ones that they replace and that have other keys."""
    key = list(table.definition.key)
    stored = table.rows(key, replaced)
    gone = stored.join(made.select(key).cast(stored.schema), key, join_type="left anti")
    table.merge(made, {}, gone.select(key))
