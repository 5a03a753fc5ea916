"""`penstock lake`: sizes and versions of the tables, and their maintenance by hand."""

from __future__ import annotations

import json
import os

import pytest

from penstock.spark.lake.table import LakeTable
from tests.spark.lakes import COUNTS, NOTES, counted, notes

pytestmark = pytest.mark.usefixtures("data")


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


def test_without_tables_the_commands_say_how_to_fill_them(cli, tmp_path):
    fresh = tmp_path / "fresh"
    (fresh / "journal").mkdir(parents=True)
    assert "penstock pipeline run --once" in cli("lake", "ls", at=fresh).err
    assert json.loads(cli("lake", "ls", "--json", at=fresh).out) == {"tables": []}
    for name in ("compact", "vacuum"):
        assert "no tables in" in cli("lake", name, at=fresh).err
        assert json.loads(cli("lake", name, "--json", at=fresh).out) == {"tables": []}
    assert [path.name for path in fresh.iterdir()] == ["journal"]


@pytest.mark.parametrize(
    "command",
    [("lake", "ls"), ("lake", "vacuum"), ("lake", "history", "notes"), ("sql", "select 1"), ("sql", "show tables")],
)
def test_another_directory_is_named_and_stays_as_it_is(cli, tmp_path, command):
    seen = cli(*command, code=1, at=tmp_path / "elsewhere")
    assert "elsewhere` is not a data directory" in seen.err and "--data" in seen.err and "pipeline run" not in seen.err
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["compact", "vacuum"])
def test_maintenance_names_what_it_cannot_maintain(cli, name):
    seen = cli("lake", name, "--table", "nope", "--json", code=1)
    assert json.loads(seen.out)["error"]["code"] == "InvalidRequest"
    assert "there are: `counts`, `notes`" in seen.err and "hint: " in seen.err
    assert "`penstock log seal`" in cli("lake", name, "--table", "events", code=1).err


def test_people_see_what_was_done_to_each_table(cli):
    counts, notes = cli("lake", "compact").out.splitlines()
    assert counts == "counts: nothing to do"
    assert notes == "notes: merged 5, into 1, log entries removed 0"


def test_history_shows_the_newest_versions_as_a_table(cli):
    header, *lines = cli("lake", "history", "notes", "--limit", "3").out.splitlines()
    assert header.split() == ["version", "at", "operation", "app", "from", "to", "readable"]
    assert [line.split()[0] for line in lines] == ["5", "4", "3"]


def test_a_directory_that_cannot_be_written_is_named(cli, data):
    file = data / "lake" / "_locks"
    if file.is_dir():
        for one in file.iterdir():
            one.unlink()
        file.rmdir()
    file.write_text("in the way")
    seen = cli("lake", "compact", "--table", "notes", code=1)
    assert f"cannot use `{file}" in seen.err and "hint: the directory must be readable" in seen.err
