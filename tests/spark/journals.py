"""Journals on disk for tests of the source: growing, sealed, truncated by retention, lost and recreated."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.core.queue.channel import Channel
from penstock.core.queue.policy import Policy
from penstock.core.records import Record
from penstock.journal.disk import RealDisk
from penstock.journal.log import Log, Sync
from penstock.journal.open_and_repair import WATERMARK, Opened, encode_watermark
from penstock.journal.parquet_table import EventsTable
from penstock.journal.retention import Retention
from penstock.spark.source.datasource import JournalBatchReader, PenstockSource
from penstock.spark.source.options import parse_options
from penstock.spark.source.stream_reader import JournalStreamReader
from tests.journal.histories import FOREVER, START_US, sealer

SECOND_US = 1_000_000
ALL = ReadAllAvailable()
OTHER = "cd" * 16
"""The id of a second journal."""


class Written:
    """A data directory with a journal that a test writes as a server would; one row a second."""

    def __init__(self, data: Path, journal: str = "ab" * 16, sync: Sync = "commit") -> None:
        self.data = data
        self.id = journal
        self.now_us = START_US
        self._disk = RealDisk(data / "journal")
        opened = Opened(self._disk, fresh_id=journal, sync=sync)
        list(opened.live_rows())
        list(opened.tail_rows())
        self._log: Log = opened.log()

    @property
    def end(self) -> int:
        return self._log.position.offset

    def add(self, count: int, *, channel: str = "jobs", sender: str | None = "sam", each: int = 1) -> None:
        """So many envelopes, `each` of them in one commit."""
        for number in range(0, count, each):
            records: list[Record] = []
            for index in range(min(each, count - number)):
                offset = self.end + index
                record = Record(f"e{offset}", "note", f'{{"n":{offset}}}'.encode(), channel=Channel(channel, Policy()))
                record.seq, record.sender = offset + 1, sender
                records.append(record)
            self._log.commit([records], self.now_us)
            self.now_us += SECOND_US
        self.publish()

    def publish(self) -> None:
        position = self._log.position
        self._disk.overwrite(WATERMARK, encode_watermark(position.offset, position.epoch))
        self._disk.unlock()

    def seal(self, retention: Retention = FOREVER) -> Any:
        """Everything so far becomes sealed history."""
        self._log.rotate()
        return sealer(self.data, retention=retention).seal(self.now_us, wants_live=True)

    def thin(self, count: int) -> None:
        """Retention takes the oldest files."""
        bronze = EventsTable(self.data / "lake")
        bronze.remove(bronze.files()[:count], self.now_us // 1000)

    def close(self) -> None:
        self._log.close()

    def remake(self, journal: str) -> Written:
        """The directory is deleted and a new journal begun in it."""
        self.close()
        shutil.rmtree(self.data)
        return Written(self.data, journal)


def stream(*data: Path, **options: object) -> JournalStreamReader:
    """The streaming reader that Spark would make."""
    return JournalStreamReader(parse_options(_given(data, options)))


def batch(*data: Path, **options: object) -> JournalBatchReader:
    return JournalBatchReader(parse_options(_given(data, options)))


def declared(*data: Path, **options: object) -> pa.Schema:
    """The schema that Spark expects batches to have, exactly."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(PenstockSource(_given(data, options)).schema(), timezone="UTC")


def table(reader: JournalBatchReader | JournalStreamReader, spans: list[Any]) -> pa.Table:
    """All rows of some spans, each batch of which has the declared schema."""
    schema = reader._options.schema
    batches = [one for span in spans for one in reader.read(span)]
    assert all(one.schema.equals(schema) for one in batches)
    return pa.Table.from_batches(batches, schema)


def offsets_of(rows: pa.Table) -> list[int]:
    return rows.column("offset").to_pylist()


def at(journal: Written, offset: int) -> dict[str, Any]:
    return {"v": 1, "journals": {journal.id: {"0": offset}}}


def _given(data: tuple[Path, ...], options: dict[str, object]) -> dict[str, str]:
    paths = {"path": ",".join(map(str, data))} if data else {}
    return paths | {name: str(value) for name, value in options.items()}
