"""SQL over the tables: reads are answered, and the engine's own plan stops everything else."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.core.errors import PenstockError
from penstock.journal.delta_log import newest_entry, table_names
from penstock.journal.sql import ask


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_deltalake(folder / "lake" / "notes", pa.table({"n": [1, 2, 3], "text": ["a", "b", "c"]}))
    (folder / "secret.csv").write_text("word\nopen-sesame\n")
    return folder


def files(folder):
    return sorted(os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)


READING = [
    ("select n from notes order by n", [[1], [2], [3]]),
    ("-- a word first\nselect count(*) from notes", [[3]]),
    ("/* one /* in another */ */ (select max(n) from notes)", [[3]]),
    ("with a as (select n from notes) select sum(n) from a", [[6]]),
    (
        "with recursive t as (select 1 as n union all select n + 1 from t where n < 3) select * from t",
        [[1], [2], [3]],
    ),
    ("select 'copy; drop table notes' as \"insert\" from notes where n = 1;", [["copy; drop table notes"]]),
    ("select $$it's$$ from notes where n = 1", [["it's"]]),
    ("values (1), (2)", [[1], [2]]),
    ("show tables", [["notes"]]),
    ("  SHOW   TABLES ; ", [["notes"]]),
]


@pytest.mark.parametrize(("query", "rows"), READING)
def test_a_question_is_answered(data, query, rows):
    assert list(ask(data / "lake", query).rows) == rows


@pytest.mark.parametrize(
    "query",
    ["describe notes", "desc notes", "show columns from notes", "explain select * from notes",
     "EXPLAIN ANALYZE VERBOSE select * from notes", "explain format tree select * from notes"],
)  # fmt: skip
def test_tables_and_plans_can_be_looked_at(data, query):
    assert list(ask(data / "lake", query).rows)


def test_columns_have_names_and_types(data):
    answer = ask(data / "lake", "select n, text, n / 2.0 as half from notes")
    assert (answer.names, answer.types) == (["n", "text", "half"], ["int64", "string", "double"])


ATTACKS = [
    "copy (select 1) to '{out}'",
    "copy notes to '{out}' stored as csv",
    "explain analyze copy (select 1) to '{out}'",
    "explain analyze verbose copy (select 1) to '{out}'",
    "explain/**/analyze copy (select 1) to '{out}'",
    "explain verbose /**/ analyze copy (select 1) to '{out}'",
    "-- select\nexplain analyze copy (select 1) to '{out}'",
    "analyze copy (select 1) to '{out}'",
    "/* /* */ select */ analyze copy (select 1) to '{out}'",
    "/* /* */ select */ copy (select 1) to '{out}'",
    "/*/**/*/copy (select 1) to '{out}'",
    "--\rselect 1\ncopy (select 1) to '{out}'",
    "select 1; copy (select 1) to '{out}'",
    "select ';'; copy (select 1) to '{out}' --'",
    "format tree copy (select 1) to '{out}'",
    "; copy (select 1) to '{out}'",
    "with a as (select $$'$$ as x) insert into notes select 4, x from a -- '",
    "with a as (select E'\\'' as x) insert into notes select 4, x from a -- '",
    'with "a""" as (select 1) insert into notes values (4, \'d\') -- "',
    "insert into notes values (4, 'd')",
    "insert overwrite notes values (4, 'd')",
    "delete from notes",
    "update notes set n = 0",
    "truncate table notes",
    "merge into notes using notes b on notes.n = b.n when matched then delete",
    "drop table notes",
    "drop table if exists notes; select 1",
    "alter table notes rename to other",
    "create table x as select * from notes",
    "create view x as select * from notes",
    "create external table x stored as csv location '{secret}'",
    "create external table x stored as csv location '{secret}'; select * from x",
    "explain analyze create external table x stored as csv location '{secret}'",
    "select * into x from notes",
    "set datafusion.execution.batch_size = 1",
    "reset datafusion.execution.batch_size",
    "prepare p as select 1",
    "execute p",
    "begin",
    "call x()",
    "create function f() returns int return 1",
    "create database x",
    "use x",
    "select * from '{secret}'",
    'select * from "{secret}"',
    "select * from 'file://{secret}'",
    "select * from read_csv('{secret}')",
    "select * from csv('{secret}')",
    "select * from read_parquet('{secret}')",
    "select * from parquet_metadata('{secret}')",
    "select * from notes, '{secret}'",
    "describe '{secret}'",
    "table '{secret}'",
    "select read_text('{secret}')",
    "select pg_read_file('{secret}')",
    "",
    "   \n\t",
    "-- nothing",
    ";",
    "\x00select 1",
    "(" * 5_000 + "select 1" + ")" * 5_000,
]  # fmt: skip


@pytest.mark.promise("Tail and SQL for administrators", "a query only reads, however it is written")
@pytest.mark.parametrize("query", ATTACKS, ids=range(len(ATTACKS)))
def test_whatever_is_no_question_is_refused_before_anything_happens(data, tmp_path, query):
    before = files(data)
    text = query.format(out=tmp_path / "out.csv", secret=data / "secret.csv")
    with pytest.raises(PenstockError) as refused:
        list(ask(data / "lake", text).rows)
    assert refused.value.refusal.code == "InvalidRequest" and refused.value.refusal.hint
    assert "open-sesame" not in refused.value.refusal.message
    assert files(data) == before and not list(tmp_path.iterdir())
    assert DeltaTable(data / "lake" / "notes").version() == 0


def test_what_goes_wrong_in_the_engine_is_said_with_a_hint(data, tmp_path):
    for query, word in [
        ("select * from nope", "there is no table `nope`"),
        ("select nope from notes", "nope"),
        ("select 1 / (n - 1) from notes", "Divide by zero"),
        ("selekt 1", "selekt"),
    ]:
        with pytest.raises(PenstockError, match=word):
            list(ask(data / "lake", query).rows)
    with pytest.raises(PenstockError, match="no tables yet"):
        ask(tmp_path, "select 1")
    assert list(ask(tmp_path, "show tables").rows) == []


def test_what_is_no_table_is_not_listed(data, tmp_path):
    assert table_names(data / "lake") == ["notes"] and table_names(data) == []
    assert newest_entry(data / "lake" / "notes") == f"{0:020d}.json" and newest_entry(tmp_path) == ""
