"""The journal over HTTP: the rows of the command line as an Arrow stream, in bounded parts, for administrators only."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import msgspec
import pyarrow as pa
import pytest

from penstock.cli import main
from penstock.cli.rows import to_json
from penstock.journal.parquet_table import FILE_SCHEMA
from penstock.journal.plain_values import records
from penstock.server.admin.journal import CONTENT_TYPE, encode_stream
from tests.integration.serving import PATIENCE_S, Http, connected, envelope
from tests.server_process import ServerProcess, environment

TOKENS = """\
auth:
  tokens:
    - {name: plain, token: plain-secret-7351, scopes: ["streams:*:*", "views:*:*"]}
    - {name: chief, token: chief-secret-9917, scopes: ["admin:*"]}
    - {name: sam, token: agent-secret-4422, agent: sam, scopes: ["streams:*:*"]}
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A server with sealed rows, new rows, and its operator's requests."""
    process = ServerProcess(tmp_path_factory.mktemp("kept"))
    operator = Http(process.http, operator_token(process))
    operator.enqueue("jobs", *"abcdef")
    a, b = operator.pull("jobs", max=2)
    operator.settle("a", "ack", leaseId=a["leaseId"])
    operator.settle("b", "term", leaseId=b["leaseId"], reason="no")
    sealed = operator.post("/v1/journal/seal", None)
    assert sealed.status == 200, sealed
    operator.enqueue("jobs", "g", "h")
    yield process, operator
    process.stop()


def operator_token(process):
    return (process.data / "run" / "operator.token").read_text().strip()


def table(answer):
    assert answer.status == 200, answer
    assert answer.headers["Content-Type"] == CONTENT_TYPE
    with pa.ipc.open_stream(io.BytesIO(answer.body)) as stream:
        return stream.read_all()


def lines(rows):
    """Rows as the command line prints them."""
    return [json.loads(msgspec.json.encode(to_json(row))) for batch in rows.to_batches() for row in records(batch)]


def bounds(operator):
    return operator.get("/v1/journal").json


def test_the_journal_says_how_far_it_reaches_and_what_its_columns_are(kept):
    process, operator = kept
    found = bounds(operator)
    assert list(found) == ["journal", "shard", "epoch", "first", "sealedEnd", "end", "schema"]
    assert found["first"] == 0 < found["sealedEnd"] < found["end"]
    assert found["journal"] == json.loads((process.data / "journal" / "journal.json").read_bytes())["id"]
    rows = table(operator.get("/v1/journal/rows", limit=1))
    assert [(field.name, str(field.type)) for field in rows.schema] == [
        (column["name"], column["type"]) for column in found["schema"]
    ]


