"""Staged batches on a real server: parts, commits, limits, and kill -9."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from penstock.client.admin import Stage, StageCommitted
from penstock.core.errors import PenstockError
from tests.integration.serving import Http, encode, envelope, until
from tests.server_process import ServerProcess

APPS = (f"app-{number}" for number in itertools.count())
LARGE = 10_500
"""More envelopes than a stream remembers settled ids."""


@pytest.fixture
def app() -> str:
    """An application that no other test uses."""
    return next(APPS)


def line(to: str, payload: Any = None, **more: Any) -> dict[str, Any]:
    return {"to": to, "type": "note", "payload": payload, **more}


def lines(*rows: dict[str, Any]) -> bytes:
    return b"\n".join(encode(row) for row in rows)


class Staging:
    """The routes of one application."""

    def __init__(self, http: Http, app: str) -> None:
        self.http = http
        self.app = app

    def part(self, batch: int, name: str, *rows: dict[str, Any], run: str = "") -> Any:
        query = f"?run={run}" if run else ""
        return self.http.post(f"/v1/stage/{self.app}/{batch}/parts/{name}{query}", lines(*rows))

    def commit(self, batch: int, *names: str) -> Any:
        return self.http.post(f"/v1/stage/{self.app}/{batch}/commit", {"parts": list(names)})

    def abort(self, batch: int) -> Any:
        return self.http.post(f"/v1/stage/{self.app}/{batch}/abort", b"")

    def last(self) -> int | None:
        answer = self.http.get(f"/v1/stage/{self.app}")
        assert answer.status == 200, answer
        last: int | None = answer.json["last"]
        return last


@pytest.fixture
def staging(http, app) -> Staging:
    return Staging(http, app)


def waiting(http: Http, stream: str) -> list[dict[str, Any]]:
    """What is in a stream; a lease would have the server wait for it at its end."""
    answer = http.get("/v1/peek", stream=stream, max=100)
    assert answer.status == 200, answer
    return [row["env"] for row in answer.json["rows"]]


def payloads(http: Http, stream: str) -> list[Any]:
    return sorted(one["payload"] for one in waiting(http, stream))


def test_a_batch_comes_in_once_with_all_that_is_filled_in(http, staging, app, stream):
    staged = staging.part(0, "a", line(stream, 1), line(stream, 2, corr="c", headers={"x-penstock-hop": "2"}))
    assert staged.json == {"app": app, "batch": 0, "part": "a", "staged": 2}
    staging.part(0, "b", line(stream, 3, id="mine", ts="2026-01-01T00:00:00Z", tags=["t"], headers=None))
    assert staging.last() is None
    done = staging.commit(0, "a", "b")
    assert done.json == {"app": app, "batch": 0, "enqueued": 3, "duplicate": False}
    again = {"app": app, "batch": 0, "enqueued": 0, "duplicate": True, "last": 0}
    assert staging.commit(0, "a", "b").json == again
    assert staging.commit(0, "never-staged").json == again
    assert staging.last() == 0
    one, two, three = waiting(http, stream)
    assert {row["from"] for row in (one, two, three)} == {f"pipeline/{app}"}
    assert [row["headers"] for row in (one, two, three)] == [{"x-penstock-hop": hop} for hop in (1, 3, 1)]
    assert (two["corr"], three["id"], three["ts"], three["tags"]) == (
        "c",
        "mine",
        "2026-01-01T00:00:00Z",
        ["t"],
    )
    assert one["id"].startswith("s-") and len(one["id"]) == 66 and one["ts"].endswith("Z")
    assert http.get(f"/v1/envelopes/{one['id']}").status == 200


def test_only_the_parts_that_are_named_count(http, staging, stream):
    """Speculative duplicates: two attempts of one partition, of which one won."""
    staging.part(0, "0.1", line(stream, "first"))
    staging.part(0, "0.2", line(stream, "first"))
    staging.part(0, "1.1", line(stream, "replaced"))
    staging.part(0, "1.1", line(stream, "second"))
    assert staging.commit(0, "0.2", "1.1", "0.2").json["enqueued"] == 2
    assert staging.part(0, "0.3", line(stream, "late")).json["staged"] == 1
    assert staging.commit(0, "0.3").json["duplicate"]
    assert payloads(http, stream) == ["first", "second"]


def test_equal_rows_of_one_part_and_of_two_all_arrive(http, staging, stream):
    staging.part(0, "a", line(stream, 1), line(stream, 1))
    staging.part(0, "b", line(stream, 1), line(stream, 2))
    assert staging.commit(0, "a", "b").json["enqueued"] == 4
    assert payloads(http, stream) == [1, 1, 1, 2]
    assert len({one["id"] for one in waiting(http, stream)}) == 4


def test_applications_keep_their_own_count(http, stream):
    one, two = Staging(http, next(APPS)), Staging(http, next(APPS))
    for each, batch in ((one, 7), (two, 0)):
        each.part(batch, "p", line(stream, each.app))
        assert each.commit(batch, "p").json["enqueued"] == 1
    assert (one.last(), two.last()) == (7, 0)


def test_what_was_aborted_or_belongs_to_another_run_is_gone(http, staging, stream):
    staging.part(0, "a", line(stream, 1), run="first")
    assert staging.abort(0).json["dropped"] == 1
    assert staging.abort(0).json["dropped"] == 0
    missing = staging.commit(0, "a", "b")
    assert (missing.status, missing.code, missing.error["ref"]) == (404, "UnknownPart", "a")
    assert "`a`, `b`" in missing.error["message"] and "run the batch again" in missing.error["hint"]
    staging.part(0, "a", line(stream, 2), run="first")
    staging.part(0, "b", line(stream, 3), run="second")
    assert staging.commit(0, "a", "b").error["ref"] == "a"
    assert staging.commit(0, "b").json["enqueued"] == 1
    assert payloads(http, stream) == [3]


@pytest.mark.parametrize(
    ("bad", "code", "ref"),
    [
        (b"{", "InvalidJSON", "lines[1]"),
        (b"[1]", "InvalidEnvelope", "lines[1]"),
        (b'{"to":"q","to":"p","type":"t","payload":1}', "InvalidJSON", "lines[1].to"),
        (encode({"type": "t", "payload": 1}), "InvalidEnvelope", "lines[1].to"),
        (encode({"to": "q", "payload": 1}), "InvalidEnvelope", "lines[1].type"),
        (encode({"to": "q", "type": "t"}), "InvalidEnvelope", "lines[1].payload"),
        (encode(line("q", id=None)), "InvalidEnvelope", "lines[1].id"),
        (encode(line("a:b")), "InvalidRequest", "lines[1].stream"),
        (encode(line("q", headers=[1])), "InvalidEnvelope", "lines[1].headers"),
        (
            encode(line("q", headers={"x-penstock-hop": -1})),
            "InvalidEnvelope",
            "lines[1].headers.x-penstock-hop",
        ),
        (encode(line("q", **{"from": "sam"})), "Forbidden", "lines[1].from"),
        (encode(line("q", "x" * 1_100_000)), "TooLarge", "lines[1]"),
    ],
)
def test_a_bad_line_is_named_and_nothing_of_its_part_is_kept(http, staging, stream, bad, code, ref):
    answer = http.post(f"/v1/stage/{staging.app}/0/parts/p", lines(line(stream)) + b"\n\n" + bad)
    assert (answer.code, answer.error["ref"]) == (code, ref)
    assert staging.commit(0, "p").code == "UnknownPart"


@pytest.mark.parametrize(
    ("path", "ref"),
    [
        ("a%20b/0/abort", "app"),
        ("x/-1/abort", "batch"),
        ("x/1.5/abort", "batch"),
        ("x/0/parts/a%20b", "part"),
    ],
)
def test_names_are_checked(http, path, ref):
    answer = http.post(f"/v1/stage/{path}", b"")
    assert (answer.status, answer.code, answer.error["ref"]) == (400, "InvalidRequest", ref)


TOKENS = """
auth:
  tokens:
    - {token: token-of-the-line, scopes: ["streams:lines/*:enqueue"]}
    - {token: token-of-sam, agent: sam, scopes: ["streams:*:enqueue"]}
