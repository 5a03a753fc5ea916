"""The sink of format `penstock`: the rows of a DataFrame become envelopes in queues, each batch exactly once.

Every task stages its rows on the server, in parts of a bounded size; the driver commits the parts of the tasks that won, in one
call for a batch. The server remembers the newest batch of each application together with the envelopes, so a batch that Spark
runs again is not enqueued again. What a losing or dead task staged is never committed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.client.address import operator_token, read_endpoints
from penstock.client.staging import PATIENCE_S, Stage, StageCommitted
from penstock.core.errors import PenstockError
from penstock.spark.sink.rows import address, check_columns, encoder_for, sink_error
from penstock.spark.source.location import parse_locations

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

PART_ROWS_MAX = 1_000
"""Envelopes of one part: the server checks a part in one go, and serves others between two."""
PART_BYTES_MAX = 1024 * 1024
"""Bytes of one part; a single envelope that is larger still goes out."""
BATCH_PROPERTY = "streaming.sql.batchId"
"""Where Spark tells a task which batch it works for."""
OPTIONS = (
    "url", "path", "token", "tokenFile", "app", "to", "type", "payloadAs", "batch", "onOldBatch", "retryTimeout",
)  # fmt: skip
_DURATION = re.compile(r"(\d+) *([smh])")


class SinkTarget(NamedTuple):
    """Where the rows go, as the options say; travels to the executors."""

    url: str
    token: str | None
    app: str
    to: str | None
    kind: str | None
    is_text: bool
    """Whether a payload that is a string is text, and not JSON already."""
    accepts_old: bool
    patience_s: float
    run: str
    """Tells this try of a batch from one that died."""

    def __repr__(self) -> str:
        return f"Target({self.url}, app={self.app})"

    def stage(self) -> Stage:
        return Stage(self.url, self.token, patience_s=self.patience_s)


@dataclass
class StagedParts(WriterCommitMessage):
    """What one task staged."""

    parts: list[str]
    rows: int


def make_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer behind `df.writeStream.format("penstock")`.

    Options: `url` of the server's HTTP door, or `path` of the data directory of a server on this machine; `token`, which may be
    `env:NAME`, or `tokenFile`; `app`, which names the query for the server and must be its own; `to` and `type`, for rows that
    do not say; `payloadAs` (`json` or `text`), what a payload that is a string holds; `onOldBatch` (`fail` or `skip`), what to do
    with a batch older than the newest that the server has of this `app`; `retryTimeout`, how long to wait for a server that is
    gone or a stream that is full.

    Columns: `payload`, `to`, `type`, and if wanted `id`, `corr`, `refs`, `tags`, `headers`, `schema`. A `to` without a slash is
    an agent's inbox; `stream:NAME` is a stream of exactly that name. `space:SPACE/STREAM` is a stream in a space: the payload becomes
    a frame, and nothing else is said.
    """
    if overwrite:
        raise sink_error("a queue cannot be overwritten", "use `outputMode` `append`, not `complete`")
    target = read_target(options)
    check_columns(schema, to=target.to, has_type=target.kind is not None)
    return StreamSink(target)


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """The writer behind `df.write.format("penstock")`: the options of the streaming writer, and `batch`.

    With `batch`, a number that grows from write to write of this `app`, a write that is repeated counts once. Without it the
    write takes the number after the newest that the server has.
    """
    if overwrite:
        raise sink_error("a queue cannot be overwritten", 'use `mode("append")`')
    target = read_target(options)
    check_columns(schema, to=target.to, has_type=target.kind is not None)
    given = {name.lower(): value for name, value in options.items()}.get("batch")
    if given is not None:
        return BatchSink(target, _batch(given), is_chosen=False)
    with target.stage() as stage:
        last = stage.last(target.app)
    return BatchSink(target, 0 if last is None else last + 1, is_chosen=True)


