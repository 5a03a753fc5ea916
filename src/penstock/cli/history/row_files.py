"""Files of journal rows: `penstock export` writes them, `penstock import` reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter

from penstock.cli.history import journal
from penstock.cli.history.replay import EnqueueFeed
from penstock.cli.options import DEFAULTS, Common, flag, open_input, run
from penstock.cli.output import print_result
from penstock.cli.rows import body_of, to_json
from penstock.core.errors import PenstockError, Refusal
from penstock.journal.plain_values import records

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client import Client


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
