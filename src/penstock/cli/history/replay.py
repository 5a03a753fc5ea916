"""`penstock replay`, `export` and `import`: journaled envelopes enqueued again, from the journal or by way of a file.

They go in batches of their exact bytes, and the outcomes are counted.

Only `to` and `id` ever change, and only when asked to; everything else of an envelope travels as it was kept.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from penstock.cli.history import journal
from penstock.cli.options import DEFAULTS, Common, Token, flag, open_input, run
from penstock.cli.output import print_note, print_result
from penstock.cli.rows import body_of, to_json
from penstock.core.errors import PenstockError, Refusal
from penstock.core.tenants import is_dead
from penstock.journal.plain_values import records

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client import Client


COLUMNS = ("offset", "recorded_at", "event", "channel", "body")


def replay(
    *,
    part: journal.OffsetRange = journal.WHOLE,
    speed: Annotated[str, Parameter(help="1 is the original speed, 10 ten times as fast, or `max`.")] = "max",
    channel: Annotated[str | None, Parameter(help="Only this stream; * matches anything.")] = None,
    kind: Annotated[str | None, Parameter(help="Only this type; * matches anything.")] = None,
    door: Annotated[Literal["courier"], Parameter(help="The protocol that takes them.")] = "courier",
    prefix: Annotated[str, Parameter(help="Prefix of each stream's name, e.g. `replay/`.")] = "",
    new_ids: Annotated[bool, flag("Give each envelope a new id.")] = False,
    url: Annotated[
        str | None,
        Parameter(name=["--url", "--to-url"], help="The server that takes them; default: the one on the directory."),
    ] = None,
    token: Token = None,
    place: journal.DataOption = journal.DATA_DEFAULT,
) -> None:
    """Enqueue the envelopes of a part of the journal again, at full or at original speed.

    An envelope keeps its id unless --new-ids, so what is still known is
    counted as a duplicate and not stored twice. Dead letters are left out:
    their originals are there. A delay that was asked for has passed and is
    not asked for again.

    For example:

      penstock replay --since 1h --prefix replay/
      penstock replay --from 1000 --to 2000 --speed 10 --to-url tcp://staging:9787
      penstock replay --channel 'jobs/*' --since 1d --new-ids --json
    """
    pace = _pace(speed)
    common = journal.target(place.data, url, token, place.as_json)
    with journal.reading():
        source = journal.open_journal(journal.JournalOptions(data=place.data))
        first, end = part.resolve(source)
        wanted = journal.Filter(door=door, event="enqueue", channel=channel, kind=kind)
        rows = (row for batch in journal.select(source, first, end, wanted, COLUMNS) for row in records(batch))

        async def work(client: Client) -> EnqueueFeed:
            feed = EnqueueFeed(client, prefix=prefix, new_ids=new_ids)
            with feed.counted():
                await _play(rows, feed, pace)
            return feed

        counts = run(common, work).counts
    print_result({"from": first, "to": end, **msgspec.to_builtins(counts)}, str(counts), as_json=place.as_json)


def _pace(speed: str) -> float | None:
    """The factor of the speed; None is as fast as possible."""
    if speed == "max":
        return None
    try:
        pace = float(speed)
    except ValueError:
        pace = 0.0
    if not 0 < pace < float("inf"):
        raise PenstockError(Refusal("InvalidRequest", f"`{speed}` is not a speed", hint="write 1, 10, 0.5 or max"))
    return pace


async def _play(rows: Iterator[dict[str, Any]], feed: EnqueueFeed, pace: float | None) -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    start_us: int | None = None
    for row in rows:
        if start_us is None:
            start_us = row["recorded_at"]
        if pace is not None:
            due_s = start_s + (row["recorded_at"] - start_us) / 1_000_000 / pace
            if due_s > loop.time():
                await feed.flush()
                await asyncio.sleep(due_s - loop.time())
        await feed.put(row["event"], row["channel"], row["body"])
    await feed.flush()


BATCH_ENVELOPES = 256
BATCH_BYTES = 256 * 1024

_OWN_FAULT = ("IdConflict", "InvalidEnvelope", "InvalidJSON", "TooLarge", "AddressMismatch", "InvalidRequest")
"""Refusals of one envelope, after which the feed continues."""
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class FeedCounts(msgspec.Struct):
    """Outcomes of the envelopes."""

    stored: int = 0
    duplicates: int = 0
    """Duplicates: queued, or settled while their ids are remembered."""
    refused: int = 0
    skipped: int = 0
    """Rows that no producer sent: settles, and dead letters, whose originals are in the journal too."""
    reasons: dict[str, int] = {}
    """Refusals by code."""

    def __str__(self) -> str:
        parts = [f"stored {self.stored}"]
        parts += [f"{self.duplicates} were there"] if self.duplicates else []
        parts += [f"{self.refused} refused ({', '.join(self.reasons)})"] if self.refused else []
        return ", ".join(parts)


class EnqueueFeed:
    """Enqueues envelopes into one server, in batches."""

    def __init__(self, client: Client, *, to: str | None = None, prefix: str = "", new_ids: bool = False) -> None:
        self._client = client
        self._to = to
        self._prefix = prefix
        self._new_ids = new_ids
        self._channel = ""
        self._batch: list[bytes] = []
        self._size = 0
        self.counts = FeedCounts()

    async def put(self, event: str | None, channel: str | None, body: bytes | None) -> None:
        """Take a row; a batch is sent when it is full or the stream changes."""
        if event != "enqueue" or channel is None or body is None or is_dead(channel):
            self.counts.skipped += 1
            return
        to = self._to or self._prefix + channel
        full = len(self._batch) >= BATCH_ENVELOPES or self._size + len(body) > BATCH_BYTES
        if self._batch and (full or to != self._channel):
            await self.flush()
        self._channel = to
        self._batch.append(self._readdressed(body, to, is_moved=to != channel))
        self._size += len(body)

    def _readdressed(self, body: bytes, to: str, *, is_moved: bool) -> bytes:
        if not is_moved and not self._new_ids:
            return body
        try:
            envelope = _object.decode(body)
        except msgspec.DecodeError:
            return body  # the server reports the error
        if is_moved:
            envelope["to"] = msgspec.Raw(msgspec.json.encode(to))
        if self._new_ids:
            envelope["id"] = msgspec.Raw(msgspec.json.encode(secrets.token_hex(16)))
        return msgspec.json.encode(envelope)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Print the counts if an error ends the feed."""
        try:
            yield
        except PenstockError:
            print_note(f"before the error: {self.counts}")
            raise

    async def flush(self) -> None:
        """Send the pending batch."""
        batch, self._batch, self._size = self._batch, [], 0
        if batch:
            await self._send(batch)

    async def _send(self, batch: list[bytes]) -> None:
        try:
            receipt = await self._client.enqueue(self._channel, batch)
        except PenstockError as error:
            reserved = error.code == "Forbidden" and not (error.refusal.ref or "").startswith("streams:")
            if error.code not in _OWN_FAULT and not reserved:
                raise
            if len(batch) > 1:  # a batch is stored whole or not at all, so find the envelope at fault
                for envelope in batch:
                    await self._send([envelope])
                return
            self.counts.refused += 1
            self.counts.reasons[error.code] = self.counts.reasons.get(error.code, 0) + 1
            return
        self.counts.stored += len(receipt.ids) - len(receipt.duplicates)
        self.counts.duplicates += len(receipt.duplicates)


