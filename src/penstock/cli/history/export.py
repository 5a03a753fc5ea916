"""`penstock export`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter

from penstock.cli.history.journal import (
    EVERY,
    ORIGIN,
    WHOLE,
    Filter,
    JournalOptions,
    OffsetRange,
    open_journal,
    reading,
    select,
)
from penstock.cli.output import print_result
from penstock.cli.rows import to_json
from penstock.core.errors import PenstockError, Refusal
from penstock.journal.plain_values import records

if TYPE_CHECKING:
    import pyarrow as pa


def export(
    *,
    out: Annotated[
        str,
        Parameter(name=["--out", "-o"], allow_leading_hyphen=True, help="The file to write; - is stdout."),
    ],
    format_: Annotated[
        Literal["jsonl", "parquet"] | None, Parameter(name="--format", help="Default: by the file's name.")
    ] = None,
    wanted: Filter = EVERY,
    part: OffsetRange = WHOLE,
    origin: JournalOptions = ORIGIN,
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
    with reading():
        journal = open_journal(origin)
        first, end = part.resolve(journal)
        batches = select(journal, first, end, wanted, None)
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
