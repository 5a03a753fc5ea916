"""The sink of format `penstock`: rows of a DataFrame become envelopes in queues, each batch exactly once.

Every task stages its rows on the server, in parts of bounded size; the driver commits the parts of the successful tasks in one call a
batch. The server stores the newest batch number of each application together with the envelopes, so a batch that Spark repeats is not
enqueued twice. Parts of failed or duplicate tasks are never committed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.client.address import given_token, operator_token, read_endpoints
from penstock.client.admin import PATIENCE_S, Stage, StageCommitted
from penstock.core.errors import PenstockError
from penstock.spark.errors import unknown_option
from penstock.spark.location import absolute_paths, parse_locations
from penstock.spark.sink.rows import address, check_columns, encoder_for, sink_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

PART_ROWS_MAX = 1_000
"""Envelopes of one part: the server validates a part at once, and serves other clients between two parts."""
PART_BYTES_MAX = 1024 * 1024
"""Bytes of one part; a single larger envelope is sent as a part of its own."""
BATCH_PROPERTY = "streaming.sql.batchId"
"""The local property by which Spark passes the batch number to a task."""
OPTIONS = (
    "url", "path", "token", "tokenFile", "app", "to", "type", "payloadAs", "batch", "onOldBatch", "retryTimeout",
)  # fmt: skip
_DURATION = re.compile(r"(\d+) *([smh])")


class SinkTarget(NamedTuple):
    """The parsed options of the sink. Sent to executors."""

    url: str
    token: str | None
    app: str
    to: str | None
    kind: str | None
    is_text: bool
    """Whether a string payload is text, not JSON."""
    accepts_old: bool
    patience_s: float
    run: str
    """Distinguishes this attempt at a batch from one that failed."""

    def __repr__(self) -> str:
        return f"Target({self.url}, app={self.app})"

    def stage(self) -> Stage:
        return Stage(self.url, self.token, patience_s=self.patience_s)


@dataclass
class StagedParts(WriterCommitMessage):
    """The parts that one task staged."""

    parts: list[str]
    rows: int


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """The writer behind `df.writeStream.format("penstock")`.

    Parameters
    ----------
    options
        `url` of the server's HTTP door, or `path` of the data directory of a server on this machine; `token`, which may be `env:NAME`,
        or `tokenFile`; `app`, the unique name of the query on the server; `to` and `type`, the defaults for rows without their own;
        `payloadAs` (`json` or `text`), the content of a string payload; `onOldBatch` (`fail` or `skip`), what to do with a batch
        older than the newest that the server has of this `app`; `retryTimeout`, how long to wait for an unreachable server or a
        full stream.
    schema
        Columns `payload`, `to`, `type`, and optionally `id`, `corr`, `refs`, `tags`, `headers`, `schema`.

    Notes
    -----
    A `to` without a slash is an agent's inbox; `stream:NAME` is a stream of exactly that name. `space:SPACE/STREAM` is a stream in a
    space: the payload becomes a frame, and the other columns are not used.
    """
    if overwrite:
        raise sink_error("a queue cannot be overwritten", "use `outputMode` `append`, not `complete`")
    if any(name.lower() == "batch" for name in options):
        raise sink_error("`batch` does not apply to a stream", "leave it out: Spark numbers the batches")
    target = parse_target(options)
    check_columns(schema, to=target.to, has_type=target.kind is not None)
    return StreamSink(target)


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """The writer behind `df.write.format("penstock")`.

    Parameters
    ----------
    options
        Those of the streaming writer, and `batch`: a number that grows with each write of this `app`, by which a repeated write counts
        once. Without it, the write takes the number after the newest that the server has.
    """
    if overwrite:
        raise sink_error("a queue cannot be overwritten", 'use `mode("append")`')
    target = parse_target(options)
    check_columns(schema, to=target.to, has_type=target.kind is not None)
    given = {name.lower(): value for name, value in options.items()}.get("batch")
    if given is not None:
        if not (given.isascii() and given.isdigit()):
            raise sink_error(f"the option `batch` is `{given}`", "use a whole number of 0 or more")
        return BatchSink(target, int(given), is_chosen=False)
    with target.stage() as stage:
        last = stage.last(target.app)
    return BatchSink(target, 0 if last is None else last + 1, is_chosen=True)


class _Sink:
    """Staging and committing, shared by both writers."""

    def __init__(self, target: SinkTarget) -> None:
        self.target = target

    def stage(self, batches: Iterator[pa.RecordBatch], batch: int, prefix: str) -> StagedParts:
        """Stage the rows of one task as parts named `prefix.N`. The prefix has the attempt, so attempts of a task do not collide."""
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
        """Commit the parts of the successful tasks; an empty batch needs no commit."""
        parts = [name for message in messages if isinstance(message, StagedParts) for name in message.parts]
        if not parts:
            return None
        with self.target.stage() as stage:
            return stage.commit(self.target.app, batch, parts)

    def refuse_old(self, done: StageCommitted | None, batch: int, cause: str) -> None:
        """Refuse a number below the newest: a repeated batch is the newest, so these rows are new and were not enqueued."""
        if done is None or not done.duplicate or self.target.accepts_old or done.last is None or batch >= done.last:
            return
        app = self.target.app
        message = f"batch {batch} of `{app}` is older than {done.last}, the newest that the server has: {cause}"
        raise sink_error(
            message, 'give it a new `app`, or `option("onOldBatch", "skip")` if the server already has those rows'
        )

    def give_up(self, batch: int) -> None:
        """Drop the staged parts. If that fails, the server drops them later by itself."""
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
            message = f"Spark did not set the batch of this task (`{BATCH_PROPERTY}`)"
            raise sink_error(message, "use the Spark version that Penstock is tested with")
        return self.stage(iterator, int(batch), f"{context.partitionId()}.{context.taskAttemptId()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark names it
        done = self.publish(messages, batchId)
        self.refuse_old(done, batchId, "the checkpoint of this query is new or was reset")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark names it
        self.give_up(batchId)


class BatchSink(_Sink, DataSourceArrowWriter):
    """Writes one DataFrame."""

    def __init__(self, target: SinkTarget, batch: int, *, is_chosen: bool) -> None:
        super().__init__(target)
        self.batch = batch
        self.is_chosen = is_chosen
        """Whether this writer chose the number: then a duplicate means that another write used it first."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        return self.stage(iterator, self.batch, f"{context.partitionId()}.{context.taskAttemptId()}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        done = self.publish(messages, self.batch)
        if not self.is_chosen:
            self.refuse_old(done, self.batch, "the option `batch` increases with each write")
        elif done is not None and done.duplicate and done.tries == 1:
            message = f"another write of `{self.target.app}` was faster, and this one was not enqueued"
            raise sink_error(message, "write again; give each of several concurrent writers its own `app`")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.give_up(self.batch)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by Spark's tasks"
    return context


