"""Output of commands: JSON for programs, tables and lines for people, errors on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.errors import Refusal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDE_COLUMNS = 200
"""Width of tables in a file or a pipe, where no text may be cut."""


def print_json(value: object) -> None:
    """One JSON document on one line, flushed: the reader may be waiting for it."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def print_line(text: str) -> None:
    print_lines([text])


def print_lines(lines: Iterable[str]) -> None:
    """Many lines in one write: a write for each would be most of the work."""
    sys.stdout.write("".join(_plain(line) + "\n" for line in lines))
    sys.stdout.flush()


def print_note(text: str) -> None:
    """A remark on stderr; never part of the result."""
    sys.stderr.write(_plain(text) + "\n")


def is_confirmed(notice: str, *, yes: bool) -> bool:
    """Print what is about to happen on stderr, and on a terminal ask, unless `--yes` was given. Off a terminal the command goes on."""
    print_note(notice)
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    sys.stderr.write("continue? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False)
    for name in columns:
        made.add_column(name, overflow="fold")
    for row in rows:
        # Text, not markup: a stream may be named `[red]`.
        made.add_row(*[Text(_plain(_cell(value))) for value in row])
    return made


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    console().print(table(columns, rows))


def print_fields(fields: Mapping[str, object]) -> None:
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print_line(f"{name.ljust(width)}  {_cell(value)}")


def print_result(value: object, text: str | list[str] | Mapping[str, object], *, as_json: bool) -> None:
    """The value as JSON, or else lines or fields that say the same."""
    if as_json:
        print_json(value)
    elif isinstance(text, Mapping):
        print_fields(text)
    else:
        print_lines([text] if isinstance(text, str) else text)


def print_rows(
    value: object, columns: Sequence[str], rows: Sequence[Sequence[object]], *, as_json: bool, empty: str | None = None
) -> None:
    """The value as JSON, or else a table; `empty` is the note for no rows."""
    if as_json:
        print_json(value)
    elif not rows and empty is not None:
        print_note(empty)
    else:
        print_table(columns, rows)


def print_error(refusal: Refusal, *, as_json: bool) -> None:
    hint = refusal.hint or refusal.kind.hint
    sys.stderr.write(f"error: {refusal.code}: {_plain(refusal.message)}\nhint: {_plain(hint)}\n")
    if as_json:
        print_json({"error": refusal.wire()})


def print_usage_error(message: str, hint: str | None = None, *, as_json: bool) -> None:
    text = " ".join(message.split())
    hint = hint or "add --help to see the usage"
    if text.startswith("Unknown command"):
        hint = "`penstock up` runs the server; `penstock --help` lists every command"
    sys.stderr.write(f"error: Usage: {_plain(text)}\nhint: {hint}\n")
    if as_json:
        print_json({"error": {"code": "Usage", "message": text, "hint": hint}})


def console() -> Console:
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout,
        force_terminal=is_terminal,
        no_color=not is_terminal,
        width=None if is_terminal else WIDE_COLUMNS,
        highlight=False,
        soft_wrap=not is_terminal,
    )


def compact(value: Any) -> str:
    """A JSON value on one line; text without quotes."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def about(ms: float) -> str:
    """A percentile: two digits, because a histogram holds it within 12.5 %."""
    return f"{float(f'{ms:.2g}'):g}"


def ago(seconds: float) -> str:
    """An age, short enough for a narrow terminal."""
    return f"{_span(seconds)} ago"


def moment(at_ms: int) -> str:
    """A time as `in 5m` or `5m ago`."""
    left_s = at_ms / 1000 - time.time()
    return f"in {_span(left_s)}" if left_s > 0 else ago(-left_s)


def _span(seconds: float) -> str:
    whole = max(int(seconds), 0)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if isinstance(value, (dict, list)):
        return compact(value)
    return str(value)


def _plain(text: str) -> str:
    """Escape control characters: a message must not control the terminal."""
    return "".join(char if char.isprintable() or char == " " else f"\\x{ord(char):02x}" for char in text)