def export(
    *,
    out: Annotated[
        str, Parameter(name=["--out", "-o"], allow_leading_hyphen=True, help="The file to write; - is stdout.")
    ],
    format_: Annotated[
        Literal["jsonl", "parquet"] | None, Parameter(name="--format", help="Default: by the file's name.")
    ] = None,
    wanted: journal.Filter = journal.EVERY,
    part: journal.OffsetRange = journal.WHOLE,
    origin: journal.JournalOptions = journal.ORIGIN,
) -> None:
    """Write rows of the journal to a file, as JSON lines or Parquet; `penstock import` reads both.

    The file appears when it is complete.

    For example:

      penstock export -o day.parquet --since 1d
      penstock export -o - --channel 'jobs/*' | jq .id
      penstock export --format jsonl --from 1000 --to 2000 -o part.jsonl
    """
    is_parquet = (format_ or ("parquet" if out.endswith(".parquet") else "jsonl")) == "parquet"
    if out == "-" and is_parquet:
        raise PenstockError(Refusal("InvalidRequest", "Parquet needs a file", hint="add -o FILE, or use jsonl"))
    with journal.reading():
        source = journal.open_journal(origin)
        first, end = part.resolve(source)
        batches = journal.select(source, first, end, wanted, None)
        if out == "-":
            _write_lines(sys.stdout.buffer, batches)
            return
        path = Path(out)
        draft = path.with_name(f".{path.name}.tmp")
        try:
            if is_parquet:
                count = _write_parquet(draft, batches)
            else:
                with draft.open("wb") as file:
                    count = _write_lines(file, batches)
            draft.replace(path)
        except OSError as error:
            hint = "choose a writable file on a disk with free space"
            raise PenstockError(
                Refusal("InvalidRequest", f"cannot write `{out}`: {error.strerror or error}", hint=hint)
            ) from None
        finally:
            draft.unlink(missing_ok=True)
    text = f"wrote {count} rows of {first} to {end - 1} to {out}" if end > first else "no rows"
    print_result({"file": out, "rows": count, "from": first, "to": end}, text, as_json=origin.as_json)


