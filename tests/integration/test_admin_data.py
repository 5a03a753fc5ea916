"""Reads of an administrator on a running server: the tail of its journal, its tables, alerts, and SQL."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.answerers import answerers
from tests.integration.serving import Http, connected, encode, envelope, read_answer, until
from tests.server_process import ServerProcess

CONFIG = """\
auth:
  tokens:
    - {name: plain, token: plain-secret-7351, scopes: ["streams:*:*", "views:*:*"]}
    - {name: chief, token: chief-secret-9917, scopes: ["admin:*", "streams:*:*"]}
console: {sql_ms: 600000}
"""
ROUTES = [
    ("GET", "/v1/tail", None),
    ("GET", "/v1/pipeline", None),
    ("GET", "/v1/lake", None),
    ("GET", "/v1/alerts", None),
    ("POST", "/v1/sql", {"query": "select count(*) from notes"}),
]


class Kept:
    """The shared server and the requests of its administrator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start()

    def start(self) -> None:
        self.process = ServerProcess(self.folder, config=CONFIG)
        self.chief = Http(self.process.http, "chief-secret-9917")

    @property
    def operator_token(self) -> str:
        return (self.process.data / "run" / "operator.token").read_text().strip()

    def tail(self, **query):
        answer = self.chief.get("/v1/tail", **query)
        assert answer.status == 200, answer
        return answer.json


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    found = Kept(tmp_path_factory.mktemp("desk"))
    lake = found.process.data / "lake"
    write_deltalake(lake / "notes", pa.table({"n": [1, 2, 3], "text": ["a", "b", "c"]}))
    yield found
    found.process.stop()


@pytest.mark.promise("Tail and SQL for administrators", "every route is for administrators only, by token or cookie")
@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
def test_only_an_administrator_may_look(kept, method, path, body):
    url = kept.process.http
    assert Http(url).ask(method, path, body).code == "Unauthorized"
    assert Http(url, "plain-secret-7351").ask(method, path, body).code == "Forbidden"
    assert kept.chief.ask(method, path, body).status == 200
    signed_in = Http(url).post("/console/session", {"token": kept.operator_token})
    cookie = signed_in.headers["Set-Cookie"].split(";")[0]
    assert Http(url).ask(method, path, body, headers={"Cookie": cookie}).status == 200
    assert Http(url).ask(method, path, body, headers={"Cookie": cookie + "x"}).status == 401


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "the tail returns exactly the matching rows, once each and in order, sealed or not",
)
def test_the_tail_follows_what_is_sent_and_finds_it_again(kept):
    begin = kept.tail()["next"]
    with_corr = [envelope("t1", "Hello", corr="talk"), envelope("t2", "World", corr="talk"), envelope("t3")]
    assert kept.chief.post("/v1/enqueue", {"to": "rooms/tail", "envelopes": with_corr}).status == 200
    answer = kept.tail(after=begin, wait_ms=20_000)
    rows = [row for row in answer["rows"] if row.get("channel") == "rooms/tail"]
    assert [(row["event"], row["id"], row["kind"], row["door"]) for row in rows] == [
        ("enqueue", id_, "note", "courier") for id_ in ("t1", "t2", "t3")
    ]
    assert '"payload":"Hello"' in rows[0]["body"] and rows[0]["body_cut"] is False
    assert answer["next"] == answer["end"] and answer["missed"] == 0 and answer["first"] == 0
    assert kept.chief.post("/v1/journal/seal", None).status == 200  # the same from the table

    def found(**query):
        return [row["id"] for row in kept.tail(after=begin, **query)["rows"]]

    assert found(corr="talk") == ["t1", "t2"]
    assert found(text="world") == ["t2"]
    assert found(channel="rooms/*", id="t3") == ["t3"]
    assert found(channel="rooms/*", kind="other") == []
    assert [row["id"] for row in kept.tail(channel="rooms/*", back=2)["rows"]] == ["t2", "t3"]
    assert kept.tail(after=begin, channel="rooms/*", max=1)["next"] <= answer["next"]