class _Sink:
    """What both writers share: staging on executors."""

    def __init__(self, target: SinkTarget) -> None:
        self.target = target

    def stage(self, batches: Iterator[pa.RecordBatch], batch: int, prefix: str) -> StagedParts:
        """Stage the rows of one task as parts whose names begin with `prefix`."""
        target = self.target
        staged = StagedParts([], 0)
        encode = encoder_for(target.to, target.kind, is_text=target.is_text)
        lines: list[bytes] = []
        size = 0

        def send(stage: Stage) -> None:
            name = f"{prefix}.{len(staged.parts)}"
            stage.part(target.app, batch, name, lines, run=target.run)
            staged.parts.append(name)
            staged.rows += len(lines)

        with target.stage() as stage:
            for rows in batches:
                for line in encode(rows):
                    if lines and (len(lines) >= PART_ROWS_MAX or size + len(line) > PART_BYTES_MAX):
                        send(stage)
                        lines, size = [], 0
                    lines.append(line)
                    size += len(line) + 1
            if lines:
                send(stage)
        return staged

    def publish(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> StageCommitted | None:
        """Commit what the winning tasks staged; nothing needs to be said of a batch without rows."""
        parts = [name for message in messages if isinstance(message, StagedParts) for name in message.parts]
        if not parts:
            return None
        with self.target.stage() as stage:
            return stage.commit(self.target.app, batch, parts)

    def give_up(self, batch: int) -> None:
        """Drop what was staged; when even that fails the server does so by itself later."""
        try:
            with Stage(self.target.url, self.target.token, patience_s=0.0) as stage:
                stage.abort(self.target.app, batch)
        except PenstockError:
            pass


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        batch = context.getLocalProperty(BATCH_PROPERTY)
        if batch is None:
            message = f"Spark did not tell this task its batch (`{BATCH_PROPERTY}`)"
            raise sink_error(message, "use the Spark version that Penstock is tested with")
        return self.stage(iterator, int(batch), f"{context.partitionId()}.{context.taskAttemptId()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark names it
        done = self.publish(messages, batchId)
        if done is None or not done.duplicate or self.target.accepts_old:
            return
        if done.last is not None and batchId < done.last:
            # Spark repeats only its newest batch, so this is another history: its rows are new, and would be lost.
            message = (
                f"batch {batchId} of `{self.target.app}` is older than {done.last}, the newest that the server has: "
                "this query's checkpoint is new or was set back"
            )
            hint = (
                'give the query a new `app`, or `option("onOldBatch", "skip")` if those rows are in already'
            )
            raise sink_error(message, hint)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark names it
        self.give_up(batchId)


class BatchSink(_Sink, DataSourceArrowWriter):
    """Writes one DataFrame."""

    def __init__(self, target: SinkTarget, batch: int, *, is_chosen: bool) -> None:
        super().__init__(target)
        self.batch = batch
        self.is_chosen = is_chosen
        """Whether the number was ours to choose: then nobody else may have used it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        return self.stage(iterator, self.batch, f"{context.partitionId()}.{context.taskAttemptId()}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        done = self.publish(messages, self.batch)
        if done is not None and done.duplicate and self.is_chosen and done.tries == 1:
            message = f"another write of `{self.target.app}` was quicker, and this one was not enqueued"
            raise sink_error(message, "write again; give writers that run at the same time an `app` each")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.give_up(self.batch)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by Spark's tasks"
    return context


def read_target(options: Mapping[str, str]) -> SinkTarget:
    """The options of the sink, checked on the driver."""
    given = {name.lower(): value for name, value in options.items()}
    _check_spelling(given)
    patience_s = _duration_s(given["retrytimeout"]) if "retrytimeout" in given else PATIENCE_S
    url, token = _address(given, patience_s)
    app = given.get("app")
    if not app:
        hint = '`option("app", "my-query")`: the server remembers under this name which batches came in'
        raise sink_error("the option `app` is missing", hint)
    form = given.get("payloadas", "json")
    if form not in ("json", "text"):
        raise sink_error(f"the option `payloadAs` is `{form}`", "use `json` or `text`")
    old = given.get("onoldbatch", "fail")
    if old not in ("fail", "skip"):
        raise sink_error(f"the option `onOldBatch` is `{old}`", "use `fail` or `skip`")
    to = given.get("to")
    return SinkTarget(
        url,
        token,
        app,
        None if to is None else address(to),
        given.get("type"),
        is_text=form == "text",
        accepts_old=old == "skip",
        patience_s=patience_s,
        run=secrets.token_hex(8),
    )


def _address(given: Mapping[str, str], patience_s: float) -> tuple[str, str | None]:
    """The server's URL and the token for it."""
    url, path = given.get("url"), given.get("path")
    if (url is None) == (path is None):
        hint = (
            '`option("url", "http://host:8787")`, or the data directory of a server on this machine as `path`'
        )
        raise sink_error("give `url` or `path`, one of them", hint)
    token, token_file = given.get("token"), given.get("tokenfile")
    if url is not None:
        location, *others = parse_locations(None, url, token, token_file, patience_s)
        if others or location.url is None:
            raise sink_error(f"`{url}` are several servers", "rows go to one; start a query for each")
        return location.url, location.token
    file = Path(path or ".").absolute() / "run" / "endpoints.json"
    endpoints = read_endpoints(file)
    if endpoints is None or endpoints.http is None:
        raise sink_error(f"no server runs on `{path}`", f"start it with `penstock up --data {path}`")
    location = parse_locations(None, endpoints.http, token, token_file, patience_s)[0]
    return endpoints.http, location.token or operator_token(endpoints.http, file)


def _check_spelling(given: Mapping[str, str]) -> None:
    """Spark hands over options of its own too, so only what looks like one of ours is a mistake."""
    known = {name.lower(): name for name in OPTIONS}
    for name in given:
        near = get_close_matches(name, known, 1, cutoff=0.8)
        if name not in known and near:
            raise sink_error(f"there is no option `{name}`", f"did you mean `{known[near[0]]}`?")


def _duration_s(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise sink_error(f"the option `retryTimeout` is `{text}`", "write a duration like `30s` or `15m`")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3_600}[found[2]]


def _batch(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise sink_error(f"the option `batch` is `{text}`", "use a whole number from 0 on")
