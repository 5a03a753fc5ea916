"""`penstock sql`: questions to the tables, without Spark."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pytest

from tests.server_process import environment

pytestmark = pytest.mark.usefixtures("data")


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


def use_terminal(monkeypatch):
    """Standard output is a terminal of 60 columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")


@pytest.mark.promise(
    "SDK and command line", "`penstock sql` fits the terminal, and an error points at its place in the query"
)
def test_a_result_wider_than_the_terminal_is_printed_as_records(cli, monkeypatch):
    use_terminal(monkeypatch)
    lines = cli("sql", "select * from notes order by offset limit 2").out.splitlines()
    assert lines[0] == "row 1" and lines[8] == "row 2" and len(lines) == 16
    assert lines[1:3] == ["  journal      j1", "  offset       0"]
    assert lines[5:7] == ['  tags         ["t0"]', '  headers      {"k":"0"}']
    assert max(map(len, lines)) <= 60
    narrow = cli("sql", "select offset, text from notes order by offset limit 1").out.splitlines()
    assert narrow == ["offset  text", "0       note 0"]
    plan = cli("sql", "explain select * from notes").out.splitlines()
    assert plan[0] == "row 1" and len(plan) > 6, "a text of several lines keeps them"


def test_wide_prints_one_line_a_row_whatever_the_terminal(cli, monkeypatch):
    use_terminal(monkeypatch)
    lines = cli("sql", "select * from notes order by offset limit 2", "--wide").out.splitlines()
    assert len(lines) == 3 and len(lines[1]) > 60 and lines[0].split()[:2] == ["journal", "offset"]


def test_a_pipe_gets_one_line_a_row(cli):
    query = "select *, repeat('x', 300) as long, '日本' as wide, 1 as last from notes order by offset limit 2"
    lines = cli("sql", query).out.splitlines()
    assert len(lines) == 3 and "x" * 300 in lines[1]
    assert lines[0].endswith("wide  last") and lines[1].endswith("日本  1"), "a wide character takes two columns"
    assert cli("sql", "select offset from notes where offset < 0").out == "offset\n"


@pytest.mark.parametrize(
    ("query", "mark"),
    [
        ("select * frm notes", "  select * frm notes\n           ^\n"),
        ("explain select * frm notes", "  explain select * frm notes\n                   ^\n"),
        ("select\n\t*\n  , from notes x y", "    , from notes x y\n                   ^\n"),
        ("selec 1", "  selec 1\n  ^\n"),
    ],
)
def test_an_error_points_at_its_place_in_the_query(cli, query, mark):
    seen = cli("sql", query, code=1)
    assert seen.err.startswith(mark) and "error: InvalidRequest: expected" in seen.err
    line, column = query[: query.index(mark.split("\n")[0].lstrip())].count("\n") + 1, len(mark.split("\n")[1]) - 2
    assert f"(line {line}, column {column})" in seen.err


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
    (tmp_path / "fresh" / "journal").mkdir(parents=True)
    assert "penstock pipeline run --once" in cli("sql", "select 1", code=1, at=tmp_path / "fresh").err
    assert json.loads(cli("sql", "select * from nope", "--json", code=1).out)["error"]["code"] == "InvalidRequest"


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
