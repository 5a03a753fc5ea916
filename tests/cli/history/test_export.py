"""`penstock export` in both formats."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest


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
