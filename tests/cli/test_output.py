"""Output of commands: JSON or text, errors with a hint, and no control characters of others."""

from __future__ import annotations

import json

import pytest

from penstock.cli.output import (
    WIDE_COLUMNS,
    print_error,
    print_fields,
    print_json,
    print_line,
    print_result,
    print_rows,
    print_usage_error,
)
from penstock.core.errors import Refusal

Captured = pytest.CaptureFixture[str]


def test_json_is_one_line(capsys: Captured) -> None:
    print_json({"text": "a\nb"})
    assert capsys.readouterr().out == '{"text":"a\\nb"}\n'


def test_control_characters_do_not_reach_the_terminal(capsys: Captured) -> None:
    print_line("a\x1b[31mred\x07")
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out and "red" in out


def test_a_result_is_json_a_line_or_fields(capsys: Captured) -> None:
    for text, as_json in (("done", True), ("done", False), ({"a": 1, "long": 2}, False)):
        print_result({"ok": True}, text, as_json=as_json)
    assert capsys.readouterr().out == '{"ok":true}\ndone\na     1\nlong  2\n'


def test_no_fields_print_nothing(capsys: Captured) -> None:
    print_fields({})
    assert capsys.readouterr().out == ""


def test_rows_are_a_table_that_cuts_nothing_and_reads_no_markup(capsys: Captured) -> None:
    name = "[red]" + "x" * 100
    print_rows([], ["name", "n"], [[name, 1]], as_json=False)
    out = capsys.readouterr().out
    assert name in out and len(name) < WIDE_COLUMNS


def test_without_rows_a_note_goes_to_stderr(capsys: Captured) -> None:
    print_rows([], ["name"], [], as_json=False, empty="no streams")
    assert capsys.readouterr() == ("", "no streams\n")
    print_rows([], ["name"], [], as_json=True, empty="no streams")
    assert capsys.readouterr() == ("[]\n", "")


def test_an_error_has_a_hint_and_with_json_a_document_too(capsys: Captured) -> None:
    refusal = Refusal("UnknownStream", "there is no stream `a`")
    print_error(refusal, as_json=False)
    out, err = capsys.readouterr()
    assert out == "" and err == f"error: UnknownStream: there is no stream `a`\nhint: {refusal.kind.hint}\n"
    print_error(refusal, as_json=True)
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "UnknownStream"


def test_a_usage_error_is_one_line_with_a_hint(capsys: Captured) -> None:
    print_usage_error("two\n  lines", as_json=True)
    out, err = capsys.readouterr()
    assert err == "error: Usage: two lines\nhint: add --help to see the usage\n"
    assert json.loads(out)["error"]["code"] == "Usage"
    print_usage_error('Unknown command "serve".', as_json=False)
    assert "`penstock up` runs the server" in capsys.readouterr().err
