"""Journals whose rows fill one set of tables: one journal, or all of a cluster.

Rows of different journals have no common offsets. Where their order matters (conversations, agents), it is the order of `recorded_at`,
then of the journal, then of the offset. Tables that need that order have a column `cluster`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from penstock.journal.segments import SHARD
from penstock.spark.lake.table_reader import TableReader
from penstock.spark.location import JournalLocation, SourceJournal, open_journals

Positions: TypeAlias = dict[str, int]
"""An offset in each journal, by the journal's id."""


def app_of(journal: str) -> str:
    """The application id under which tables store their progress in a journal."""
    return f"{journal}/{SHARD}"


class JournalGroup:
    """The journals, by id, and the id of their cluster."""

    def __init__(self, journals: Mapping[str, SourceJournal], cluster: str | None = None) -> None:
        self.journals = dict(journals)
        self.cluster = cluster or next(iter(self.journals))
        """Without a cluster, the id of the first journal."""

    @classmethod
    def of(cls, given: SourceJournal | JournalGroup) -> JournalGroup:
        """One journal as a group."""
        return given if isinstance(given, JournalGroup) else cls({given.id: given})

    def firsts(self) -> Positions:
        """The oldest rows that are kept."""
        return {one: journal.bounds().first for one, journal in self.journals.items()}

    def ends(self) -> Positions:
        """The ends of the journals. Cheap: queries poll it."""
        return {one: journal.mark().end for one, journal in self.journals.items()}

    def stored(self, table: TableReader) -> Positions:
        """The progress of a table: its first missing row of each journal."""
        found = {one: table.progress(app_of(one)) for one in self.journals}
        return {one: self.journals[one].bounds().first if end is None else end for one, end in found.items()}

    def hold(self, reader: str, positions: Positions) -> None:
        """Have each journal keep the rows from a position on for a named reader."""
        for one, journal in self.journals.items():
            journal.hold(reader, positions[one])

    @property
    def location_options(self) -> dict[str, str]:
        """The options of the source that read all of them. One token is for all."""
        options: dict[str, list[str]] = {}
        for journal in self.journals.values():
            for name, text in journal.location.options.items():
                options.setdefault(name, []).append(text)
        return {name: texts[0] if name == "token" else ",".join(texts) for name, texts in options.items()}

    @staticmethod
    def starting_offsets(positions: Positions) -> str:
        """The option `startingOffsets` for these positions."""
        journals = {one: {str(SHARD): offset} for one, offset in positions.items()}
        return msgspec.json.encode({"v": 1, "journals": journals}).decode()


def open_group(locations: Iterable[JournalLocation], cluster: str | None = None) -> JournalGroup:
    """Open the journals of some locations."""
    return JournalGroup(open_journals(locations), cluster)
