"""Rows in the output of commands: JSON lines that restore the exact bytes, and aligned lines."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock.cli.rows import Printer, body_of, to_json


def restored(body: bytes) -> bytes | None:
    line = msgspec.json.encode(to_json({"body": body}))
    assert b"\n" not in line, "one row is one line"
    return body_of(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))


@pytest.mark.parametrize(
    ("body", "member"),
    [
        (b'{"a": 1}', "body"),
        (b'{"a":\n1}', "body_text"),
        (b"plain", "body_text"),
        (b"", "body_text"),
        (b"\xff\x00", "body_base64"),
        (b"[" * 100_000, "body_text"),
    ],
)
def test_a_body_is_written_so_that_its_exact_bytes_come_back(body: bytes, member: str) -> None:
    assert list(to_json({"body": body})) == [member]
    assert restored(body) == body


def test_nulls_are_left_out_and_meta_is_shown_as_json() -> None:
    line = msgspec.json.encode(to_json({"id": None, "seq": 0, "meta": '{"a":1}', "body": None}))
    assert line == b'{"seq":0,"meta":{"a":1}}'
    assert body_of({}) is None


def batch(*ids: str) -> Any:
    return pa.RecordBatch.from_pylist([{"offset": number, "id": id_} for number, id_ in enumerate(ids)])


def test_people_get_one_head_and_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(["offset", "id"], as_json=False)
    printer.show(batch("a", "bb"))
    printer.show(batch("ccc"))
    assert capsys.readouterr().out == "offset  id\n0       a\n1       bb\n0       ccc\n"


def test_a_missing_value_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(["id", "reason"], as_json=False).show(batch("a"))
    assert capsys.readouterr().out.splitlines()[1].split() == ["a", "-"]


def test_no_more_rows_are_printed_than_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(None, as_json=True, limit=3)
    printer.show(batch("a", "b"))
    assert not printer.is_done
    printer.show(batch("c", "d"))
    assert printer.is_done and printer.count == 3
    printer.show(batch("e"))
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["a", "b", "c"]
