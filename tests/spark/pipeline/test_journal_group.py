"""Several journals, one set of tables: the same traffic, split over journals, gives the same rows."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.core.rows import Row
from penstock.ipc.pipeline import AlertsSection, DeadLetterRule, RateRule, SilenceRule
from penstock.journal.columns import SCHEMA, decode_rows, encode_rows
from penstock.journal.disk import RealDisk
from penstock.journal.log import segment_name
from penstock.journal.open_and_repair import WATERMARK, Opened, encode_watermark
from penstock.journal.segments import Header, encode_frame, encode_header
from penstock.spark.lake_tables.conversations import ConversationEvent, conversation
from penstock.spark.location import JournalLocation, open_one
from penstock.spark.pipeline import steps
from penstock.spark.pipeline.ingest import Ingest
from penstock.spark.pipeline.journal_group import JournalGroup, open_group
from penstock.spark.pipeline.queries import start_query
from penstock.spark.pipeline.watch import AlertWatch
from tests.spark.journal_builder import COPIES, INGESTED, WATCHED, JournalBuilder, content, rule, speak, talk, work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOURNALS = ("a" * 32, "b" * 32, "c" * 32)
RULES = AlertsSection(
    (RateRule("busy", above=5), DeadLetterRule("dead"), SilenceRule("quiet", for_ms=40_000, agent="bob"))
)


def rows_of(data: Path) -> list[Row]:
    """The rows of a journal, each at a time of its own: of rows of one time, the order depends on their journals."""
    journal = open_one(data)
    rows = [row for batch in journal.batches(0, journal.bounds().end) for row in decode_rows(batch, "", 0, 0)]
    return [
        replace(
            row,
            recorded_at=row.recorded_at + row.offset,
            ref_at=None if row.ref_at is None else row.ref_at + (row.ref_offset or 0),
        )
        for row in rows
    ]


def written(data: Path, journal: str, rows: list[Row]) -> JournalLocation:
    """A journal with these rows, and their times, in a segment of version 1."""
    disk = RealDisk(data / "journal")
    opened = Opened(disk, fresh_id=journal, sync="off")
    assert not [*opened.live_rows(), *opened.tail_rows()]
    opened.log()
    file = disk.open(segment_name(0))
    file.append(encode_header(Header(journal, 0, 0, 0), SCHEMA))
    numbered = [replace(row, offset=number) for number, row in enumerate(rows)]
    for _, part in groupby(numbered, key=lambda row: row.recorded_at):
        file.append(encode_frame(encode_rows(list(part))))
    file.sync()
    disk.overwrite(WATERMARK, encode_watermark(len(rows), 0))
    disk.unlock()
    return JournalLocation(path=str(data))


def shares(rows: list[Row]) -> list[list[Row]]:
    """The rows of three shards: a stream, with its dead letters, is in one of them; ticks are in all."""
    found: list[list[Row]] = [[], [], []]
    for row in rows:
        home = row.channel.removeprefix("dlq/").partition("/")[0]
        for share in found if row.door == "server" else [found[{"jobs": 0, "agents": 1}.get(home, 2)]]:
            share.append(row)
    return found


def plain(lake: Path) -> dict[str, list[dict[str, Any]]]:
    """Every table without journals and offsets, which differ."""
    found = content(lake, [name for name in (*INGESTED, *WATCHED) if name != "gaps"])
    hidden = ("journal", "offset", "cluster")
    return {
        name: sorted(({key: value for key, value in row.items() if key not in hidden} for row in rows), key=str)
        for name, rows in found.items()
    }


def fill(spark: SparkSession, group: JournalGroup, lake: Path, rows_max: int) -> list[int]:
    """Run both queries over everything; returns how many journals each batch had rows of."""
    counts = []
    ingest = Ingest(spark, group, lake, steps.built_in())
    watch = AlertWatch(spark, group, lake, RULES, None)
    for name, part in (("ingest", ingest), ("watch", watch)):

        def on_batch(ends: dict[str, int], number: int, part: Ingest | AlertWatch = part) -> None:
            counts.append(sum(end > part.end[one] for one, end in ends.items()))
            part.on_batch(ends, number)

        query = start_query(
            spark, group, name, on_batch, lake / "_checkpoints" / name, start=part.end, rows_max=rows_max, pause_ms=None
        )
        query.awaitTermination()
        assert query.exception() is None
        assert part.end == group.ends()
    ingest.close()
    return counts


@pytest.mark.more
@pytest.mark.promise("Spark: pipeline", "one traffic split over three journals gives the same tables as over one")
def test_split_traffic_gives_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    story = JournalBuilder(tmp_path / "whole")
    rule(story, COPIES)
    work(story, 1)
    talk(story, 0)
    speak(story, 0)
    work(story, 1, each=4)
    story.wait(130)
    story.close()
    rows = rows_of(tmp_path / "whole")
    parts = shares(rows)
    assert all(len(part) > 20 for part in parts)
    places = [written(tmp_path / one, one, part) for one, part in zip(JOURNALS, parts, strict=True)]

    fill(spark, open_group([written(tmp_path / "one", "d" * 32, rows)]), tmp_path / "lake-1", 100_000)
    counts = fill(spark, open_group(places, "one cluster"), tmp_path / "lake-3", 120)
    assert max(counts) == 3 and len(counts) >= 4
    whole, split = plain(tmp_path / "lake-1"), plain(tmp_path / "lake-3")
    for name, found in whole.items():
        assert split[name] == found, name
        assert found, f"`{name}` has no rows"
    assert {row["cluster"] for row in content(tmp_path / "lake-3", ["conversations"])["conversations"]} == {
        "one cluster"
    }


# Without a JVM


def members_of(rows: list[tuple[int, int, bool]]) -> list[ConversationEvent]:
    """Envelopes to three inboxes, some of them settled; those of equal time are in the order of the list."""
    made: list[ConversationEvent] = []
    for number, (at, to, is_settled) in enumerate(sorted(rows)):
        name = f"agents/{to}/inbox"
        sender = str((to + 1) % 3)
        sent = ConversationEvent("k", "c", at, "j", number, name, number, f"e{number}", "courier", sender, str(to))
        made.append(sent)
        if is_settled:
            made.append(ConversationEvent("k", "c", at + 50, "j", number + 1000, name, number, outcome="acked"))
    return made


@given(
    st.lists(
        st.tuples(st.integers(0, 20).map(lambda n: 100 * n), st.integers(0, 2), st.booleans()),
        min_size=1,
        unique_by=lambda row: row[0],
    )
)
def test_a_conversation_is_the_same_in_one_journal_and_in_three(rows: list[tuple[int, int, bool]]) -> None:
    one = sorted(members_of(rows), key=lambda member: (member.at_us, member.journal, member.offset))
    three = [member._replace(journal=f"j{member.channel}", offset=7 * member.offset) for member in one]
    three.sort(key=lambda member: (member.at_us, member.journal, member.offset))
    whole, split = conversation(one), conversation(three)
    assert whole is not None and split is not None
    assert whole | {"journal": ""} == split | {"journal": ""}


def test_a_group_has_the_cluster_of_its_first_journal_or_a_given_one(tmp_path: Path) -> None:
    places = [written(tmp_path / one, one, [Row(event="tick", door="server", recorded_at=5)]) for one in JOURNALS]
    group = open_group(places)
    assert (group.cluster, open_group(places, "east").cluster) == (JOURNALS[0], "east")
    assert group.ends() == dict.fromkeys(JOURNALS, 1) and group.firsts() == dict.fromkeys(JOURNALS, 0)
    assert group.location_options == {"path": ",".join(str(tmp_path / one) for one in JOURNALS)}
