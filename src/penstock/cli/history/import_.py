"""`penstock import`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from penstock.cli.history.feed import EnqueueFeed
from penstock.cli.history.journal import DATA, target
from penstock.cli.options import DEFAULTS, Common, flag, run
from penstock.cli.output import print_note, print_result
from penstock.cli.rows import body_of
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.client import Client

MAGIC = b"PAR1"
Row = tuple[str | None, str | None, bytes | None]
"""Event, channel and body of a row."""
_line = msgspec.json.Decoder(dict[str, msgspec.Raw])


def import_(
    file: Path,
    /,
    *,
    to: Annotated[str | None, Parameter(help="Enqueue all of them into this stream.")] = None,
    prefix: Annotated[str, Parameter(help="Prefix of each stream's name.")] = "",
    new_ids: Annotated[bool, flag("Give each envelope a new id.")] = False,
    common: Common = DEFAULTS,
) -> None:
    """Enqueue the envelopes of a file that `penstock export` wrote, JSON lines or Parquet.

    Rows other than `enqueue`, and dead letters, are skipped. An envelope keeps its id, so importing twice counts duplicates.

    For example:

      penstock import day.parquet
      penstock import part.jsonl --prefix restored/ --url tcp://staging:9787 --json
    """
    try:
        with file.open("rb") as opened:
            is_parquet = opened.read(4) == MAGIC
    except OSError as error:
        raise PenstockError(Refusal("InvalidRequest", f"cannot read `{file}`: {error.strerror}")) from None

    async def work(client: Client) -> EnqueueFeed:
        feed = EnqueueFeed(client, to=to, prefix=prefix, new_ids=new_ids)
        try:
            for row in _parquet(file) if is_parquet else _lines(file):
                await feed.put(*row)
            await feed.flush()
        except PenstockError:
            print_note(f"before the error: {feed.counts}")
            raise
        return feed

    counts = run(target(DATA, common.url, common.token, common.as_json), work).counts
    print_result(counts, str(counts), as_json=common.as_json)


def _lines(file: Path) -> Iterator[Row]:
    with file.open("rb") as source:
        for number, line in enumerate(source, 1):
            if not line.strip():
                continue
            try:
                row = _line.decode(line)
                event, channel = _text(row, "event"), _text(row, "channel")
                body = body_of(row)
            except (msgspec.DecodeError, ValueError) as error:
                message = f"line {number} is not a row: {error}"
                raise PenstockError(Refusal("InvalidJSON", message)) from None
            yield event, channel, body


def _text(row: dict[str, msgspec.Raw], name: str) -> str | None:
    return msgspec.json.decode(row[name], type=str) if name in row else None


def _parquet(file: Path) -> Iterator[Row]:
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
