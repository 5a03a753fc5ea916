"""How each lake table is computed from the journal: one `Step` a table, built in or a user's own.

A step is a function from a batch of journal rows to rows of one table. It keeps no state: the same batch gives the same rows, and any
way of cutting the journal into batches ends in the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.errors import HintedError
from penstock.spark.lake import schemas
from penstock.spark.lake.schemas import TableDefinition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.pipeline.batch import JournalBatch
    from penstock.spark.pipeline.expectations import Expectation


Rows = Callable[["JournalBatch"], "DataFrame | pa.Table"]
"""Rows of a table for a batch; an Arrow table needs no Spark job."""


class StepError(HintedError):
    """A user table that cannot be built; the message says what to change."""

    code = "BadTable"


@dataclass(frozen=True)
class Step:
    """How one table is computed from the journal."""

    table: TableDefinition
    rows: Rows
    after: tuple[str, ...] = ()
    """Tables that it reads; they are written before it."""
    when: str = "true"
    """The journal rows it needs, as SQL: a batch without any moves the table's progress without a Spark job."""
    by_minute: bool = False
    """Whether its rows become final: then a batch without rows for it may still close an open minute."""
    file: Path | None = None
    """The file of a user's table, or of its schema."""
    expectations: tuple[Expectation, ...] = ()
    stops_alone: bool = False
    """Whether a schema that does not fit the stored table stops this table only."""
    reads: tuple[str, ...] = ()
    """Tables that it reads and that another process may fill: it never gets ahead of them."""


def _either(
    of_rows: Callable[[pa.Table], pa.Table], of_events: Callable[[DataFrame], DataFrame], condition: str
) -> Rows:
    """The rows of a table: for a small batch from its rows that meet a condition, without Spark; else from a DataFrame."""
    from penstock.spark.lake_tables.row_masks import meeting

    return lambda batch: of_events(batch.events) if batch.rows is None else of_rows(meeting(batch.rows, condition))


def built_in(token_keys: str | Path | None = None) -> list[Step]:
    """The built-in tables; a file of keys lets `token_streams` read tokens."""
    from penstock.spark.lake_tables.conversations import touched_conversations
    from penstock.spark.lake_tables.deliveries import SETTLED, deliveries, settled_rows
    from penstock.spark.lake_tables.envelopes import (
        INBOXES,
        SENT,
        envelopes,
        latest,
        latest_per_agent,
        newest_in_inboxes,
        sent_rows,
    )
    from penstock.spark.lake_tables.expressions import TOUCHED
    from penstock.spark.lake_tables.frames import FANNED, FRAMED, fanout_minutes, frames
    from penstock.spark.lake_tables.minutes import TRIGGERED, trigger_minutes
    from penstock.spark.lake_tables.queue_minutes import touched_queue_minutes
    from penstock.spark.lake_tables.token_streams import PASSED, RELAYED, token_chunks, token_streams
    from penstock.spark.lake_tables.verification_keys import KeyFile

    def inboxes(events: DataFrame) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        return latest(events).mapInArrow(latest_per_agent, from_arrow_schema(schemas.LATEST_PER_AGENT.schema))

    key_file = None if token_keys is None else KeyFile(Path(token_keys))
    return [
        # First, because the console shows it.
        Step(schemas.QUEUE_MINUTES, touched_queue_minutes),
        Step(schemas.ENVELOPES, _either(sent_rows, envelopes, SENT), when=SENT),
        Step(schemas.DELIVERIES, _either(settled_rows, deliveries, SETTLED), when=SETTLED),
        Step(schemas.FRAMES, lambda batch: frames(batch.events), when=FRAMED),
        Step(schemas.TOKEN_CHUNKS, lambda batch: token_chunks(batch.events), when=PASSED),
        Step(schemas.LATEST_PER_AGENT, _either(newest_in_inboxes, inboxes, INBOXES), when=INBOXES),
        Step(schemas.TRIGGER_MINUTES, lambda batch: trigger_minutes(batch.whole_minutes, batch.until),
             when=TRIGGERED, by_minute=True),
        Step(schemas.FANOUT_MINUTES, lambda batch: fanout_minutes(batch.whole_minutes, batch.until),
             when=FANNED, by_minute=True),
        Step(schemas.TOKEN_STREAMS, lambda batch: token_streams(batch, {} if key_file is None else key_file.keys()),
             when=RELAYED),
        Step(schemas.CONVERSATIONS, touched_conversations,
             after=("envelopes", "deliveries"), when=f"{TOUCHED} is not null"),
    ]  # fmt: skip


def typed(schemas_dir: str | Path | None) -> list[Step]:
    """The tables of typed payloads, one for each schema of a directory."""
    from penstock.spark.lake_tables.envelopes import SENT
    from penstock.spark.lake_tables.typed_payloads import SHARED, TypedTable, typed_tables

    def step(made: TypedTable) -> Step:
        def rows(batch: JournalBatch) -> pa.Table:
            return made.rows(batch.new_rows("envelopes", [*SHARED, "payload", "payload_error"]))

        return Step(made.definition, rows, ("envelopes",), SENT, file=made.file, stops_alone=True)

    return [] if schemas_dir is None else [step(made) for made in typed_tables(schemas_dir)]


def ordered(steps: Sequence[Step]) -> list[Step]:
    """Sort steps so that each comes after those whose tables it reads."""
    made: list[Step] = []
    left = list(steps)
    while left:
        done = {step.table.name for step in made}
        ready = [step for step in left if done.issuperset(step.after)]
        if not ready:
            raise StepError(f"`{left[0].table.name}` reads a table that no step writes: {left[0].after}")
        made += ready
        left = [step for step in left if step not in ready]
    return made


def only(steps: Sequence[Step], names: Sequence[str]) -> list[Step]:
    """The steps of some tables, without the tables that they depend on."""
    known = {step.table.name: step for step in steps}
    for name in names:
        if name not in known:
            raise StepError(f"there is no table `{name}`", f"tables: {', '.join(known)}")
    return [replace(known[name], after=(), reads=known[name].after) for name in names]


def check_retention(steps: Sequence[Step], names: Iterable[str]) -> None:
    """Refuse a retention for a table that does not exist, or whose rows have no time."""
    known = {table.name: table for table in (*(step.table for step in steps), schemas.ALERTS, schemas.AGENTS)}
    for name in names:
        if name not in known:
            raise StepError(f"`pipeline.retention` has no table `{name}`", f"tables: {', '.join(known)}")
        if "date" not in known[name].partition_by and not any(map(pa.types.is_timestamp, known[name].schema.types)):
            raise StepError(f"rows of the table `{name}` have no time, so they cannot expire", "add a timestamp")
