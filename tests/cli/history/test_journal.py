"""Options of journal commands: filters, ranges, and directories without a journal."""

from __future__ import annotations

import json

import pytest

from penstock.cli import main


@pytest.mark.promise("Journal", "`penstock tail` filters rows")
def test_rows_are_chosen_by_every_filter(cli, story):
    def ids(*words):
        return [row["id"] for row in cli("log", "cat", "--event", "enqueue", "--json", *story, *words)]

    assert ids("--channel", "jobs/*", "--limit", "2") == ["a", "b"]
    assert ids("--channel", "mail") == ids("--corr", "k1") == ids("--kind", "mail.*") == ["m"]
    assert ids("--door", "mew") == [] and "a" in ids("--door", "courier")
    assert ids("--since", "1h", "--id", "a") == ["a"]
    assert ids("--until", "2026-01-01T00:00:00Z") == ids("--since", "0s") == []
    (first,) = cli("log", "cat", "--id", "a", "--limit", "1", "--json")
    (same,) = cli("log", "cat", "--since", first["recorded_at"], "--limit", "1", "--json")
    assert same["recorded_at"] == first["recorded_at"] and same["offset"] <= first["offset"]
    part = cli("log", "cat", "--from", "1", "--to", "3", "--columns", "offset,event", "--json")
    assert [list(row) for row in part] == [["offset", "event"]] * 2
    assert [row["offset"] for row in part] == [1, 2]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["log", "cat", "--since", "yesterday"], "InvalidRequest"),
        (["log", "cat", "--columns", "colour"], "InvalidRequest"),
        (["tail", "--url", "tcp://127.0.0.1:1"], "InvalidRequest"),
        (["tail", "--url", "http://127.0.0.1:1"], "Unreachable"),
        (["replay", "--speed", "fast"], "InvalidRequest"),
        (["log", "readers", "--forget", "nobody"], "InvalidRequest"),
        (["export", "--format", "parquet", "-o", "-"], "InvalidRequest"),
        (["export", "-o", "no/such/folder/x.jsonl"], "InvalidRequest"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else part,
)
def test_a_wrong_wish_is_an_error_with_a_hint(busy, capsys, words, code):
    assert main([*words, "--data", str(busy.data), "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["error"]["code"] == code and "hint: " in shown.err


@pytest.mark.parametrize("words", [["ls"], ["cat"], ["check"], ["seal"], ["readers"]], ids=lambda words: words[0])
def test_a_directory_without_a_journal_is_reported_and_left_alone(tmp_path, capsys, words):
    assert main(["log", *words, "--data", str(tmp_path)]) == 1
    assert "there is no journal" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