"""


def test_a_token_says_who_sends_and_where_to(start_server):
    server = start_server(config=TOKENS)
    narrow, sam = (Staging(Http(server.http, token), "x") for token in ("token-of-the-line", "token-of-sam"))
    assert Staging(Http(server.http), "x").abort(0).status == 401
    assert narrow.part(0, "p", line("lines/1", 1)).status == 200
    refused = narrow.part(0, "q", line("lines/1", 1), line("other", 1))
    assert (refused.status, refused.error["ref"]) == (403, "lines[1].streams:other:enqueue")
    assert narrow.commit(0, "p").json["enqueued"] == 1
    # An agent's applications are its own, whatever they are called.
    assert sam.last() is None
    assert sam.part(0, "p", line("other", 1, **{"from": "agents/sam/desk"}), line("other", 2)).status == 200
    assert sam.part(0, "q", line("other", 1, **{"from": "pipeline/x"})).status == 403
    assert sam.commit(0, "p").json["enqueued"] == 2
    operator = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
    assert [row["from"] for row in waiting(operator, "other")] == ["sam", "sam"]
    assert [row["from"] for row in waiting(operator, "lines/1")] == ["pipeline/x"]


SMALL = """
limits: {stage_bytes_max: 20000, stage_envelopes_max: 12, stage_apps_max: 3, stage_ms: 300, batch_max: 10}
streams: {maxDepth: 4}
"""


def test_bounds_refuse_and_say_what_helps(start_server):
    http = Http(start_server(config=SMALL).http)
    one, two = Staging(http, "one"), Staging(http, "two")
    many = one.part(0, "p", *(line("q", n) for n in range(11)))
    assert (many.status, many.code) == (400, "InvalidRequest") and "1 to 10" in many.error["message"]
    assert one.part(0, "p").code == "InvalidRequest"
    large = one.part(0, "p", line("q", "x" * 20_000))
    assert (large.status, large.code) == (413, "TooLarge") and "maxOffsetsPerTrigger" in large.error["hint"]
    assert one.part(0, "p", line("q", "x" * 12_000)).status == 200
    full = two.part(0, "p", line("q", "x" * 12_000))
    assert (full.status, full.code, full.headers["Retry-After"]) == (429, "QuotaExceeded", "1")
    # What one has abandoned goes by itself, and then there is room.
    with Stage(http.url) as stage:
        assert stage.part("two", 0, "p", [encode(line("q", "x" * 12_000))]) == 1
    assert two.abort(0).json["dropped"] == 1
    for name in ("p", "q"):
        assert one.part(1, name, *(line(f"q/{n}", n) for n in range(7))).status == 200
    over = one.commit(1, "p", "q")
    assert (over.status, over.code) == (413, "TooLarge") and "stage_envelopes_max" in over.error["message"]
    assert one.commit(1, "p").json["enqueued"] == 7


@pytest.mark.promise("Spark: source and sinks", "the sink honours 429 and Retry-After")
def test_a_full_stream_refuses_the_whole_commit_and_a_later_try_succeeds(start_server):
    http = Http(start_server(config="streams: {maxDepth: 4}").http)
    http.enqueue("full", *"abcd")
    staging = Staging(http, "x")
    staging.part(0, "p", line("empty", 1), line("full", 2))
    refused = staging.commit(0, "p")
    assert (refused.status, refused.code, refused.headers["Retry-After"]) == (429, "StreamFull", "1")
    assert http.get("/v1/stats", stream="empty").status == 404
    assert staging.last() is None
    waits: list[float] = []

    def make_room(wait_s: float) -> None:
        waits.append(wait_s)
        (delivery,) = http.pull("full")
        http.settle(delivery["deliver"]["id"], "ack", leaseId=delivery["leaseId"])

    with Stage(http.url, sleep=make_room) as stage:
        done = stage.commit("x", 0, ["p"])
        assert (done.enqueued, done.duplicate, done.tries, waits) == (2, False, 2, [1.0])
        stage.part("x", 1, "p", [encode(line("full", n)) for n in range(5)])
        with pytest.raises(PenstockError, match="more than it holds"):
            stage.commit("x", 1, ["p"])


def stage_large(server: ServerProcess) -> StageCommitted:
    rows = [encode(line("jobs", n)) for n in range(LARGE)]
    names = []
    with Stage(server.http) as stage:
        for start in range(0, LARGE, 3_000):
            names.append(f"p{start}")
            stage.part("x", 0, names[-1], rows[start : start + 3_000])
        return stage.commit("x", 0, names)


@pytest.mark.promise("Spark: source and sinks", "the newest batch of an application is durable with its envelopes")
@pytest.mark.parametrize("is_sealed", [False, True])
def test_kill_9_neither_loses_a_committed_batch_nor_takes_it_twice(start_server, is_sealed):
    """Also one that is larger than the window of ids, and whose memory is only in the live file."""
    server = start_server()
    done = stage_large(server)
    assert (done.enqueued, done.duplicate) == (LARGE, False)
    for number in range(2 if is_sealed else 0):  # the second live file is made of the first, not of history
        operator = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
        sealed = operator.post("/v1/journal/seal", b"")
        assert sealed.status == 200 and sealed.json["liveOffset"] > 0
        operator.enqueue("other", f"after-{number}")
    server.kill()
    server = start_server()
    http = Http(server.http, (server.data / "run" / "operator.token").read_text().strip())
    assert Staging(http, "x").last() == 0
    assert http.stats("jobs")["depth"] == LARGE
    assert http.post("/v1/purge", {"stream": "jobs"}).json == {"purged": LARGE}
    again = stage_large(server)
    assert (again.enqueued, again.duplicate, again.last) == (0, True, 0)
    stats = http.stats("jobs")
    assert (stats["depth"], stats["seq"]) == (0, LARGE)


def test_parts_do_not_survive_a_restart_and_the_commit_says_so(start_server):
    server = start_server()
    staging = Staging(Http(server.http), "x")
    staging.part(0, "p", line("q", 1))
    server.kill()
    http = Http(start_server().http)
    staging = Staging(http, "x")
    with Stage(http.url) as stage, pytest.raises(PenstockError, match="run the batch again"):
        stage.commit("x", 0, ["p"])
    staging.part(0, "p2", line("q", 1))
    assert staging.commit(0, "p2").json["enqueued"] == 1
    assert payloads(http, "q") == [1]


def test_the_log_at_its_most_talkative_knows_of_batches(start_server):
    server = start_server(config="logs: {level: debug}")
    staging = Staging(Http(server.http), "x")
    staging.part(0, "p", line("q", 1))
    assert staging.commit(0, "p").status == 200
    assert Http(server.http).post("/v1/enqueue", {"to": "q", "envelope": envelope("later")}).status == 200
    until(lambda: "staged" in server.log(), "the line of the log")
