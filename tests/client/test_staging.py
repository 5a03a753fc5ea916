"""The client of staged batches against a scripted server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest

from penstock.client.admin import BACK_OFF_MAX_S, Stage
from penstock.core.errors import PenstockError

DONE = (200, {"app": "a", "batch": 0, "enqueued": 1, "duplicate": False}, {})


def refusal(status: int, code: str, **more: Any) -> tuple[int, Any, dict[str, str]]:
    error = {"code": code, "message": "no", "status": status, "retryable": True, "hint": "h", **more}
    return status, {"error": error}, {}


class Scripted(HTTPServer):
    """Sends its answers in turn and repeats the last one; an answer of None closes the connection."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = list(answers)
        self.asked: list[tuple[str, str, bytes, str | None]] = []
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((self.command, self.path, body, self.headers.get("Authorization")))
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            return
        status, content, headers = answer
        data = content if isinstance(content, bytes) else msgspec.json.encode(content)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *words: Any) -> None:
        """Log nothing."""


@pytest.fixture
def scripted(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    server = Scripted(*request.param)
    yield server
    server.shutdown()
    server.thread.join()
    server.server_close()


def answers(*given: Any) -> Any:
    return pytest.mark.parametrize("scripted", [given], indirect=True)


@answers(DONE)
def test_asks_what_the_routes_expect(scripted):
    scripted.answers = [(200, {"staged": 2}, {}), DONE, (200, {"dropped": 3}, {}), (200, {"last": None}, {})]
    with Stage(scripted.url, "secret") as stage:
        assert stage.part("a b", 7, "0.1", [b"{}", b"{}"], run="r") == 2
        assert stage.commit("a", 0, ["x", "y"]).enqueued == 1
        assert stage.abort("a", 0) == 3
        assert stage.last("a") is None
    assert scripted.asked == [
        ("POST", "/v1/stage/a%20b/7/parts/0.1?run=r", b"{}\n{}", "Bearer secret"),
        ("POST", "/v1/stage/a/0/commit", b'{"parts":["x","y"]}', "Bearer secret"),
        ("POST", "/v1/stage/a/0/abort", b"", "Bearer secret"),
        ("GET", "/v1/stage/a", b"", "Bearer secret"),
    ]


@pytest.mark.promise("Spark: source and sinks", "the sink honours 429 and Retry-After")
@answers(
    (*refusal(429, "StreamFull")[:2], {"Retry-After": "7"}),
    refusal(503, "JournalUnavailable", retryAfterMs=1_500),
    None,
    None,
    (502, b"<html>", {}),
    DONE,
)
def test_waits_for_retry_after_and_backs_off_without_it(scripted):
    waits: list[float] = []
    with Stage(scripted.url, sleep=waits.append) as stage:
        done = stage.commit("a", 0, ["x"])
    assert (done.enqueued, done.tries) == (1, 6)
    assert waits == [7.0, 1.5, 0.4, 0.8, 1.6]


@answers(refusal(429, "StreamFull", retryAfterMs=1_000))
def test_gives_up_after_its_limit_and_reports_the_last_error(scripted):
    with Stage(scripted.url, "secret", patience_s=0.5) as stage, pytest.raises(PenstockError) as caught:
        stage.commit("a", 0, ["x"])
    assert caught.value.code == "StreamFull" and len(scripted.asked) == 1
    assert "secret" not in str(caught.value)


@answers(refusal(404, "UnknownPart", hint="run the batch again"))
def test_a_permanent_error_is_raised_at_once(scripted):
    with Stage(scripted.url) as stage, pytest.raises(PenstockError, match="run the batch again"):
        stage.commit("a", 0, ["x"])
    assert len(scripted.asked) == 1


@answers(refusal(418, "SomethingNew", message="a later Penstock says so"))
def test_a_code_of_a_later_server_is_still_an_error(scripted):
    with Stage(scripted.url, patience_s=0) as stage, pytest.raises(PenstockError, match="a later Penstock"):
        stage.last("a")


def test_a_server_that_stays_away_is_named_with_how_long_it_was_tried():
    closed = Scripted(DONE)
    closed.shutdown()
    closed.thread.join()
    closed.server_close()
    waits: list[float] = []

    def sleep(wait_s: float) -> None:
        waits.append(wait_s)
        if len(waits) == 8:
            raise TimeoutError

    with Stage(closed.url, sleep=sleep) as stage, pytest.raises(TimeoutError):
        stage.last("a")
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, BACK_OFF_MAX_S, BACK_OFF_MAX_S]
    with Stage(closed.url, patience_s=0.15) as stage, pytest.raises(PenstockError) as caught:
        stage.last("a")
    assert caught.value.code == "Unreachable"
    assert closed.url in str(caught.value) and "after 2 tries" in str(caught.value)


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:9787", "localhost", "http://"])
def test_only_an_http_door_will_do(url):
    with pytest.raises(PenstockError, match="HTTP door"):
        Stage(url)
