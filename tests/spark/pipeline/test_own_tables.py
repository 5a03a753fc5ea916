"""Tables of users: every kind ends in the same rows, however the journal is cut into batches."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.journal.lake_location import LakePath
from penstock.spark import location
from penstock.spark.lake.catalog import open_table
from penstock.spark.lake.schemas import TableDefinition
from penstock.spark.pipeline import steps
from penstock.spark.pipeline.batch import JournalBatch
from penstock.spark.pipeline.expectations import Expectation, ExpectationError
from penstock.spark.pipeline.journal_rows import JournalRange
from penstock.spark.pipeline.own_tables import _marks, load, parse_span
from penstock.spark.pipeline.rebuild import rebuild_table
from tests.object_store import ObjectStore
from tests.spark.journaled import JOURNAL
from tests.spark.pipeline.queried import APP, ingest_of, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = """
from pyspark.sql import functions as f
from penstock.spark import expect, table

SENT = "event = 'enqueue' and sender is not null"

@table(key=["journal", "sender", "start"], window="2 minutes", where=SENT)
@expect("few", "envelopes <= 8", on_fail="drop")
def windows(events):
    start = f.window("recorded_at", "2 minutes")["start"].alias("start")
    return events.groupBy("journal", "sender", start).agg(f.count("*").alias("envelopes"), f.max("offset").alias("offset"))

@table(key=["journal", "channel"], session="15 seconds", window="3 minutes", where=SENT)
def sessions(events):
    each = events.groupBy("journal", "channel", "session_start", "session_end")
    return each.agg(f.count("*").alias("envelopes"))

@table(key=["journal", "id"], join=["envelopes", "deliveries"])
@expect("settled once", "times <= 1")
def outcomes(envelopes, deliveries):
    ends = deliveries.groupBy("journal", "id").agg(f.count("*").alias("times"), f.max_by("outcome", "offset").alias("outcome"))
    sent = envelopes.groupBy("journal", "id").agg(f.min("offset").alias("offset"), f.min("recorded_at").alias("sent_at"))
    return sent.join(ends, ["journal", "id"], "left").withColumn("times", f.coalesce("times", f.lit(0)))

@table(key=["journal", "sender"], state="journal string, sender string, envelopes bigint, longest bigint", where=SENT)
def totals(events, before):
    new = events.select("journal", "sender", f.lit(1).cast("bigint").alias("envelopes"), f.col("bytes").cast("bigint").alias("longest"))
    return before.unionByName(new).groupBy("journal", "sender").agg(f.sum("envelopes").alias("envelopes"), f.max("longest").alias("longest"))

@table(key=["journal", "offset"], where=SENT)
@expect("not asked", "id not like 'ask-%'", on_fail="drop")
@expect("small", "bytes < 10")
def jobs(events):
    return events.select("journal", "offset", "id", "bytes")