def test_a_tail_that_waits_is_answered_when_something_comes(kept):
    begin = kept.tail()["next"]
    answers = []
    waiting = threading.Thread(
        target=lambda: answers.append(kept.tail(after=begin, id="woken", wait_ms=20_000)), daemon=True
    )
    waiting.start()
    kept.chief.enqueue("rooms/wait", "other")
    kept.chief.enqueue("rooms/wait", "woken")
    waiting.join(15)
    assert [row["id"] for row in answers[0]["rows"]] == ["woken"]


@pytest.mark.parametrize(
    "query",
    [{"max": 0}, {"max": 2_001}, {"wait_ms": 20_001}, {"after": -1}, {"skip": 2}, {"back": "x"}, {"nope": 1}],
)
def test_a_query_out_of_bounds_is_refused(kept, query):
    assert kept.chief.get("/v1/tail", **query).code == "InvalidRequest"


def test_tables_are_listed_and_asked(kept):
    tables = {table["name"]: table for table in kept.chief.get("/v1/lake").json["tables"]}
    assert tables["notes"]["rows"] == 3 and tables["notes"]["columns"][0] == {"name": "n", "type": "int64"}
    answer = kept.chief.post("/v1/sql", {"query": "select n, text from notes order by n", "limit": 2}).json
    assert answer["columns"] == ["n", "text"] and answer["rows"] == [[1, "a"], [2, "b"]] and answer["truncated"]
    refused = kept.chief.post("/v1/sql", {"query": "/* /* */ select */ copy notes to 'out.csv'"})
    assert refused.code == "InvalidRequest" and not (kept.folder / "out.csv").exists()
    for body in ({"query": ""}, {"query": "x", "limit": 0}, {"query": "x" * 20_001}, {"sql": "x"}, {}):
        assert kept.chief.post("/v1/sql", body).code == "InvalidRequest"


@pytest.mark.promise(
    "Tail and SQL for administrators",
    "a query is bounded in time, memory, rows and bytes, and ends when its client disconnects",
)
def test_a_question_ends_when_its_peer_hangs_up(kept):
    query = (
        "select count(*) from notes, generate_series(1, 1000000) a, generate_series(1, 1000000) b where a.value % 7 = n"
    )
    body = encode({"query": query})
    head = "POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer chief-secret-9917\r\n"

    pid = kept.process.process.pid
    with connected(kept.process.http) as connection:
        connection.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: answerers(pid, at_work=True), "a process that answers")
    until(lambda: not answerers(pid), "its end")


def test_there_is_no_pipeline_and_nothing_to_tell(kept):
    assert kept.chief.get("/v1/pipeline").json["state"] == "off"
    assert kept.chief.get("/v1/alerts").json == {"alerts": []}


@pytest.mark.promise("Tail and SQL for administrators", "a follower continues after a restart")
def test_a_follower_is_let_go_at_a_stop_and_goes_on_after_the_restart_without_a_gap(kept):
    begin = kept.tail()["next"]
    asks = f"GET /v1/tail?after={begin}&id=never&wait_ms=20000 HTTP/1.1\r\nHost: localhost\r\n"
    with connected(kept.process.http) as connection:
        connection.write(f"{asks}Authorization: Bearer chief-secret-9917\r\n\r\n".encode())
        kept.chief.enqueue("rooms/restart", "before")
        assert kept.process.stop() == 0
        answer = read_answer(connection)
    assert answer.status == 200 and answer.json["rows"] == []
    kept.start()
    kept.chief.enqueue("rooms/restart", "after")
    found = kept.tail(after=begin, wait_ms=10_000)
    told = [row.get("id") or row["event"] for row in found["rows"]]
    assert [one for one in told if one in ("before", "stop", "start", "after")] == [
        "before",
        "stop",
        "start",
        "after",
    ]
    assert found["missed"] == 0
