"""Ingest on real journals and real Spark: faults do not change the final tables (invariant 9)."""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.ipc.pipeline import AlertsSection
from penstock.journal.retention import Retention
from penstock.spark import location
from penstock.spark.errors import TableFailedError
from penstock.spark.lake.schemas import AGENTS, CONVERSATIONS, DELIVERIES, ENVELOPES, QUEUE_MINUTES, TABLES
from penstock.spark.lake.table import LakeTable, Progress
from penstock.spark.lake_tables.deliveries import deliveries
from penstock.spark.pipeline import own_tables, steps
from penstock.spark.pipeline.ingest import Ingest, LostRowsError, accept, add_cluster, check_kept
from penstock.spark.pipeline.queries import CHECKPOINTS
from penstock.spark.pipeline.rebuild import rebuild_table
from penstock.spark.pipeline.reporter import Reporter
from penstock.spark.pipeline.watch import AlertWatch
from tests.spark.journal_builder import (
    COPIES,
    INGESTED,
    WATCHED,
    JournalBuilder,
    content,
    rule,
    work,
)
from tests.spark.journaled import JOURNAL
from tests.spark.pipeline.queried import APP, batch_between, erase, exported, ingest_of, run
from tests.spark.recomputation.check import TABLES as RECOMPUTED
from tests.spark.recomputation.check import check, lake_tables
from tests.tiers import first_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OLD_AND_NEW = ["deliveries", "queue_minutes", "trigger_minutes", "gaps"]
"""Tables that the fixtures have, and one that they lack; `make test-more` goes on from all tables."""


