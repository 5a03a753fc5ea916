"""Options of commands that read the journal: where it is, which rows, and which range.

Commands share these options, the search for an offset by time, and the words for what went wrong.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from cyclopts import Parameter

from penstock.cli.options import Common, Output, Token
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.journal.selection import Selection

DATA = Path("penstock-data")
NAME_DATA = "name the data directory of a server with --data; `penstock log ls` shows what one holds"
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGO = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DataOption(Output):
    """Options of commands on a data directory."""

    data: Annotated[Path, Parameter(help="The data directory.")] = DATA


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class JournalOptions(DataOption):
    """Options of commands that read rows from a directory or a server."""

    url: Annotated[str | None, Parameter(help="Read from the server at http://host:port instead.")] = None
    token: Token = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Filter:
    """Options that filter rows."""

    door: Annotated[str | None, Parameter(help="courier, mew, streamservice or server.")] = None
    channel: Annotated[str | None, Parameter(help="A stream; * matches anything.")] = None
    event: Annotated[str | None, Parameter(help="For example enqueue, ack, nack or dead.")] = None
    kind: Annotated[str | None, Parameter(help="Type of the envelope; * matches anything.")] = None
    id: Annotated[str | None, Parameter(help="Id of the envelope.")] = None
    corr: Annotated[str | None, Parameter(help="Correlation id.")] = None

    def selection(self) -> Selection:
        """The filter in the form of the journal's readers."""
        from penstock.journal.selection import Selection

        return Selection.of(**vars(self))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OffsetRange:
    """Options that choose a range of the journal."""

    first: Annotated[int | None, Parameter(name="--from", help="The first offset.")] = None
    end: Annotated[int | None, Parameter(name="--to", help="The offset after the last.")] = None
    since: Annotated[str | None, Parameter(help="A time, or an age: 2026-01-31T12:00:00Z, 15m, 2d.")] = None
    until: Annotated[str | None, Parameter(help="Rows before this time, likewise.")] = None

    def resolve(self, journal: ReadableJournal) -> tuple[int, int]:
        """The range as offsets that exist now."""
        bounds = journal.bounds()
        first = bounds.first if self.first is None else self.first
        end = bounds.end if self.end is None else min(self.end, bounds.end)
        if first < bounds.first:
            message = f"rows {first} to {bounds.first - 1} are no longer kept; the oldest is {bounds.first}"
            raise PenstockError(Refusal("RangeGone", message))
        if self.since is not None:
            first = max(first, offset_at(journal, bounds.first, bounds.end, moment_us(self.since)))
        if self.until is not None:
            end = min(end, offset_at(journal, bounds.first, bounds.end, moment_us(self.until)))
        return first, end


ORIGIN, DATA_DEFAULT, EVERY, WHOLE = JournalOptions(), DataOption(), Filter(), OffsetRange()


class ReadableJournal(Protocol):
    """A source of rows."""

    def bounds(self) -> Any:
        """The range of offsets that exist."""

    def end(self) -> int:
        """The offset after the last row; cheap to poll."""

    def batches(self, first: int, end: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]: ...


def open_journal(origin: JournalOptions) -> ReadableJournal:
    """The journal of `--url`, or else of the data directory."""
    if origin.url is not None:
        from penstock.client.address import operator_token
        from penstock.client.admin import RemoteJournal

        token = origin.token or operator_token(origin.url, endpoints_file(origin.data))
        return RemoteJournal(origin.url, token)
    from penstock.journal.reader import JournalReader

    class Directory(JournalReader):
        """The journal of a directory, with an end that is cheap to poll."""

        def end(self) -> int:
            from penstock.journal.open_and_repair import read_watermark

            mark = read_watermark(self._disk)
            return mark[0] if mark is not None else self.bounds().end

    return Directory(origin.data)


def select(
    journal: ReadableJournal, first: int, end: int, wanted: Filter, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """The rows of a range that pass the filter, with the chosen columns."""
    selection = wanted.selection()
    read = None if columns is None else list(dict.fromkeys([*columns, *selection.columns]))
    for batch in journal.batches(first, end, read):
        passed = selection.passed(batch)
        if passed.num_rows:
            yield passed if columns is None else passed.select(list(columns))


@contextmanager
def reading() -> Iterator[None]:
    """Report errors of a journal with their error codes."""
    from penstock.journal.reader import JournalError
    from penstock.journal.segments import DamageError

    try:
        yield
    except JournalError as error:
        raise PenstockError(Refusal("InvalidRequest", str(error), hint=NAME_DATA)) from None
    except DamageError as error:
        raise PenstockError(Refusal("JournalDamaged", str(error))) from None


def endpoints_file(data: Path) -> Path:
    return data / "run" / "endpoints.json"


def server_on(data: Path) -> tuple[str, str | None] | None:
    """The HTTP address of the server that runs on a directory, and the operator token; None when none runs."""
    from penstock.client.address import operator_token, read_endpoints

    file = endpoints_file(data)
    endpoints = read_endpoints(file)
    if endpoints is None or not endpoints.http:
        return None
    return endpoints.http, operator_token(endpoints.http, file)


def target(data: Path, url: str | None, token: str | None, as_json: bool) -> Common:
    """The server that takes envelopes: the given URL, or else the server on the directory."""
    from penstock.client import address

    file = endpoints_file(data)
    endpoints = address.read_endpoints(file)
    if url is None and endpoints is not None:
        url = endpoints.control or endpoints.http
    if token is None and url is not None:
        token = address.operator_token(url, file)
    return replace(Common(), url=url, token=token, as_json=as_json)


def moment_us(text: str, *, is_ahead: bool = False) -> int:
    """A time or an age, as microseconds since 1970; with `is_ahead`, an age counts from now on."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        age_s = float(ago[1]) * _UNITS_S[ago[2]]
        return int((time.time() + (age_s if is_ahead else -age_s)) * 1_000_000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = "write `2026-01-31T12:00:00Z`, or an age: `90s`, `15m`, `2h`, `7d`"
        raise PenstockError(Refusal("InvalidRequest", f"`{text}` is not a time", hint=hint)) from None
    return int((moment if moment.tzinfo else moment.astimezone(UTC)).timestamp() * 1_000_000)


def offset_at(journal: ReadableJournal, first: int, end: int, at_us: int) -> int:
    """The first row at or after a time. Times never decrease, so the search halves the range."""
    import pyarrow as pa

    def time_of(offset: int) -> Any:
        batch = next(iter(journal.batches(offset, offset + 1, ["recorded_at"])))
        return batch.column(0).cast(pa.int64())[0].as_py()

    return first + bisect_left(range(first, end), at_us, key=time_of)


def seal_now(data: Path, config: Path | None) -> dict[str, Any]:
    """Seal every committed row, through the server on the directory or, without one, here."""
    server = server_on(data)
    if server is not None:
        from penstock.client.admin import RemoteJournal

        return RemoteJournal(*server).seal()
    import msgspec

    from penstock.server.admin.journal import to_sealed
    from penstock.server.journal.lifecycle import seal_directory

    with reading():
        report: dict[str, Any] = msgspec.to_builtins(to_sealed(seal_directory(data, config)))
    return report
