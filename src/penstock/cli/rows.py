"""Journal rows in the output of commands: JSON lines that can be read back exactly, or aligned lines."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cli.output import print_lines
from penstock.journal.plain_values import TIMES, iso, plain_row, records

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = ("offset", "recorded_at", "event", "channel", "seq", "id", "kind", "peer", "attempt", "reason")
"""Default columns; `--columns` chooses others."""
_WIDTHS_LEAST = {"offset": 6, "recorded_at": 24, "event": 7}
"""Least widths. Columns grow with their content, and rows that arrive one by one should stay aligned."""
_WIDTH_MAX = 40


def to_json(row: dict[str, Any]) -> dict[str, Any]:
    """A row for JSON: nulls are left out, and the exact bytes of the body can be restored.

    A body that is one line of JSON is unchanged under `body`; other text is under `body_text`, other bytes under
    `body_base64`.
    """
    shown, body = plain_row(row), row.get("body")
    if body is not None:
        shown |= _body(body)
    return shown


def _body(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {"body_text": text}
    # A line of JSON lines may hold no line break, which JSON allows between tokens.
    return {"body": msgspec.Raw(body)} if "\n" not in text and "\r" not in text else {"body_text": text}


def body_of(line: dict[str, msgspec.Raw]) -> bytes | None:
    """The exact body of a row that `to_json` wrote."""
    if "body" in line:
        return bytes(line["body"])
    if "body_text" in line:
        return msgspec.json.decode(line["body_text"], type=str).encode()
    if "body_base64" in line:
        return base64.b64decode(msgspec.json.decode(line["body_base64"], type=str))
    return None


class Printer:
    """Prints rows, batch by batch, up to a limit."""

    def __init__(self, columns: Sequence[str] | None, *, as_json: bool, limit: int | None = None) -> None:
        self._columns = tuple(columns or SHOWN)
        self._as_json = as_json
        self._left = limit
        self.count = 0
        self._widths = {name: max(len(name), _WIDTHS_LEAST.get(name, 0)) for name in self._columns}

    @property
    def is_done(self) -> bool:
        return self._left is not None and self._left <= 0

    def show(self, batch: pa.RecordBatch) -> None:
        """Print the rows of a batch and flush."""
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
        if not batch.num_rows:
            return
        if self._as_json:
            rows = [to_json(row) for row in records(batch)]
            sys.stdout.write(msgspec.json.Encoder().encode_lines(rows).decode())
            sys.stdout.flush()
        else:
            rows = [_for_people(row) for row in records(batch)]
            lines = [["-" if row.get(name) in (None, "") else str(row[name]) for name in self._columns] for row in rows]
            for cells in lines:
                for name, cell in zip(self._columns, cells, strict=True):
                    self._widths[name] = max(self._widths[name], min(len(cell), _WIDTH_MAX))
            head = [] if self.count else [list(self._columns)]
            print_lines(self._line(cells) for cells in head + lines)
        self.count += batch.num_rows

    def _line(self, cells: list[str]) -> str:
        padded = [cell.ljust(self._widths[name]) for name, cell in zip(self._columns, cells, strict=True)]
        return "  ".join(padded).rstrip()


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    shown = dict(row)
    for name in TIMES:
        if shown.get(name) is not None:
            shown[name] = iso(shown[name])[:23] + "Z"
    if shown.get("body") is not None:
        body = _body(shown["body"])
        shown["body"] = next(bytes(v).decode() if isinstance(v, msgspec.Raw) else v for v in body.values())
    return shown