def parse_target(options: Mapping[str, str]) -> SinkTarget:
    """Parse the options of the sink; runs on the driver."""
    given = {name.lower(): value for name, value in options.items()}
    if (problem := unknown_option(options, OPTIONS)) is not None:
        raise sink_error(*problem)
    patience_s = _duration_s(given["retrytimeout"]) if "retrytimeout" in given else PATIENCE_S
    url, token = _address(given, patience_s)
    app = given.get("app")
    if not app:
        hint = '`option("app", "my-query")`: the server records the batches of the query under this name'
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
        hint = '`option("url", "http://host:8787")`, or the data directory of a server on this machine as `path`'
        raise sink_error("give either `url` or `path`", hint)
    token, token_file = given.get("token"), given.get("tokenfile")
    if url is not None:
        location, *others = parse_locations(None, url, token, token_file, patience_s)
        if others or location.url is None:
            raise sink_error(f"`{url}` names several servers", "rows go to one server; start a query for each")
        return location.url, location.token
    file = Path(absolute_paths(path or ".")) / "run" / "endpoints.json"
    endpoints = read_endpoints(file)
    if endpoints is None or not endpoints.http:
        raise sink_error(f"no server runs on `{path}`", f"start it with `penstock up --data {path}`")
    location = parse_locations(None, endpoints.http, token, token_file, patience_s)[0]
    return endpoints.http, given_token(location.token) or operator_token(endpoints.http, file)


def _duration_s(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise sink_error(f"the option `retryTimeout` is `{text}`", "write a duration like `30s` or `15m`")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3_600}[found[2]]