"""
OWN = ["windows", "sessions", "outcomes", "totals", "jobs"]
ENDS = {"ack": "acked", "dead": "dead", "drop": "dropped", "purge": "purged"}
SOURCES = {"envelopes", "deliveries"}


def rows(lake: LakePath, names: list[str] = OWN) -> dict[str, list[dict[str, Any]]]:
    return {name: sorted(open_table(lake, name).rows().to_pylist(), key=str) for name in names}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("kinds") / "kinds.py"
    file.write_text(KINDS)
    return file


@pytest.fixture(scope="module")
def made(spark: SparkSession, kinds: Path) -> list[steps.Step]:
    return load(spark, [kinds])


def journal_rows(data: Path) -> list[dict[str, Any]]:
    journal = location.open_one(data)
    bounds = journal.bounds()
    return [row for batch in journal.batches(bounds.first, bounds.end) for row in batch.to_pylist()]


def reference(data: Path) -> dict[str, list[dict[str, Any]]]:
    """The tables, computed from the journal without Spark."""
    events = journal_rows(data)
    sent = [row for row in events if row["event"] == "enqueue" and row["sender"]]
    one = {"journal": JOURNAL}
    windows: dict[tuple[str, datetime], list[int]] = defaultdict(list)
    sessions: dict[str, list[list[datetime]]] = defaultdict(list)
    totals: dict[str, list[int]] = defaultdict(list)
    for row in sent:
        at = row["recorded_at"]
        windows[row["sender"], at.replace(minute=at.minute // 2 * 2, second=0, microsecond=0)].append(row["offset"])
        totals[row["sender"]].append(row["bytes"])
        known = sessions[row["channel"]]
        is_same = known and at - known[-1][-1] < timedelta(seconds=15)
        if is_same and at.timestamp() // 180 == known[-1][-1].timestamp() // 180:
            known[-1].append(at)
        else:
            known.append([at])
    ends: dict[str, list[str]] = defaultdict(list)
    for row in events:
        if row["event"] in ENDS and row["door"] == "courier":
            ends[row["id"]].append(ENDS[row["event"]])
    begun = {row["id"]: row for row in reversed(events) if row["event"] in ("enqueue", "envelope")}
    return {
        "windows": [
            one | {"sender": sender, "start": start, "envelopes": len(found), "offset": max(found)}
            for (sender, start), found in windows.items()
            if len(found) <= 8
        ],
        "sessions": [
            one | {"channel": channel, "session_start": times[0], "session_end": times[-1], "envelopes": len(times)}
            for channel, found in sessions.items()
            for times in found
        ],
        "outcomes": [
            one
            | {"id": id_, "offset": row["offset"], "sent_at": row["recorded_at"]}
            | {"times": len(ends[id_]), "outcome": ends[id_][-1] if ends[id_] else None}
            for id_, row in begun.items()
        ],
        "totals": [
            one | {"sender": sender, "envelopes": len(sizes), "longest": max(sizes)} for sender, sizes in totals.items()
        ],
        "jobs": [
            {name: row[name] for name in ("journal", "offset", "id", "bytes")}
            for row in sent
            if not row["id"].startswith("ask-")
        ],
    }


def ordered(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    return {name: sorted(str(sorted(row.items())) for row in found) for name, found in tables.items()}


@pytest.fixture(scope="module")
def expected(worked: Path) -> dict[str, list[str]]:
    found = reference(worked)
    assert all(found.values())
    assert {row["envelopes"] for row in found["sessions"]} > {1}, "some have several rows"
    return ordered(found)


@pytest.mark.promise(
    "Spark: pipeline", "9: windows, sessions, joins and states of users are the same however the journal is cut"
)
@pytest.mark.more
@pytest.mark.parametrize("case", [(0, OWN[1:4:2]), *((seed, OWN) for seed in range(1, 5))])
def test_every_kind_of_table_is_the_same_however_the_journal_is_cut(
    spark: SparkSession, data: Path, made: list[steps.Step], expected: dict[str, list[str]], case: tuple[int, list[str]]
) -> None:
    _check_cut(spark, data, data / "lake", made, expected, *case)


@pytest.mark.promise("The lake", "tables of users are the same in S3 as on a disk")
@pytest.mark.more
def test_every_kind_of_table_is_the_same_in_an_object_store(
    spark: SparkSession,
    data: Path,
    made: list[steps.Step],
    expected: dict[str, list[str]],
    object_store: ObjectStore,
    tmp_path: Path,
) -> None:
    object_store.break_answers("PUT _delta_log/0", "PUT /part-")
    _check_cut(spark, data, object_store.lake(tmp_path), made, expected, 1, OWN)


def _check_cut(
    spark: SparkSession,
    data: Path,
    lake: LakePath,
    made: list[steps.Step],
    expected: dict[str, list[str]],
    seed: int,
    names: list[str],
) -> None:
    """Cut at random, replayed, and at last one of them rebuilt in one go; with the first seed, each of them."""
    dice = random.Random(seed)
    is_whole = names == OWN
    some = [step for step in made if step.table.name in names]
    ingest = ingest_of(spark, data, some, SOURCES if is_whole else set(), lake)
    journal = location.open_one(data)
    end = journal.bounds().end
    first = 0
    for cut in [*sorted(dice.sample(range(1, end), 3 if is_whole else 1)), end]:
        begin = dice.randint(0, first)  # rows that were there before come again
        part = JournalRange(journal, begin, cut, journal.time_of(cut - 1))
        ingest.advance(JournalBatch(spark, ingest.table, ingest.group, {JOURNAL: part}))
        first = cut
    assert ordered(rows(lake, names)) == {name: expected[name] for name in names}
    if is_whole:
        failed = {(one.table, one.name): one.failed for one in ingest.expectations.report()}
        assert failed["jobs", "small"] == sum(row["envelopes"] for row in reference(data)["totals"])
        assert failed["windows", "few"] >= 1
        for name in OWN if seed == 1 else [dice.choice(OWN)]:
            rebuild_table(ingest, name)
            assert ordered(rows(lake, [name]))[name] == expected[name]
    ingest.close()


STRICT = """
from penstock.spark import expect, table

