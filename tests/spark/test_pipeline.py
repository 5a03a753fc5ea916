"""The pipeline on real journals and real Spark: faults do not change the final tables (invariant 9)."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.ipc.pipeline import AlertsSection, DeadLetterRule, SilenceRule, TriggerFailureRule
from penstock.journal.retention import Retention
from penstock.spark import location
from penstock.spark.lake.schemas import DELIVERIES, ENVELOPES, QUEUE_MINUTES, TABLES
from penstock.spark.lake.table import LakeTable
from penstock.spark.lake_tables.deliveries import deliveries
from penstock.spark.pipeline import gaps, steps
from penstock.spark.pipeline.batch import journal_frame
from penstock.spark.pipeline.gaps import LostRowsError, check_kept
from penstock.spark.pipeline.ingest import Ingest
from penstock.spark.pipeline.queries import CHECKPOINTS, start_query
from penstock.spark.pipeline.rebuild import rebuild_table
from penstock.spark.pipeline.watch import AlertWatch
from tests.spark.journal_builder import (
    COPIES,
    INGESTED,
    STRICT,
    WATCHED,
    JournalBuilder,
    content,
    rule,
    speak,
    talk,
    work,
)
from tests.spark.journaled import JOURNAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP = f"{JOURNAL}/0"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a few minutes of work in it, half of it sealed; tests that change it copy it."""
    data = tmp_path_factory.mktemp("told")
    story = JournalBuilder(data)
    rule(story, COPIES, STRICT)
    work(story, 1)
    rule(story)
    talk(story, 0)
    speak(story, 0)
    work(story, 1)
    story.seal()
    talk(story, 2)
    speak(story, 1)
    work(story, 2)
    story.wait(120)
    story.close()
    return data


@pytest.fixture
def data(told: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(told, tmp_path / "data"))


