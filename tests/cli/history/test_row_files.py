"""`penstock export` and `import` in both formats."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from penstock.cli import main
from tests.server_process import environment
from tests.server_template import run_command


@pytest.mark.promise("Journal", "export and import work with JSONL and Parquet")
def test_what_is_exported_is_what_cat_shows_in_both_formats(cli, tmp_path):
    lines, table = tmp_path / "x.jsonl", tmp_path / "x.parquet"
    (told,) = cli("export", "-o", str(lines), "--to", "8", "--json")
    cli("export", "-o", str(table), "--to", "8")
    shown = cli("log", "cat", "--to", "8", "--json")
    assert told["rows"] == len(shown) == 8
    assert [json.loads(line) for line in lines.read_text().splitlines()] == shown
    again = pq.read_table(table)
    assert again.column("offset").to_pylist() == list(range(8))
    assert [body and json.loads(body) for body in again.column("body").to_pylist()] == [
        row.get("body") for row in shown
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.jsonl", "x.parquet"]


@pytest.mark.promise("Journal", "export and import work with JSONL and Parquet")
def test_an_export_fills_another_server_with_the_same_bytes(cli, story, start_server, tmp_path):
    other = start_server()
    files = [tmp_path / "x.jsonl", tmp_path / "x.parquet"]
    for file in files:
        cli("export", "-o", str(file), "--channel", "*", *story)
    known = {row["id"]: row for row in cli("log", "cat", "--event", "enqueue", "--json", *story)}
    to = ["--url", other.control, "--json"]
    (first,) = cli("import", str(files[0]), *to, data=None)
    assert first["stored"] == 4 and first["duplicates"] == first["refused"] == 0
    assert first["skipped"] > 0  # settles, and the dead letter
    (second,) = cli("import", str(files[1]), *to, data=None)
    assert (second["stored"], second["duplicates"]) == (0, 4)
    (moved,) = cli("import", str(files[1]), "--prefix", "copy/", *to, data=None)
    assert moved["stored"] == 4
    rows = cli("log", "cat", "--event", "enqueue", "--json", data=other.data)
    assert {row["id"] for row in rows} == {"a", "b", "c", "m"}
    assert all(row["body"] == known[row["id"]]["body"] for row in rows[:4] if row["id"] != "c")
    assert all(row["body"]["to"] == row["channel"] for row in rows)


@pytest.mark.parametrize("content", [b"nonsense\n", b'["row"]\n', b"PAR1 nonsense"])
def test_a_file_that_holds_no_rows_is_refused(busy, tmp_path, capsys, content):
    file = tmp_path / "bad"
    file.write_bytes(content)
    assert main(["import", str(file), "--url", busy.control]) == 1
    assert "error: Invalid" in capsys.readouterr().err


def test_an_import_reads_json_lines_from_stdin_and_says_that_it_cannot_read_parquet(busy, tmp_path):
    row = {
        "event": "enqueue",
        "channel": "imported",
        "body": {"id": "i1", "ts": "2026-01-01T00:00:00Z", "type": "t", "payload": 1},
    }
    words = ["import", "-", "--url", busy.control, "--json"]
    done = run_command(words, tmp_path, environment(), json.dumps(row), 60)
    assert json.loads(done.stdout)["stored"] == 1, done.stderr
    done = run_command(words, tmp_path, environment(), "PAR1 and more", 60)
    assert done.returncode == 1 and "Parquet cannot be read from stdin" in done.stderr and "hint: " in done.stderr