@table()
@expect("no job", "id not like 'job-%'", on_fail="fail")
def strict(events):
    return events.where("event = 'enqueue'").select("journal", "offset", "id")

@table(key=["journal", "offset"], join=["strict"])
def reader(strict):
    return strict

@table(where="event = 'dead'")
def other(events):
    return events.select("journal", "offset")
"""


@pytest.mark.more
@pytest.mark.promise("Spark: pipeline", "an expectation that fails stops its table alone and names a row")
def test_an_expectation_that_fails_stops_its_table_and_no_other(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "strict.py"
    file.write_text(STRICT)
    ingest = ingest_of(spark, data, load(spark, [file]), set())
    run(spark, data, ingest, rows_max=10_000)
    assert set(ingest.stopped) == {"strict", "reader"} and ingest.behind == {}
    reason = str(ingest.stopped["strict"])
    sent = [row for row in journal_rows(data) if row["event"] == "enqueue"]
    jobs = [row for row in sent if row["id"].startswith("job-")]
    said = f"rows that fail the expectation `no job` (id not like 'job-%'): {len(jobs)}, such as journal={JOURNAL}, offset="
    assert f"table `strict`: {said}{jobs[0]['offset']};" in reason
    assert "reads the table `strict`" in str(ingest.stopped["reader"])
    end = location.open_one(data).bounds().end
    assert ingest.start_offset() == ingest.end == {JOURNAL: end} and ingest.table("other").progress(APP) == end
    assert not list((data / "lake" / "strict").glob("**/*.parquet")), "no row of the failed batch is left"
    with pytest.raises(ExpectationError):
        ingest.backfill(["strict"])
    ingest.close()


@pytest.mark.more
def test_a_stopped_table_goes_on_after_its_file_is_corrected(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "strict.py"
    for text in (STRICT, STRICT.replace('"fail"', '"drop"')):
        file.write_text(text)
        ingest = ingest_of(spark, data, load(spark, [file]), set())
        ingest.level()
        ingest.backfill(goes_on=True)
        ingest.close()
        assert bool(ingest.stopped) is (text == STRICT)
    sent = [row for row in journal_rows(data) if row["event"] == "enqueue" and not row["id"].startswith("job-")]
    assert ingest.table("reader").rows().num_rows == len(sent)


def test_a_users_table_that_cannot_be_made_says_what_to_change(spark: SparkSession, tmp_path: Path) -> None:
    cases = {
        "absent.py": (None, "does not exist"),
        "empty.py": ("", "marks no function"),
        "clash.py": ("import penstock.spark as p\n@p.table()\ndef events(e): return e", "is built in"),
        "keyless.py": (
            "import penstock.spark as p\n@p.table(key=['journal', 'who'])\ndef mine(e): return e",
            "no column `who`",
        ),
        "both.py": (
            "import penstock.spark as p\n@p.table(newest='offset', state='a int')\ndef b(e): return e",
            "one of `newest`",
        ),
        "span.py": ("import penstock.spark as p\n@p.table(window='soon')\ndef b(e): return e", "`window` is `soon`"),
        "alone.py": (
            "import penstock.spark as p\n@p.table(key=['id'], session='1 hour')\ndef b(e): return e",
            "has no `journal`",
        ),
        "join.py": ("import penstock.spark as p\n@p.table(join=['nothing'])\ndef b(e): return e", "which is no table"),
        "offset.py": (
            "import penstock.spark as p\n@p.table(key=['journal'], join=['queue_minutes'])\ndef b(e): return e",
            "`queue_minutes`, which has no column `offset`",
        ),
        "where.py": (
            "import penstock.spark as p\n@p.table(where='nope = 1')\ndef b(e): return e",
            "line 2: AnalysisException",
        ),
        "expects.py": (
            "import penstock.spark as p\n@p.table()\n@p.expect('x', 'nope = 1')\ndef b(e): return e",
            "`b` of .*line 2: AnalysisException",
        ),
        "state.py": (
            "import penstock.spark as p\n@p.table(key=['journal'], state='journal string')\n"
            "@p.expect('x', 'true', on_fail='drop')\ndef b(e, s): return s",
            "`b` cannot be dropped",
        ),
    }
    for name, (text, said) in cases.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(steps.StepError, match=said):
            load(spark, [tmp_path / name])


def test_users_tables_that_clash_or_do_not_load_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    mark = "import penstock.spark as p\n@p.table()\ndef {}(e): return e"
    for texts, said in (
        ([mark.format("_hidden")], "cannot be a table's name"),
        (["import no_such_module_anywhere"], "line 1, cannot be loaded: ModuleNotFoundError"),
        (
            [mark.format("early").replace("return e", "\n    raise KeyError('x')")],
            r"`early` of .*file0.py`, line 4: KeyError: 'x'",
        ),
        (
            [mark.format("absent").replace("return e", "return None")],
            r"`absent` of .*file0.py`, line 2: AttributeError",
        ),
        ([mark.format("errors"), mark.format("errors")], r"file1.*there is already a table `errors`"),
    ):
        files = [tmp_path / f"file{number}.py" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        with pytest.raises(steps.StepError, match=said):
            load(spark, files)


# Without a JVM


def test_a_mark_keeps_the_function_and_says_how_rows_are_written(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from penstock.spark import table\n"
        "@table()\ndef plain(events): return events\n"
        "@table('renamed', key=['journal', 'who'], window='minute')\ndef counted(events): return events\n"
        "@table(newest='offset')\ndef latest(events): return events\n"
        "@table(key=['journal', 'sender'], session='90 seconds')\ndef visits(events): return events\n"
        "assert plain(1) == 1, 'the function is still a function'\n"
    )
    assert [(one.name, one.write, one.merge_key) for one in _marks(file)] == [
        ("plain", "append", ("journal", "offset")),
        ("renamed", "merge", ("journal", "who")),
        ("latest", "merge", ("journal", "offset")),
        ("visits", "merge", ("journal", "sender", "session_start")),
    ]


def test_a_duration_is_a_number_and_a_unit() -> None:
    assert [parse_span(text, "window") for text in ("minute", "15 minutes", "1 hour", "31 days")] == [
        60_000_000, 900_000_000, 3_600_000_000, 2_678_400_000_000,
    ]  # fmt: skip
    for text in ("", "0 minutes", "32 days", "1 month", "15min", "-1 hour"):
        with pytest.raises(steps.StepError, match="write it as `15 minutes`"):
            parse_span(text, "window")


@pytest.mark.promise("Spark: pipeline", "an expectation that fails stops its table alone and names a row")
def test_a_table_stops_and_the_others_go_on(data: Path) -> None:
    """The same as with Spark, with rows that are there already."""
    schema = pa.schema({"journal": pa.string(), "offset": pa.int64()})
    one = pa.table({"journal": [JOURNAL], "offset": [3], "_expectation_0": [False]})
    expected = Expectation("no threes", "offset != 3", "fail")
    tables = {
        name: TableDefinition(name, schema, tuple(schema.names), "merge") for name in ("strict", "reader", "other")
    }
    made = [
        steps.Step(tables["strict"], lambda batch: one, expectations=(expected,)),
        steps.Step(tables["reader"], lambda batch: schema.empty_table(), after=("strict",)),
        steps.Step(tables["other"], lambda batch: one.select(schema.names)),
    ]
    ingest = ingest_of(None, data, made, set())
    end = location.open_one(data).bounds().end
    ingest.level()
    assert ingest.backfill(goes_on=True) == end and set(ingest.stopped) == {"strict", "reader"}
    assert f"`no threes` (offset != 3): 1, such as journal={JOURNAL}, offset=3" in str(ingest.stopped["strict"])
    assert ingest.start_offset() == {JOURNAL: end} and ingest.table("other").rows().num_rows == 1
    assert ingest.table("strict").progress(APP) is None
    with pytest.raises(ExpectationError):
        ingest.backfill(["strict"])
    ingest.close()
