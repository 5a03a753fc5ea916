"""The table commands: SQL without Spark, and maintenance of the lake."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys

import pytest

from penstock.cli import main
from penstock.spark.lake.table import LakeTable, Progress
from tests.server_process import environment
from tests.spark.lakes import APP, COUNTS, NOTES, counted, counts, notes


@pytest.fixture
def data(tmp_path):
    """A data directory with two tables of five commits each."""
    for number in range(5):
        span = {APP: Progress(number, number + 1)}
        LakeTable(tmp_path / "lake", NOTES).append(notes(number, number + 1), span)
        LakeTable(tmp_path / "lake", COUNTS).merge(counts({("a", 0): number, (f"b{number}", 0): 1}), span)
    return tmp_path


@pytest.fixture
def cli(data, capsys):
    def run(*words, code=0, at=data):
        capsys.readouterr()
        assert main([*words, "--data", str(at)]) == code, capsys.readouterr()
        return capsys.readouterr()

    return run


@pytest.mark.promise("Spark: pipeline", "`penstock sql` and `penstock lake` run without a JVM")
def test_a_question_is_answered(cli):
    shown = cli("sql", "select offset, recorded_at, text from notes where offset >= 3 order by offset").out
    header, *lines = shown.splitlines()
    assert header.split() == ["offset", "recorded_at", "text"]
    assert lines[0].split() == ["3", "2026-03-01T00:00:03.000Z", "note", "3"] and len(lines) == 2


def test_json_has_every_kind_of_value(cli):
    [row] = [json.loads(line) for line in cli("sql", "select * from notes where offset = 4", "--json").out.splitlines()]
    assert row == {
        "journal": "j1",
        "offset": 4,
        "date": "2026-03-01",
        "recorded_at": "2026-03-01T00:00:04.000000Z",
        "tags": ["t1"],
        "headers": {"k": "4"},
        "text": "note 4",
    }
    values = (
        "select arrow_cast('ab', 'Binary') as b, arrow_cast(x'ff00', 'Binary') as c, 1.5 as d, null as e, true as f"
    )
    [row] = [json.loads(line) for line in cli("sql", values, "--json").out.splitlines()]
    assert row == {"b": "ab", "c": "/wA=", "d": 1.5, "e": None, "f": True}


def test_csv_can_be_read_back(cli):
    shown = cli("sql", "select offset, tags, text from notes order by offset", "--csv").out
    rows = list(csv.reader(io.StringIO(shown)))
    assert rows[:2] == [["offset", "tags", "text"], ["0", '["t0"]', "note 0"]] and len(rows) == 6


def test_more_rows_than_the_limit_are_said_to_be_there(cli):
    seen = cli("sql", "select offset from notes", "--limit", "2", "--json")
    assert len(seen.out.splitlines()) == 2 and "--limit 0" in seen.err
    seen = cli("sql", "select offset from notes", "--limit", "5", "--json")
    assert len(seen.out.splitlines()) == 5 and seen.err == ""
    assert len(cli("sql", "select offset from notes", "--limit", "0", "--json").out.splitlines()) == 5
    assert "no rows" in cli("sql", "select offset from notes where offset < 0").err


def test_tables_can_be_joined_listed_and_described(cli):
    query = "with m as (select count(*) as total from notes) select total, count(*) as c from m, counts group by total"
    assert json.loads(cli("sql", query, "--json").out) == {"total": 5, "c": 6}
    assert cli("sql", "SHOW TABLES", "--json").out.splitlines() == ['{"table":"counts"}', '{"table":"notes"}']
    assert "recorded_at" in cli("sql", "describe notes").out
    assert "plan" in cli("sql", "explain select * from notes").out
    assert cli("sql", "select 'drop; insert' as \"set\" -- copy\n from notes limit 1").out


@pytest.mark.parametrize(
    "query",
    [
        "copy (select 1) to '{file}'",
        "explain analyze copy (select 1) to '{file}'",
        "/* select */ copy (select 1) to '{file}'",
        "create external table x stored as csv location '{file}'",
        "create table x as select 1",
        "insert into notes select * from notes",
        "with a as (select * from notes) insert into notes select * from a",
        "drop table notes",
        "select 1; drop table notes",
        "",
    ],
)
def test_only_questions_are_taken(cli, tmp_path, query):
    file = tmp_path / "out.csv"
    seen = cli("sql", query.format(file=file), code=1)
    assert seen.err.startswith("error: InvalidRequest") and "hint:" in seen.err
    assert not file.exists()
    assert json.loads(cli("sql", "select count(*) as n from notes", "--json").out) == {"n": 5}


def test_what_is_not_there_is_said_with_what_is(cli, tmp_path):
    assert "there are: counts, notes" in cli("sql", "select * from nope", code=1).err
    seen = cli("sql", "select nope from notes", code=1)
    assert "nope" in seen.err and "describe" in seen.err
    assert "penstock pipeline run --once" in cli("sql", "select 1", code=1, at=tmp_path / "fresh").err
    assert "penstock pipeline run --once" in cli("lake", "ls", at=tmp_path / "fresh").err
    assert json.loads(cli("sql", "select * from nope", "--json", code=1).out)["error"]["code"] == "InvalidRequest"


@pytest.mark.promise("Spark: pipeline", "`penstock sql` and `penstock lake` run without a JVM")
def test_the_lake_is_listed_with_how_far_it_is(cli):
    tables = json.loads(cli("lake", "ls", "--json").out)["tables"]
    assert [(one["table"], one["rows"], one["version"], one["offset"]) for one in tables] == [
        ("counts", 6, 5, 5),
        ("notes", 5, 5, 5),
    ]
    assert tables[1]["files"] == 5 and tables[1]["bytes"] > 0 and tables[1]["at"].endswith("Z")
    assert "ago" in cli("lake", "ls").out


def test_versions_are_listed_with_their_ranges(cli):
    versions = json.loads(cli("lake", "history", "notes", "--json", "--limit", "2").out)["versions"]
    assert [(one["version"], one["operation"], one["from"], one["to"]) for one in versions] == [
        (5, "append", 4, 5),
        (4, "append", 3, 4),
    ]
    assert all(one["readable"] for one in versions)
    assert "there are: `counts`, `notes`" in cli("lake", "history", "nope", code=1).err


@pytest.mark.promise("Spark: pipeline", "`penstock sql` and `penstock lake` run without a JVM")
def test_small_files_and_old_files_go_by_hand(cli, data):
    before = counted(LakeTable(data / "lake", COUNTS).rows())
    done = json.loads(cli("lake", "compact", "--json", "--table", "notes").out)["tables"]
    assert done == [{"table": "notes", "merged": 5, "into": 1, "log_entries_removed": 0}]
    assert "nothing to do" in cli("lake", "compact", "--table", "notes").out
    [orphan] = LakeTable(data / "lake", NOTES).stage(notes(9, 10).to_batches())
    assert "nothing to do" in cli("lake", "vacuum", "--table", "notes").out  # it is not old
    os.utime(data / "lake" / "notes" / orphan.path, (1, 1))
    [done] = json.loads(cli("lake", "vacuum", "--json", "--table", "notes").out)["tables"]
    assert (done["removed"], done["bytes"]) == (1, orphan.size)
    assert cli("lake", "compact").out.count("\n") == 2
    assert counted(LakeTable(data / "lake", COUNTS).rows()) == before
    assert "sealing" in cli("lake", "compact", "--table", "events", code=1).err


@pytest.mark.promise("Spark: pipeline", "`penstock sql` and `penstock lake` run without a JVM")
def test_asking_loads_no_spark(data):
    script = (
        "import sys; from penstock.cli import main; main(sys.argv[1:]);"
        "print([name for name in ('pyspark', 'penstock.server', 'aiohttp') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "sql", "select 1 from notes", "--json", "--data", str(data)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