@pytest.fixture(scope="module")
def expected(spark: SparkSession, told: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The tables of that work, made in one go."""
    lake = tmp_path_factory.mktemp("expected")
    ingest = Ingest(spark, location.open_one(told), lake, steps.built_in())
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


def ingest_of(spark: SparkSession, data: Path, more: list[steps.Step] | None = None) -> Ingest:
    return Ingest(spark, location.open_one(data), data / "lake", steps.built_in() + (more or []))


def run(spark: SparkSession, data: Path, part: Ingest | AlertWatch, name: str = "ingest", rows_max: int = 70) -> int:
    """The query as it is shipped, once over what is there; returns how many batches it took."""
    batches = []

    def on_batch(rows: DataFrame, number: int) -> None:
        batches.append(number)
        part.on_batch(rows, number)

    checkpoint = data / "lake" / CHECKPOINTS / name
    query = start_query(
        spark,
        location.open_one(data),
        name,
        on_batch,
        checkpoint,
        start=part.end,
        rows_max=rows_max,
        pause_ms=None,
    )
    query.awaitTermination()
    assert query.exception() is None
    return len(batches)


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
    end = location.open_one(data).bounds().end
    assert {name: LakeTable(data / "lake", TABLES[name]).progress(APP) for name in INGESTED if name != "gaps"} == {
        name: end for name in INGESTED if name != "gaps"
    }
    # Without its checkpoint it begins where the tables are, and finds nothing to do.
    shutil.rmtree(data / "lake" / CHECKPOINTS)
    again = ingest_of(spark, data)
    assert again.end == end
    versions = {name: LakeTable(data / "lake", TABLES[name]).version() for name in INGESTED}
    run(spark, data, again)
    assert {name: LakeTable(data / "lake", TABLES[name]).version() for name in INGESTED} == versions
    assert content(data / "lake") == expected
    # A table that this lake never had, as after an upgrade, is filled from the history; the others are left alone.
    shutil.rmtree(data / "lake" / "trigger_minutes")
    upgraded = ingest_of(spark, data)
    assert upgraded.end == 0
    upgraded.level()
    assert upgraded.end == end
    del versions["trigger_minutes"]
    assert {name: LakeTable(data / "lake", TABLES[name]).version() for name in versions} == versions
    assert content(data / "lake") == expected


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

    kept: list[tuple[DataFrame, int]] = []
    broken = [step if step.table is not DELIVERIES else steps.Step(DELIVERIES, failing) for step in steps.built_in()]
    ingest = Ingest(spark, location.open_one(data), data / "lake", broken)
    journal = location.open_one(data)
    end = journal.bounds().end
    cuts = [0, 1, 40, 41, 90, end]
    for number, (first, last) in enumerate(pairwise(cuts)):
        rows = journal_frame(spark, journal.location, first, last)
        kept.append((rows, number))
        try:
            ingest.on_batch(rows, number)
        except RuntimeError:
            versions = (LakeTable(data / "lake", table).progress(APP) for table in (ENVELOPES, DELIVERIES))
            assert next(versions) == last != next(versions)
    for rows, number in kept:
        ingest.on_batch(rows, number)
    ingest.on_batch(journal_frame(spark, journal.location, 0, 1).where("false"), 99)  # a batch without rows
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
        ingest.on_batch(journal_frame(spark, journal.location, 0, 80), 0)
        assert ingest.behind == {"envelopes": 0, "conversations": 0}
        beside._catch_up(next(step for step in steps.built_in() if step.table is ENVELOPES), 30)
    seen: list[tuple[str, int, int]] = []
    beside.backfill(["envelopes"], lambda *told: seen.append(told))
    end = journal.bounds().end
    assert seen == [("envelopes", end, end)]
    ingest.on_batch(journal_frame(spark, journal.location, 80, end), 1)
    assert ingest.behind == {}
    assert content(data / "lake") == expected


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
    mine = steps.load(spark, [file])
    ingest = ingest_of(spark, data, mine)
    assert ingest.end == 0
    ingest.level()
    assert content(data / "lake") == expected
    sent = ingest.table("sent").rows().to_pylist()
    enqueued = [row for row in expected["envelopes"] if row["door"] == "courier"]
    assert sum(row["envelopes"] for row in sent) == len(enqueued)
    assert {row["sender"] for row in sent} == {"ann", "bob"}
    assert {row["id"] for row in ingest.table("given_up").rows().to_pylist()} == {
        row["id"] for row in expected["deliveries"] if row["outcome"] == "dead"
    }


def test_a_users_table_that_cannot_be_made_says_what_to_change(spark: SparkSession, tmp_path: Path) -> None:
    cases = {
        "absent.py": (None, "does not exist"),
        "empty.py": ("", "marks no function"),
        "clash.py": ("import penstock.spark as p\n@p.table()\ndef events(e): return e", "is built in"),
        "keyless.py": (
            "import penstock.spark as p\n@p.table(key=['journal', 'who'])\ndef mine(e): return e",
            "no column `who`",
        ),
    }
    for name, (text, said) in cases.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(steps.StepError, match=said):
            steps.load(spark, [tmp_path / name])


@pytest.mark.promise("Spark: pipeline", "`rebuild` replaces a table with a fresh one")
def test_a_rebuilt_table_is_swapped_in_by_one_commit(spark: SparkSession, data: Path, expected: dict) -> None:
    ingest = ingest_of(spark, data)
    run(spark, data, ingest, rows_max=10_000)
    table = ingest.table("queue_minutes")
    wrong = table.rows().slice(0, 3)
    with table.writing():
        table.overwrite(wrong, {}, may_go_back=True)
    assert content(data / "lake") != expected
    before = table.version()
    assert rebuild_table(ingest, "queue_minutes") == location.open_one(data).bounds().end
    assert table.version() == before + 1
    assert table.progress(APP) == location.open_one(data).bounds().end
    assert content(data / "lake") == expected
    with pytest.raises(steps.StepError, match="there is no table `alerts`"):
        rebuild_table(ingest, "alerts")


@pytest.mark.promise("Spark: pipeline", "data loss stops the pipeline in a named state with a hint")
def test_rows_that_are_gone_stop_a_table_until_the_loss_is_accepted(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    story = JournalBuilder(data)
    work(story, 1)
    ingest = ingest_of(spark, data)
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
        ingest_of(spark, data).backfill()
    # The same is reported before Spark starts, but not for tables that do not exist yet.
    with pytest.raises(LostRowsError, match=f"DATA_LOSS.* rows {stopped} to {oldest - 1}.*accept-loss"):
        check_kept(location.open_one(data), data / "lake", [step.table for step in steps.built_in()])
    check_kept(location.open_one(data), tmp_path / "lake", [step.table for step in steps.built_in()])
    skipped = gaps.accept(data)
    assert skipped["envelopes"] == (stopped, oldest)
    check_kept(location.open_one(data), data / "lake", [step.table for step in steps.built_in()])
    ingest_of(spark, data).backfill()
    made = content(data / "lake")
    assert made["gaps"] == [
        {"journal": JOURNAL, "from_offset": stopped, "to_offset": oldest - 1, "reason": "retention"}
    ]
    assert {row["offset"] >= oldest or row["offset"] < stopped for row in made["envelopes"]} == {True}
    assert gaps.accept(data) == {}


def test_a_journal_that_ends_before_its_tables_is_noticed(spark: SparkSession, data: Path) -> None:
    ingest = ingest_of(spark, data)
    ingest.backfill()
    other = location.open_one(data)
    from penstock.spark.lake.table import Progress

    ingest.table("envelopes").append(ENVELOPES.schema.empty_table(), {APP: Progress(other.bounds().end, 10**6)})
    rewound = ingest_of(spark, data)
    with pytest.raises(LostRowsError, match=r"JOURNAL_REWOUND.* later rows: envelopes;"):
        rewound.check()
    rebuild_table(rewound, "envelopes")
    rewound.check()


# Watching


RULES = AlertsSection(
    (
        DeadLetterRule("dead"),
        SilenceRule("quiet", for_ms=90_000, agent="bob"),
        TriggerFailureRule("failing", trigger="s*"),
    )
)


@pytest.fixture
def watch(spark: SparkSession) -> Callable[[Path], AlertWatch]:
    return lambda data: AlertWatch(spark, location.open_one(data), data / "lake", RULES, None)


@pytest.mark.promise(
    "Spark: pipeline",
    "alerts on rate, latency, dead letters, failing triggers and silence do not depend on how rows are batched",
)
def test_alerts_are_the_same_however_the_rows_come(
    spark: SparkSession, told: Path, watch: Callable[[Path], AlertWatch], tmp_path: Path
) -> None:
    results = []
    for name, rows_max in (("few", 10_000), ("many", 70)):
        data = Path(shutil.copytree(told, tmp_path / name))
        looking = watch(data)
        batches = run(spark, data, looking, "watch", rows_max)
        assert (batches > 3) == (name == "many")
        looking.on_clock(location.open_one(data).time_of(looking.end - 1) + 600_000_000)
        results.append(content(data / "lake", WATCHED))
    assert results[0] == results[1]
    dead = [row for row in results[0]["alerts"] if row["rule"] == "dead"]
    assert {(row["subject"], row["state"], row["value"]) for row in dead} == {
        ("jobs", "firing", 2.0),
        ("agents/ann/inbox", "firing", 4.0),
    }
    [failing] = [row for row in results[0]["alerts"] if row["rule"] == "failing"]
    assert (failing["subject"], failing["state"]) == ("strict", "resolved")
    assert "failed firings in a minute" in failing["message"]
    [quiet] = [row for row in results[0]["alerts"] if row["rule"] == "quiet" and row["state"] == "firing"]
    assert (quiet["subject"], quiet["value"], quiet["envelope_id"]) == ("bob", 90_000.0, None)
    assert {row["agent"] for row in results[0]["agents"]} == {"ann", "bob", "sam"}


def test_a_watch_that_starts_again_knows_what_fires(
    spark: SparkSession, data: Path, watch: Callable[[Path], AlertWatch]
) -> None:
    looking = watch(data)
    run(spark, data, looking, "watch", 10_000)
    late = location.open_one(data).time_of(looking.end - 1) + 600_000_000
    looking.on_clock(late)
    made = content(data / "lake", WATCHED)
    shutil.rmtree(data / "lake" / CHECKPOINTS)
    again = watch(data)
    assert again.end == looking.end
    again.on_clock(late + 1)
    assert content(data / "lake", WATCHED) == made


def test_a_watch_killed_between_its_two_tables_reports_no_agent_as_silent(
    spark: SparkSession, data: Path, watch: Callable[[Path], AlertWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alerts of a batch are committed and who was seen in it is not: the next run reads that up first."""
    journal = location.open_one(data)
    end = journal.bounds().end
    whole = watch(data)
    whole.on_batch(journal_frame(spark, journal.location, 0, end))
    expected_alerts = content(data / "lake", WATCHED)
    for name in WATCHED:
        shutil.rmtree(data / "lake" / name)
    killed = watch(data)
    killed.on_batch(journal_frame(spark, journal.location, 0, 20))
    with monkeypatch.context() as patch:
        patch.setattr(killed, "_update_agents", lambda part: None)
        killed.on_batch(journal_frame(spark, journal.location, 20, end - 3))
    again = watch(data)
    again.on_batch(journal_frame(spark, journal.location, end - 3, end))
    assert content(data / "lake", WATCHED) == expected_alerts


def test_the_minute_that_began_before_the_oldest_row_keeps_what_was_counted(spark: SparkSession, data: Path) -> None:
    """Retention cuts in the middle of a minute: a new count of its rest must not replace the whole."""
    ingest = ingest_of(spark, data)
    ingest.backfill()
    whole = {row["minute"]: row["enqueued"] for row in content(data / "lake", ["queue_minutes"])["queue_minutes"]}
    from penstock.journal.parquet_table import EventsTable

    bronze = EventsTable(data / "lake")
    bronze.remove(bronze.files(), 0)
    story = JournalBuilder(data)
    story.us += 4 * 60_000_000
    work(story, 1)
    story.close()
    ingest_of(spark, data).backfill()
    after = {row["minute"]: row["enqueued"] for row in content(data / "lake", ["queue_minutes"])["queue_minutes"]}
    assert {minute: after[minute] for minute in whole} == whole
    assert QUEUE_MINUTES.key == ("journal", "channel", "minute")


@pytest.mark.promise(
    "Spark: pipeline",
    "a table that an older lake lacks is filled from history, and the others are left untouched",
)
@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parent / "fixtures").glob("data-*.tar.gz")), ids=lambda f: f.name
)
def test_a_lake_and_checkpoints_of_an_earlier_version_are_gone_on_from(
    spark: SparkSession, file: Path, tmp_path: Path
) -> None:
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    data = tmp_path / "data"
    missing = [name for name in INGESTED if LakeTable(data / "lake", TABLES[name]).version() is None]
    before = content(data / "lake", [*INGESTED, *WATCHED])
    assert all(before[name] for name in ("envelopes", "deliveries", "queue_minutes", "alerts", "agents"))
    story = JournalBuilder(data)
    rule(story, COPIES)
    story.us += 10 * 60_000_000
    work(story, 1)
    story.close()
    journal = location.open_one(data)
    assert run(spark, data, ingest_of(spark, data), rows_max=10_000) == 1  # the checkpoint was followed
    run(spark, data, AlertWatch(spark, journal, data / "lake", AlertsSection(), None), "watch", 10_000)
    whole = Ingest(spark, journal, tmp_path / "lake", steps.built_in())
    whole.backfill()
    whole._record_first_gap()
    assert content(data / "lake") == content(tmp_path / "lake")
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