@pytest.fixture(scope="module")
def expected(spark: SparkSession, worked: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The tables of that work, made in one go."""
    lake = tmp_path_factory.mktemp("expected")
    ingest = Ingest(spark, location.open_one(worked), lake, steps.built_in())
    ingest.backfill()
    ingest._record_first_gap()
    ingest.close()
    made = content(lake)
    assert {name: len(rows) for name, rows in made.items() if name != "gaps"} == {
        "envelopes": 104,
        "deliveries": 64,
        "queue_minutes": 31,
        "trigger_minutes": 3,
        "frames": 4,
        "token_chunks": 7,
        "token_streams": 3,
        "fanout_minutes": 4,
        "latest_per_agent": 1,
        "conversations": 12,
    }
    return made


@pytest.mark.promise(
    "Spark: pipeline",
    "a table that an older lake lacks is filled from history, and the others are left untouched",
)
@pytest.mark.promise(
    "Spark: pipeline",
    "9: other batches, a crash between two tables and a replay of every batch give the same tables",
)
def test_many_small_batches_give_the_tables_of_one_computation(spark: SparkSession, data: Path, expected: dict) -> None:
    ingest = ingest_of(spark, data)
    assert run(spark, data, ingest) > 3
    assert content(data / "lake") == expected
    cells = check(exported(data), lake_tables(str(data / "lake")), [name for name in RECOMPUTED if name != "agents"])
    assert min(cells[name] for name in cells if name != "gaps") > 0
    end = location.open_one(data).bounds().end
    assert {name: LakeTable(data / "lake", TABLES[name]).progress(APP) for name in INGESTED if name != "gaps"} == {
        name: end for name in INGESTED if name != "gaps"
    }
    # Without its checkpoint it begins where the tables are, and finds nothing to do.
    shutil.rmtree(data / "lake" / CHECKPOINTS)
    again = ingest_of(spark, data)
    assert again.end == {JOURNAL: end}
    versions = {name: LakeTable(data / "lake", TABLES[name]).version() for name in INGESTED}
    run(spark, data, again)
    assert {name: LakeTable(data / "lake", TABLES[name]).version() for name in INGESTED} == versions
    assert content(data / "lake") == expected
    # A table that this lake never had, as after an upgrade, is filled from the history; the others are left alone.
    shutil.rmtree(data / "lake" / "trigger_minutes")
    upgraded = ingest_of(spark, data)
    assert upgraded.end == {JOURNAL: 0}
    upgraded.level()
    assert upgraded.end == {JOURNAL: end}
    del versions["trigger_minutes"]
    assert {name: LakeTable(data / "lake", TABLES[name]).version() for name in versions} == versions
    assert content(data / "lake") == expected


@pytest.mark.more
@pytest.mark.promise(
    "Spark: pipeline",
    "9: other batches, a crash between two tables and a replay of every batch give the same tables",
)
def test_a_crash_between_two_tables_and_a_replay_of_every_batch_change_nothing(
    spark: SparkSession, data: Path, expected: dict
) -> None:
    """One table fails in the middle of a batch, so some have it and some do not; then every batch comes again, from batch 0 on."""
    failures = iter([True, False, True])

    def failing(part: object) -> DataFrame:

        if next(failures, False):
            raise RuntimeError("the power went")
        return deliveries(part.events)  # type: ignore[attr-defined]

    kept: list[tuple[dict[str, int], int]] = []
    broken = [step if step.table is not DELIVERIES else steps.Step(DELIVERIES, failing) for step in steps.built_in()]
    ingest = Ingest(spark, location.open_one(data), data / "lake", broken)
    journal = location.open_one(data)
    end = journal.bounds().end
    cuts = [0, 1, 40, 41, 90, end]
    for number, last in enumerate(cuts[1:]):
        ends = {journal.id: last}
        kept.append((ends, number))
        try:
            ingest.on_batch(ends, number)
        except RuntimeError:
            versions = (LakeTable(data / "lake", table).progress(APP) for table in (ENVELOPES, DELIVERIES))
            assert next(versions) == last != next(versions)
    for ends, number in kept:
        ingest.on_batch(ends, number)
    ingest.on_batch({journal.id: 1}, 99)  # a batch without rows
    assert content(data / "lake") == expected


@pytest.mark.promise("Spark: pipeline", "a backfill runs next to the live pipeline")
def test_a_backfill_beside_the_live_query_gives_the_same_tables(
    spark: SparkSession, data: Path, expected: dict
) -> None:
    """While another writer fills a table, the query skips it, continues with the others, and catches up later."""
    ingest = ingest_of(spark, data)
    beside = ingest_of(spark, data)
    journal = location.open_one(data)
    table = beside.table("envelopes")
    with table.writing():
        ingest.on_batch({journal.id: 80}, 0)
        assert ingest.behind == {"envelopes": 0, "conversations": 0}
        beside._catch_up(next(step for step in steps.built_in() if step.table is ENVELOPES), {JOURNAL: 30})
    seen: list[tuple[str, int, int]] = []
    beside.backfill(["envelopes"], lambda *report: seen.append(report))
    end = journal.bounds().end
    assert seen == [("envelopes", end, end)]
    ingest.on_batch({journal.id: end}, 1)
    assert ingest.behind == {}
    assert content(data / "lake") == expected


@pytest.mark.more
def test_a_table_that_was_left_to_another_writer_needs_no_new_rows_to_catch_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    story = JournalBuilder(data)
    work(story, 1)
    story.close()
    journal = location.open_one(data)
    end = journal.bounds().end
    names = {"envelopes", "deliveries", "conversations", "latest_per_agent"}
    chosen = [step for step in steps.built_in() if step.table.name in names]
    ingest = Ingest(spark, journal, data / "lake", chosen)
    with LakeTable(data / "lake", ingest.table("envelopes").definition).writing():
        ingest.on_batch({journal.id: end})
        ingest.catch_up_skipped()
        assert set(ingest.behind) == {"envelopes", "conversations"}
    ingest.catch_up_skipped()
    assert ingest.behind == {}
    whole = Ingest(spark, journal, tmp_path / "lake", chosen)
    whole.on_batch({journal.id: end})
    assert content(data / "lake") == content(tmp_path / "lake")
    ingest.close()
    whole.close()


@pytest.mark.more
@pytest.mark.promise("Spark: pipeline", "a custom table is one function and one line")
def test_a_table_of_a_user_is_one_function_and_catches_up_by_itself(
    spark: SparkSession, data: Path, expected: dict, tmp_path: Path
) -> None:
    file = tmp_path / "my_tables.py"
    file.write_text(
        "from pyspark.sql import functions as f\n"
        "from penstock.spark import table\n"
        "@table(key=['journal', 'sender', 'minute'], window='minute')\n"
        "def sent(events):\n"
        "    minute = f.date_trunc('minute', 'recorded_at').alias('minute')\n"
        "    rows = events.where(\"event = 'enqueue'\")\n"
        "    return rows.groupBy('journal', 'sender', minute).agg(f.count('*').alias('envelopes'))\n"
        "@table()\n"
        "def given_up(events):\n"
        "    return events.where(\"event = 'dead'\").select('journal', 'offset', 'channel', 'id', 'reason')\n"
    )
    run(spark, data, ingest_of(spark, data), rows_max=10_000)
    mine = own_tables.load(spark, [file])
    ingest = ingest_of(spark, data, mine)
    assert ingest.end == {JOURNAL: 0}
    ingest.level()
    assert content(data / "lake") == expected
    sent = ingest.table("sent").rows().to_pylist()
    enqueued = [row for row in expected["envelopes"] if row["door"] == "courier"]
    assert sum(row["envelopes"] for row in sent) == len(enqueued)
    assert {row["sender"] for row in sent} == {"ann", "bob"}
    assert {row["id"] for row in ingest.table("given_up").rows().to_pylist()} == {
        row["id"] for row in expected["deliveries"] if row["outcome"] == "dead"
    }


@pytest.mark.promise("Spark: pipeline", "tables after an erasure equal tables that are built from the erased journal")
@pytest.mark.promise("Spark: pipeline", "`rebuild` replaces a table with a fresh one")
def test_a_rebuilt_table_is_swapped_in_by_one_commit(spark: SparkSession, data: Path, expected: dict) -> None:
    names = ["queue_minutes", "deliveries"]
    expected = {name: expected[name] for name in names}
    ingest = ingest_of(spark, data, only=set(names))
    run(spark, data, ingest, rows_max=10_000)
    assert content(data / "lake", names) == expected
    assert len(erase(ingest, data, {"id": {"job-0"}}).doomed[JOURNAL]) > 1
    expected = content(data / "lake", names)
    table = ingest.table("queue_minutes")
    wrong = table.rows().slice(0, 3)
    with table.writing():
        table.overwrite(wrong, {}, may_go_back=True)
    assert content(data / "lake", names) != expected
    before = table.version()
    assert rebuild_table(ingest, "queue_minutes") == location.open_one(data).bounds().end
    assert table.version() == before + 1
    assert table.progress(APP) == location.open_one(data).bounds().end
    assert content(data / "lake", names) == expected
    with pytest.raises(steps.StepError, match="there is no table `alerts`"):
        rebuild_table(ingest, "alerts")


@pytest.mark.promise("Spark: pipeline", "data loss stops the pipeline in a named state with a hint")
def test_rows_that_are_gone_stop_a_table_until_the_loss_is_accepted(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    story = JournalBuilder(data)
    work(story, 1)
    ingest = ingest_of(spark, data, only={"envelopes", "deliveries"})
    ingest.backfill()
    stopped = ingest.table("envelopes").progress(APP)
    work(story, 1)
    story.seal()
    work(story, 1)
    story.wait(3_600)
    story.seal(Retention(age_ms=1, bytes_max=0))
    work(story, 1)
    story.close()
    oldest = location.open_one(data).bounds().first
    assert stopped < oldest
    with pytest.raises(LostRowsError, match=f"DATA_LOSS.* rows {stopped} to {oldest - 1}.*accept-loss"):
        ingest_of(spark, data, only={"envelopes", "deliveries"}).backfill()
    # The same is reported before Spark starts, but not for tables that do not exist yet.
    with pytest.raises(LostRowsError, match=f"DATA_LOSS.* rows {stopped} to {oldest - 1}.*accept-loss"):
        check_kept(location.open_one(data), data / "lake", [step.table for step in steps.built_in()])
    check_kept(location.open_one(data), tmp_path / "lake", [step.table for step in steps.built_in()])
    skipped = accept(data)
    assert skipped["envelopes"] == (stopped, oldest)
    check_kept(location.open_one(data), data / "lake", [step.table for step in steps.built_in()])
    ingest_of(spark, data, only={"envelopes", "deliveries"}).backfill()
    made = content(data / "lake")
    assert made["gaps"] == [
        {"journal": JOURNAL, "from_offset": stopped, "to_offset": oldest - 1, "reason": "retention"}
    ]
    assert {row["offset"] >= oldest or row["offset"] < stopped for row in made["envelopes"]} == {True}
    assert accept(data) == {}


def test_a_journal_that_ends_before_its_tables_is_noticed(spark: SparkSession, data: Path) -> None:
    ingest = ingest_of(spark, data, only={"envelopes", "deliveries"})
    ingest.backfill()
    other = location.open_one(data)
    ingest.table("envelopes").append(ENVELOPES.schema.empty_table(), {APP: Progress(other.bounds().end, 10**6)})
    rewound = ingest_of(spark, data, only={"envelopes", "deliveries"})
    with pytest.raises(LostRowsError, match=r"JOURNAL_REWOUND.* later rows: envelopes;"):
        rewound.check()
    rebuild_table(rewound, "envelopes")
    rewound.check()


@pytest.mark.promise(
    "Spark: pipeline",
    "a table that an older lake lacks is filled from history, and the others are left untouched",
)
@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[1] / "fixtures").glob("data-*.tar.gz")), ids=lambda f: f.name
)
@pytest.mark.parametrize("names", first_of([OLD_AND_NEW, INGESTED], 1), ids=len)
def test_a_lake_and_checkpoints_of_an_earlier_version_are_gone_on_from(
    spark: SparkSession, file: Path, names: list[str], tmp_path: Path
) -> None:
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    data = tmp_path / "data"
    missing = [name for name in INGESTED if LakeTable(data / "lake", TABLES[name]).version() is None]
    before = content(data / "lake", [*INGESTED, *WATCHED])
    chosen = [step for step in steps.built_in() if step.table.name in names]
    assert all(before[name] for name in ("envelopes", "deliveries", "queue_minutes", "alerts", "agents"))
    story = JournalBuilder(data)
    rule(story, COPIES)
    story.us += 10 * 60_000_000
    work(story, 1)
    story.close()
    journal = location.open_one(data)
    assert (
        run(spark, data, ingest_of(spark, data, only=set(names)), rows_max=10_000) == 1
    )  # the checkpoint was followed
    run(spark, data, AlertWatch(spark, journal, data / "lake", AlertsSection(), None), "watch", 10_000)
    whole = Ingest(spark, journal, tmp_path / "lake", chosen)
    whole.backfill()
    whole._record_first_gap()
    assert content(data / "lake", names) == content(tmp_path / "lake", names)
    assert len(content(data / "lake", ["alerts"])["alerts"]) > len(before["alerts"])
    # It had no triggers when that version wrote it, so the table of their minutes came with what followed.
    assert "trigger_minutes" in missing
    minutes = content(data / "lake", ["trigger_minutes"])["trigger_minutes"]
    assert {(row["trigger"], row["hook"], row["streams"]) for row in minutes} == {("copies", "on_insert", 1)}
    assert [sum(row[name] for row in minutes) for name in ("fired", "sent", "failed", "suppressed")] == [
        4,
        4,
        0,
        4,
    ]


# Without a JVM


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[1] / "fixtures").glob("data-*.tar.gz")), ids=lambda f: f.name
)
@pytest.mark.promise(
    "Spark: pipeline", "a lake of an earlier version gets the clusters of its conversations and agents"
)
def test_an_older_lake_gets_clusters_once(file: Path, tmp_path: Path) -> None:
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    lake = tmp_path / "data" / "lake"
    app = f"{location.open_one(tmp_path / 'data').id}/0"
    for definition in (CONVERSATIONS, AGENTS):
        table = LakeTable(lake, definition)
        before, progress = table.rows(), table.progress(app)
        assert before.num_rows and progress is not None and "cluster" not in before.schema.names
        for _ in range(2):
            add_cluster(table)
        after, version = table.rows(), table.version()
        key = definition.key[1]
        assert after.drop(["cluster"]).sort_by(key) == before.sort_by(key)
        assert after.column("cluster") == after.column("journal") and table.progress(app) == progress
        add_cluster(LakeTable(lake, definition))
        table.merge(after.slice(0, 1), {app: Progress(progress, progress + 1)})
        assert (table.rows().num_rows, table.version()) == (before.num_rows, (version or 0) + 1), "the same key"


def test_rows_get_a_cluster_though_the_column_is_there(tmp_path: Path) -> None:
    """Another writer of the new version, such as a compaction, adds the column in a commit of its own."""
    hour = 3_600_000_000

    def agents(*rows: tuple[str, int, str | None]) -> pa.Table:
        made = [
            {"journal": "j1", "agent": name, "offset": at, "last_at": at * hour, "cluster": cluster}
            for name, at, cluster in rows
        ]
        return pa.Table.from_pylist(made, AGENTS.schema)

    schema = AGENTS.schema.remove(AGENTS.schema.get_field_index("cluster"))
    earlier = LakeTable(tmp_path, replace(AGENTS, schema=schema, key=("journal", "agent")))
    earlier.merge(agents(("kim", 1, None), ("sam", 2, None), ("ann", 3, None)).drop(["cluster"]), {APP: Progress(0, 4)})
    table = LakeTable(tmp_path, AGENTS)
    table.compact(is_forced=True)
    assert table.rows().column("cluster").null_count == 3
    # Rows that were written since have the same key as those without a cluster.
    table.merge(agents(("sam", 5, "j1"), ("ann", 3, "j1"), ("joe", 6, "j2")), {APP: Progress(4, 7)})
    for _ in range(2):
        add_cluster(table)
        version = table.version()
    found = sorted((row["agent"], row["offset"], row["cluster"]) for row in table.rows().to_pylist())
    assert found == [("ann", 3, "j1"), ("joe", 6, "j2"), ("kim", 1, "j1"), ("sam", 5, "j1")]
    assert table.progress(APP) == 7
    add_cluster(LakeTable(tmp_path, AGENTS))
    assert table.version() == version, "nothing is left to fill"


def test_a_rebuild_keeps_rows_of_journals_that_are_not_named(data: Path) -> None:
    ingest = ingest_of(None, data, only={"queue_minutes"})
    minute = {"journal": "other", "channel": "jobs", "minute": 0, "date": 0}
    ingest.table("queue_minutes").merge(pa.Table.from_pylist([minute], QUEUE_MINUTES.schema), {})
    with pytest.raises(LostRowsError, match="has rows of other journals, other"):
        rebuild_table(ingest, "queue_minutes")


def test_a_batch_without_rows_for_a_table_moves_its_progress_without_a_job(data: Path) -> None:
    ingest = ingest_of(None, data, only={"envelopes", "deliveries", "conversations"})
    assert ingest.end == {JOURNAL: 0}
    end = location.open_one(data).bounds().end
    unmet = tuple(ingest._conditions)
    ingest.advance(batch_between(ingest, 0, end, unmet))
    assert {name: ingest.table(name).progress(APP) for name in ("envelopes", "deliveries", "conversations")} == {
        "envelopes": end,
        "deliveries": end,
        "conversations": end,
    }
    assert ingest.table("envelopes").rows().num_rows == 0
    assert (ingest.end, ingest.behind) == ({JOURNAL: end}, {})
    ingest.close()
    again = ingest_of(None, data, only={"envelopes", "deliveries", "conversations"})
    assert again.end == {JOURNAL: end}, "progress is read from the tables"
    again.check()
    again.level()
    again.close()


def test_a_table_without_a_step_here_is_read_from_the_other_lake(data: Path, tmp_path: Path) -> None:
    whole = ingest_of(None, data)
    alone = whole.for_table(tmp_path / "aside", "conversations")
    assert alone.table("conversations").path.is_relative_to(tmp_path / "aside")
    assert alone.table("envelopes").path.is_relative_to(data / "lake")
    whole.close()
    alone.close()


BROKEN = """
from pyspark.sql import functions as f
from penstock.spark import table

def explode(value):
    raise ValueError(f"cannot read {value}")

@table("in_the_driver")
def first(events):
    if not events.isEmpty():
        raise LookupError("no such lookup")
    return events.select("journal", "offset")

@table("in_a_task")
def second(events):
    return events.select("journal", "offset", f.udf(explode)("event").alias("what"))

@table("in_the_jvm", newest="offset")
def third(events):
    return events.select("journal", "offset", (f.col("offset") / f.lit(0)).alias("what"))
"""


@pytest.mark.promise("Operations", "a user table that raises while it runs is named with its file, line and error")
def test_a_users_table_that_raises_is_named_with_its_line(spark: SparkSession, worked: Path, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(BROKEN)
    wanted = {
        "in_the_driver": (11, "LookupError: no such lookup"),
        "in_a_task": (6, "ValueError: cannot read "),
        "in_the_jvm": (20, "DIVIDE_BY_ZERO"),
    }
    for step in own_tables.load(spark, [file]):
        ingest = Ingest(spark, location.open_one(worked), tmp_path / "lake", [step])
        with pytest.raises(TableFailedError) as caught:
            ingest.backfill()
        ingest.close()
        line, text = wanted.pop(step.table.name)
        reporter = Reporter(tmp_path)
        assert reporter.fail(caught.value, "ingest") == 1, "it may pass"
        said = reporter.status.finding()
        assert f"the table `{step.table.name}` of `{file}`, line {line}: " in said.reason and text in said.reason
        assert "correct the function" in said.action
    assert wanted == {}