def _write_lines(file: IO[bytes], batches: Iterable[pa.RecordBatch]) -> int:
    count = 0
    encoder = msgspec.json.Encoder()
    for batch in batches:
        file.write(encoder.encode_lines([to_json(row) for row in records(batch)]))
        count += batch.num_rows
    return count


def _write_parquet(path: Path, batches: Iterable[pa.RecordBatch]) -> int:
    import pyarrow.parquet as pq

    from penstock.journal.parquet_table import FILE_SCHEMA

    count = 0
    with pq.ParquetWriter(path, FILE_SCHEMA, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


MAGIC = b"PAR1"
Row = tuple[str | None, str | None, bytes | None]
"""Event, channel and body of a row."""
_line = msgspec.json.Decoder(dict[str, msgspec.Raw])


def import_(
    file: Annotated[str, Parameter(allow_leading_hyphen=True, help="An exported file; - is stdin, for JSON lines.")],
    /,
    *,
    to: Annotated[str | None, Parameter(help="Enqueue all of them into this stream.")] = None,
    prefix: Annotated[str, Parameter(help="Prefix of each stream's name.")] = "",
    new_ids: Annotated[bool, flag("Give each envelope a new id.")] = False,
    common: Common = DEFAULTS,
) -> None:
    """Enqueue the envelopes of a file that `penstock export` wrote, JSON lines or Parquet.

    Rows other than `enqueue`, and dead letters, are skipped. An envelope keeps its id, so importing twice counts
    duplicates.

    For example:

      penstock import day.parquet
      penstock export -o - --data old | penstock import -
      penstock import part.jsonl --prefix restored/ --url tcp://staging:9787 --json
    """

    async def work(client: Client) -> EnqueueFeed:
        feed = EnqueueFeed(client, to=to, prefix=prefix, new_ids=new_ids)
        with open_input(file) as source, feed.counted():
            for row in _rows(file, source):
                await feed.put(*row)
            await feed.flush()
        return feed

    counts = run(journal.target(journal.DATA, common.url, common.token, common.as_json), work).counts
    print_result(counts, str(counts), as_json=common.as_json)


def _rows(file: str, source: IO[bytes]) -> Iterator[Row]:
    first = source.readline()
    if not first.startswith(MAGIC):
        return _lines(chain([first], source))
    if file == "-":
        hint = "write it to a file and name that, or export JSON lines"
        raise PenstockError(Refusal("InvalidRequest", "Parquet cannot be read from stdin", hint=hint))
    return _parquet(file)


def _lines(source: Iterable[bytes]) -> Iterator[Row]:
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        try:
            row = _line.decode(line)
            event, channel = _text(row, "event"), _text(row, "channel")
            body = body_of(row)
        except (msgspec.DecodeError, ValueError) as error:
            raise PenstockError(Refusal("InvalidJSON", f"line {number} is not a row: {error}")) from None
        yield event, channel, body


def _text(row: dict[str, msgspec.Raw], name: str) -> str | None:
    return msgspec.json.decode(row[name], type=str) if name in row else None


def _parquet(file: str) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as source:
            for batch in source.iter_batches(4096, columns=["event", "channel", "body"]):
                columns = [batch.column(name).to_pylist() for name in ("event", "channel", "body")]
                yield from zip(*columns, strict=True)
    except (pa.ArrowException, KeyError, OSError) as error:
        hint = "it needs the columns `event`, `channel` and `body`"
        refusal = Refusal("InvalidRequest", f"cannot read `{file}` as Parquet: {error}", hint=hint)
        raise PenstockError(refusal) from None