@pytest.mark.promise("Journal", "`GET /v1/journal` and rows as an Arrow stream need the right scope")
def test_rows_over_http_are_the_rows_of_the_command_line(kept, capsys):
    process, operator = kept
    rows = table(operator.get("/v1/journal/rows"))
    capsys.readouterr()
    assert main(["log", "cat", "--json", "--to", str(rows.num_rows), "--data", str(process.data)]) == 0
    assert lines(rows) == [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows.column("offset").to_pylist() == list(range(rows.num_rows))
    assert {"enqueue", "ack", "dead"} <= set(rows.column("event").to_pylist())


def test_a_range_comes_in_parts_that_say_where_to_go_on(kept):
    _, operator = kept
    end = bounds(operator)["end"]
    offset, parts = 1, []
    while offset < end:
        answer = operator.get("/v1/journal/rows", limit=4, columns="offset,id", **{"from": offset, "to": end})
        part = table(answer)
        assert part.num_rows <= 4 and part.schema.names == ["offset", "id"]
        following = int(answer.headers["X-Penstock-Next"])
        assert following == offset + part.num_rows and int(answer.headers["X-Penstock-End"]) >= end
        offset = following
        parts.append(part)
    whole = table(operator.get("/v1/journal/rows", columns="offset,id", **{"from": 1, "to": end}))
    assert pa.concat_tables(parts).equals(whole) and len(parts) > 2


def test_the_end_is_an_empty_part(kept):
    _, operator = kept
    end, answer = -1, None
    while end != bounds(operator)["end"]:  # a tick may come in between
        end = bounds(operator)["end"]
        answer = operator.get("/v1/journal/rows", columns="offset", **{"from": end})
    assert table(answer).num_rows == 0
    assert answer.headers["X-Penstock-Next"] == str(end) and answer.headers["X-Penstock-Epoch"] == "0"
    assert operator.ask("HEAD", "/v1/journal/rows").body == b""


def test_sealing_changes_no_row(kept):
    _, operator = kept
    end = bounds(operator)["end"]
    before = table(operator.get("/v1/journal/rows", to=end))
    report = operator.post("/v1/journal/seal", None).json
    assert report["sealedEnd"] == report["liveOffset"] >= end and report["endedReaders"] == []
    assert bounds(operator)["sealedEnd"] == report["sealedEnd"]
    assert table(operator.get("/v1/journal/rows", to=end)).equals(before)
    again = operator.post("/v1/journal/seal", None).json
    # Only what the server itself wrote meanwhile: a tick, at the half minute.
    since = table(operator.get("/v1/journal/rows", **{"from": report["sealedEnd"], "to": again["sealedEnd"]}))
    assert again["sealedRows"] == since.num_rows
    assert set(since.column("event").to_pylist()) <= {"tick", "gauge"}


@pytest.mark.parametrize(
    ("query", "ref"),
    [
        ({"from": 10**9}, "from"),
        ({"from": 3, "to": 2}, "to"),
        ({"from": -1}, "from"),
        ({"to": "soon"}, "to"),
        ({"limit": 0}, "limit"),
        ({"shard": 1}, "shard"),
        ({"columns": "offset,colour"}, "columns"),
        ({"columns": "offset,offset"}, "columns"),
        ({"since": "1h"}, None),
    ],
    ids=str,
)
def test_a_wrong_range_is_refused_by_name(kept, query, ref):
    _, operator = kept
    answer = operator.get("/v1/journal/rows", **query)
    assert (answer.status, answer.code) == (400, "InvalidRequest")
    assert ref is None or answer.error["ref"] == ref


def test_rows_that_are_no_longer_kept_are_gone(start_server, capsys):
    process = start_server(config="journal: {retention: {bytes_max: 1}}")
    operator = Http(process.http, operator_token(process))
    operator.enqueue("jobs", "a")
    report = operator.post("/v1/journal/seal", None).json
    assert report["removedFiles"] == 1 and report["removedBytes"] > 0
    operator.enqueue("jobs", "b")
    first = bounds(operator)["first"]
    assert first == report["sealedEnd"]
    answer = operator.get("/v1/journal/rows", **{"from": 0})
    assert (answer.status, answer.code) == (410, "RangeGone")
    assert str(first) in answer.error["message"]
    assert table(operator.get("/v1/journal/rows")).column("offset").to_pylist()[0] == first
    assert main(["log", "cat", "--from", "0", "--data", str(process.data), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "RangeGone"
    # What is live has its body in the live file: it is delivered all the same.
    got = operator.pull("jobs", max=2)
    assert [one["deliver"]["id"] for one in got] == ["a", "b"]
    for one in got:
        operator.settle(one["deliver"]["id"], "ack", leaseId=one["leaseId"])


# Who may


ROUTES = [("GET", "/v1/journal"), ("GET", "/v1/journal/rows"), ("POST", "/v1/journal/seal")]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_tokens_a_local_peer_needs_the_operators(kept, method, path):
    process, _ = kept
    answer = Http(process.http).ask(method, path)
    assert (answer.status, answer.code) == (401, "Unauthorized")
    assert "operator" in answer.error["message"]
    assert Http(process.http, "wrong").ask(method, path).status == 401


@pytest.mark.promise("Journal", "`GET /v1/journal` and rows as an Arrow stream need the right scope")
def test_with_tokens_the_scope_decides_and_no_token_is_in_any_row(start_server):
    process = start_server(config=TOKENS)
    secrets = ["plain-secret-7351", "chief-secret-9917", "agent-secret-4422"]
    plain, chief, agent = (Http(process.http, secret) for secret in secrets)
    operator = Http(process.http, operator_token(process))
    for method, path in ROUTES:
        assert Http(process.http).ask(method, path).status == 401
        for refused in (plain, agent):
            assert refused.ask(method, path).code == "Forbidden"
    for number, client in enumerate((plain, chief, agent, operator)):
        client.enqueue("jobs", f"job-{number}")
    with connected(process.control) as control:
        control.say({"type": "hello", "version": "v1", "token": secrets[2], "reqId": "h"})
        control.frame()
        control.say({"type": "enqueue", "to": "jobs", "env": envelope("by-line"), "reqId": "e"})
        control.frame()
        for job in agent.pull("jobs", max=5):
            assert agent.settle(job["deliver"]["id"], "ack", leaseId=job["leaseId"]).status == 200
    assert chief.post("/v1/journal/seal", None).status == 200
    rows = table(chief.get("/v1/journal/rows"))
    assert rows.num_rows >= 11
    assert table(operator.get("/v1/journal/rows", to=rows.num_rows)).equals(rows)
    text = json.dumps(lines(rows))
    files = [path for path in process.data.rglob("*") if path.is_file() and path.parent.name != "run"]
    for secret in (*secrets, operator_token(process)):
        assert secret not in text
        assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_a_server_without_a_data_directory_has_no_journal(tmp_path):
    command = [sys.executable, "-m", "penstock.cli", "up", "--data", "none", "--json", "--no-relay"]
    command += ["--http", "127.0.0.1:0", "--control", "127.0.0.1:0"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        up = json.loads(process.stdout.readline())
        with open(f"{up['run']}/operator.token") as file:
            operator = Http(up["http"], file.read().strip())
        for method, path in ROUTES:
            answer = operator.ask(method, path)
            assert (answer.status, answer.code) == (404, "UnknownRoute")
            assert "--data" in answer.error["hint"]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


# The bound of an answer


def rows_of(sizes):
    columns = {field.name: pa.nulls(len(sizes), field.type) for field in FILE_SCHEMA}
    columns["offset"] = pa.array(range(len(sizes)), pa.int64())
    columns["body"] = pa.array([b"x" * size for size in sizes], pa.binary())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=FILE_SCHEMA)


@pytest.mark.parametrize(
    ("sizes", "bytes_max", "expected"),
    [
        ([100] * 50, 1 << 20, 50),
        ([1000] * 50, 10_000, None),
        ([50_000, 1, 1], 10_000, 1),  # larger than the bound, and still on its way
        ([1, 50_000, 1], 10_000, 1),
        ([], 10_000, 0),
    ],
)
def test_an_answer_is_cut_at_its_bound_and_never_stands_still(sizes, bytes_max, expected):
    stream, count = encode_stream([rows_of(sizes)] * (1 if sizes else 0), FILE_SCHEMA, bytes_max)
    with pa.ipc.open_stream(io.BytesIO(stream)) as opened:
        assert opened.read_all().num_rows == count
    if expected is not None:
        assert count == expected
    else:
        assert 0 < count < len(sizes) and len(stream) <= 1.5 * bytes_max
