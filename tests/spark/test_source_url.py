"""The source over HTTP: the same rows as from the directory, and clear errors without access or without a server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock.client.admin import RemoteJournal
from penstock.core.errors import PenstockError
from penstock.journal import named_readers
from penstock.journal.disk import RealDisk
from penstock.spark.errors import DataLossError, SourceError
from tests.integration.serving import Http
from tests.server_process import ServerProcess
from tests.spark.journals import batch, stream, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN = "plain-secret-7351"
CONFIG = f"""\
auth:
  tokens:
    - {{name: plain, token: {TOKEN}, scopes: ["streams:*:*"]}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with sealed and new rows."""
    process = ServerProcess(tmp_path_factory.mktemp("remote"), config=CONFIG)
    operator = Http(process.http, operator_token(process))
    operator.enqueue("jobs", *"abcdef")
    assert operator.post("/v1/journal/seal", None).status == 200
    operator.enqueue("other", "g", "h")
    yield process
    process.kill()


def operator_token(process: ServerProcess) -> str:
    return (process.data / "run" / "operator.token").read_text().strip()


def remote(process: ServerProcess, **options: object) -> dict[str, Any]:
    file = process.data / "run" / "operator.token"
    return {"url": process.http, "tokenFile": file, "retryTimeout": "100ms"} | options


@pytest.mark.promise(
    "Spark: source and sinks",
    "the source reads from a server's URL with a token, retries an unreachable server, then reports it",
)
def test_rows_over_http_are_the_rows_of_the_directory(server: ServerProcess, spark: SparkSession) -> None:
    for options in (
        {},
        {"columns": "id,offset", "channel": "ot*"},
        {"bodyAs": "json", "event": "enqueue", "columns": "body"},
    ):
        there = batch(**remote(server, **options))
        here = batch(server.data, **options)
        rows = table(here, here.partitions())
        assert rows.num_rows > 0 and table(there, there.partitions()).equals(rows)
    source = spark.read.format("penstock").options(**remote(server, columns="offset", event="enqueue"))
    assert source.load().count() == 8


def test_a_stream_over_http_is_bounded_and_holds_history_back(server: ServerProcess) -> None:
    reader = stream(**remote(server, startingOffsets="earliest", reader="far-away", columns="offset"))
    start = reader.initialOffset()
    (journal,) = start["journals"]
    seen: list[int] = []
    end = reader.latestOffset(start, ReadMaxRows(3))
    while end != start:
        rows = table(reader, reader.partitions(start, end))
        assert 0 < rows.num_rows <= 3
        seen += rows.column("offset").to_pylist()
        reader.commit(end)
        start, end = end, reader.latestOffset(end, ReadMaxRows(3))
    assert seen == list(range(len(seen))) and len(seen) >= 8
    held = {one.name: one.offset for one in named_readers.list_readers(RealDisk(server.data / "journal"))}
    assert held["far-away"] == start["journals"][journal]["0"]
    opened = RemoteJournal(server.http, operator_token(server))
    with pytest.raises(PenstockError, match="is not written yet"):
        opened.hold("far-away", 10**9)
    times = [b.column(0).cast(pa.int64())[0].as_py() for b in opened.batches(6, 7, ["recorded_at"])]
    moment = stream(**remote(server, startingTimestamp=times[0] // 1000)).initialOffset()
    assert moment["journals"][journal]["0"] <= 6


@pytest.mark.promise(
    "Spark: source and sinks",
    "the source reads from a server's URL with a token, retries an unreachable server, then reports it",
)
@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("wrong-secret-1", "rejects the token: the token is not known"),
        (TOKEN, "rejects the token: the journal needs the scope `admin:*`"),
        (None, "rejects the token: a token is needed"),
    ],
)
def test_a_wrong_token_says_which_is_needed_and_is_not_tried_again(
    server: ServerProcess, token: str | None, message: str
) -> None:
    given = {"url": server.http, "retryTimeout": "10m"} | ({"token": token} if token else {})
    with pytest.raises(SourceError) as caught:
        stream(**given).initialOffset()
    text = str(caught.value)
    assert message in text and "run/operator.token" in text and "secret" not in text


@pytest.mark.promise(
    "Spark: source and sinks",
    "the source reads from a server's URL with a token, retries an unreachable server, then reports it",
)
def test_a_server_that_is_gone_is_waited_for_and_then_named(server: ServerProcess) -> None:
    began = time.monotonic()
    with pytest.raises(SourceError) as caught:
        stream(url="http://127.0.0.1:9", token="secret-1", retryTimeout="400ms").initialOffset()
    assert time.monotonic() - began >= 0.3, "it was tried again"
    text = str(caught.value)
    assert "`http://127.0.0.1:9` does not answer" in text and "gave up after" in text
    assert "Is the server running" in text and "secret" not in text
    with pytest.raises(SourceError, match="has no journal, or is not a Penstock server"):
        answering(lambda number: (404, {}, b"<html>"), lambda url: stream(url=url).initialOffset())


def test_a_busy_server_is_asked_again_when_it_says(server: ServerProcess) -> None:
    bounds = {"journal": "ab" * 16, "shard": 0, "epoch": 0, "first": 0, "sealedEnd": 0, "end": 5}
    busy = {"error": {"code": "RateLimited", "message": "32 reads of the journal are under way"}}
    answers: list[tuple[int, dict[str, str], bytes]] = [
        (429, {"Retry-After": "1"}, json.dumps(busy).encode()),
        (503, {}, b"a proxy says no"),
        (200, {}, json.dumps(bounds).encode()),
    ]
    times: list[float] = []

    def answer(number: int) -> tuple[int, dict[str, str], bytes]:
        times.append(time.monotonic())
        return answers[number]

    found = answering(answer, lambda url: RemoteJournal(url, retry_s=30).bounds())
    assert found.end == 5 and len(times) == 3
    assert times[1] - times[0] >= 1.0, "as long as it was told"
    with pytest.raises(PenstockError, match="under way"):
        answering(lambda number: answers[0], lambda url: RemoteJournal(url, retry_s=0.5).bounds())


def test_rows_that_a_server_no_longer_keeps_are_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("thin")
    process = ServerProcess(folder, config="journal: {retention: {bytes_max: 1}}")
    try:
        operator = Http(process.http, operator_token(process))
        operator.enqueue("jobs", *"abc")
        operator.post("/v1/journal/seal", None)
        operator.enqueue("jobs", "d")
        reader = stream(**remote(process, startingOffsets="earliest", columns="offset"))
        start = reader.initialOffset()
        (journal,) = start["journals"]
        oldest = start["journals"][journal]["0"]
        assert oldest > 0
        end = reader.latestOffset(start, ReadMaxRows(10))
        zero = {"v": 1, "journals": {journal: {"0": 0}}}
        with pytest.raises(DataLossError, match=f"DATA_LOSS: rows 0 to {oldest - 1} are no longer kept"):
            reader.partitions(zero, end)
        careless = stream(**remote(process, failOnDataLoss="false", columns="offset"))
        rows = table(careless, careless.partitions(zero, end))
        assert rows.column("offset")[0].as_py() == oldest
    finally:
        process.stop()


def answering(answer: Callable[[int], tuple[int, dict[str, str], bytes]], ask: Callable[[str], Any]) -> Any:
    """Ask a server that gives scripted answers, by their number."""
    asked = 0

    class Scripted(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal asked
            status, headers, body = answer(asked)
            asked += 1
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Scripted) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            return ask(f"http://127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
            thread.join()
