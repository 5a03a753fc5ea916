"""`penstock enqueue`: put envelopes into a stream."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby, islice
from typing import IO, TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from penstock.cli.options import DEFAULTS, Common, open_input, payload_of, run
from penstock.cli.output import print_json, print_line, print_note
from penstock.core.errors import PenstockError, Refusal

if TYPE_CHECKING:
    from penstock.client import Client

BATCH = 256
"""Envelopes of one request."""


def enqueue(
    *,
    to: Annotated[str | None, Parameter(help="The stream; default: the `to` of each envelope.")] = None,
    type_: Annotated[str, Parameter(name="--type", help="Type of the envelope.")] = "message",
    id_: Annotated[str | None, Parameter(name="--id", help="Its id; default: a new one.")] = None,
    payload: Annotated[str | None, Parameter(help="Its payload: JSON, or plain text.")] = None,
    schema: Annotated[str | None, Parameter(help="Schema of its payload: ns/name@vN.")] = None,
    file: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,  # for `-`
            help="Envelopes: a JSON object, array or JSON lines; - is stdin.",
        ),
    ] = None,
    delay_ms: Annotated[int | None, Parameter(help="Deliver after this delay.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """Put one envelope, or a file of them, into a stream.

    Missing `id` and `ts` are filled in. Lines of a file are stored 256 at a time.

    For example:

      penstock enqueue --to jobs --type job.new --payload '{"n": 1}'
      penstock enqueue --to jobs --file jobs.jsonl
      generate | penstock enqueue --file -
    """
    if (payload is None) == (file is None):
        raise PenstockError(Refusal("InvalidRequest", "give either --payload or --file", hint="see --help"))

    async def store(client: Client, envelopes: Iterator[dict[str, Any]]) -> None:
        count = duplicates = 0
        last = ""
        try:
            while batch := list(islice(envelopes, BATCH)):
                for address, group in groupby(batch, key=lambda envelope: to or _address(envelope)):
                    receipt = await client.enqueue(address, list(group), delay_ms=delay_ms)
                    count += len(receipt.ids)
                    duplicates += len(receipt.duplicates)
                    last = f"{receipt.ids[-1]} in {address} as seq {receipt.seqs[-1]}"
                    if common.as_json:
                        print_json(receipt)
        except PenstockError:
            if file is not None:
                print_note(f"{count} envelopes were stored before the error")
            raise
        if common.as_json:
            return
        if file is None:
            print_line(f"{'already there' if duplicates else 'stored'}: {last}")
        else:
            print_line(f"stored {count - duplicates}" + (f", {duplicates} were there" if duplicates else ""))

    if payload is not None:
        envelope: dict[str, Any] = {"type": type_, "payload": payload_of(payload)}
        envelope |= {} if id_ is None else {"id": id_}
        envelope |= {} if schema is None else {"schema": schema}
        run(common, lambda client: store(client, iter([envelope])))
        return
    with open_input(str(file)) as source:
        run(common, lambda client: store(client, _read(source)))


def _read(source: IO[bytes]) -> Iterator[dict[str, Any]]:
    """JSON lines one by one, or one document if the first line is not a whole object."""
    first = next((line for line in source if line.strip()), b"")
    try:
        is_lines = isinstance(msgspec.json.decode(first), dict)
    except msgspec.DecodeError:
        is_lines = False
    if is_lines:
        for number, line in enumerate(chain([first], source), 1):
            if line.strip():
                yield _object(_decoded(line, f"line {number}"), f"line {number}")
        return
    document = _decoded(first + source.read(), "the file")
    for number, row in enumerate(document if isinstance(document, list) else [document], 1):
        yield _object(row, f"item {number}")


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise PenstockError(Refusal("InvalidEnvelope", f"{where} is not an object"))
    return row


def _decoded(data: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise PenstockError(Refusal("InvalidJSON", f"{where} is not JSON: {error}")) from None


def _address(envelope: dict[str, Any]) -> str:
    to = envelope.get("to")
    if not isinstance(to, str):
        hint = "add --to STREAM, or give each envelope a `to`"
        raise PenstockError(Refusal("InvalidEnvelope", "an envelope has no `to`", hint=hint))
    return to
