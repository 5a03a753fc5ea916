"""A reload of the config applies completely or not at all."""

from __future__ import annotations

import signal

import msgspec
import pytest

from tests.integration.serving import Http, connected, envelope, run, sockets, until
from tests.server_process import ServerProcess

TOKENS = """
auth:
  tokens:
    - {token: sam-1, name: sam, scopes: ["streams:*:*"]}
    - {token: sam-2, name: sam, scopes: ["streams:*:*"]}
    - {token: ann, scopes: ["streams:ann/*:*", "streams:bob/*:*"], name: ann}
    - {token: read, scopes: ["streams:*:read"], name: reader}
"""


class Reloading:
    """A server and its config file."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.file = process.folder / "config.yaml"
        self.operator = Http(process.http, (process.data / "run" / "operator.token").read_text().strip())

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def reload(self, text: str):
        """Change the file, and have it read by the operator's request."""
        self.write(text)
        return self.operator.post("/v1/reload", b"")

    def hang_up(self, text: str, event: str) -> list[dict]:
        """Change the file, send the signal, and wait for what the log says next."""
        before = len(self.process.log())
        self.write(text)
        self.process.process.send_signal(signal.SIGHUP)
        log = until(lambda: f'"event":"{event}"' in self.process.log()[before:] and self.process.log(), event)
        lines = log[before:].splitlines()
        return [msgspec.json.decode(line) for line in lines if line.startswith("{")]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One server for all tests: each begins with a file of its own."""
    process = ServerProcess(tmp_path_factory.mktemp("reload"), config="")
    yield Reloading(process)
    process.stop()


@pytest.fixture
def start(running):
    def begin(text: str) -> Reloading:
        answer = running.reload(text)
        assert answer.status == 200, answer
        return running

    return begin


def enqueue(http: Http, stream: str, id_: str):
    return http.post("/v1/enqueue", {"to": stream, "envelope": envelope(id_)})


@pytest.mark.promise("Limits, reload and HTTP details", "a reload applies all or nothing and reports every problem")
def test_a_signal_brings_a_good_file_in_and_leaves_a_broken_one_out(start):
    server = start("streams: {maxDepth: 3}")
    http = Http(server.process.http)
    http.enqueue("s", "1", "2", "3")
    assert enqueue(http, "s", "4").code == "StreamFull"

    events = server.hang_up("streams: {maxDepth: 4, redelivery: head}\nlogs: {level: debug}", "config.reloaded")
    (done,) = [row for row in events if row["event"] == "config.reloaded"]
    assert done["changed"] == ["streams.maxDepth", "streams.redelivery", "logs.level"]
    assert enqueue(http, "s", "4").status == 200
    assert '"event":"enqueue"' in until(lambda: '"id":"4"' in server.process.log() and server.process.log())

    broken = "streams: {maxDepth: 9, maxDpth: 1}\nlimits: {id_max: 0}\n"
    events = server.hang_up(broken, "config.refused")
    problems = [row["problem"] for row in events if row["event"] == "config.problem"]
    assert len(problems) == 2 and "did you mean `maxDepth`?" in problems[0] and "limits.id_max" in problems[1]
    assert enqueue(http, "s", "5").code == "StreamFull"  # nothing of it counts

    answer = server.reload("streams: {maxDepth: 1}")  # less than there is: nothing is dropped
    assert answer.json == {
        "changed": ["streams.maxDepth", "streams.redelivery", "logs.level"],
        "restart": [],
        "closed": 0,
    }
    assert http.stats("s")["depth"] == 4 and enqueue(http, "s", "5").code == "StreamFull"
    assert [row["env"]["id"] for row in http.get("/v1/peek", stream="s").json["rows"]] == ["1", "2", "3", "4"]


@pytest.mark.promise("Limits, reload and HTTP details", "a reload applies all or nothing and reports every problem")
def test_a_reload_reports_every_problem_and_what_needs_a_restart(start):
    server = start("streams: {maxDepth: 3}")
    answer = server.reload("streams: {maxDepth: high}\nauth: {tokens: [{token: a}]}")
    assert (answer.status, answer.code) == (422, "InvalidConfig")
    assert "streams.maxDepth" in answer.error["message"] and "auth.tokens[0].scopes" in answer.error["message"]
    server.file.unlink()
    assert "cannot read" in server.operator.post("/v1/reload", b"").error["message"]

    answer = server.reload("listen: {ws: 'localhost:1', origins: ['https://a.example']}\njournal: {linger_us: 5}")
    assert answer.json["changed"] == ["streams.maxDepth", "listen.origins"]
    assert answer.json["restart"] == ["listen.ws", "journal.linger_us"]
    page = server.operator.get("/health", {"Origin": "https://a.example"})
    assert page.headers["Access-Control-Allow-Origin"] == "https://a.example"
    again = server.operator.post("/v1/reload", b"")
    assert (again.json["changed"], again.json["restart"]) == ([], ["listen.ws", "journal.linger_us"])


def test_only_an_administrator_reloads(start):
    server = start(TOKENS)
    assert Http(server.process.http).post("/v1/reload", b"").code == "Unauthorized"
    assert Http(server.process.http, "sam-1").post("/v1/reload", b"").code == "Forbidden"


@pytest.mark.promise(
    "Limits, reload and HTTP details",
    "a revoked token is disconnected; a token with fewer scopes is checked again",
)
def test_connections_of_a_revoked_token_are_closed_and_no_others(start):
    server = start(TOKENS)

    async def go():
        async with sockets(server.process.http) as ways:
            revoked = await ways.subscribe("s", headers={"Authorization": "Bearer sam-1"})
            kept = await ways.subscribe("s", headers={"Authorization": "Bearer sam-2"})
            with connected(server.process.control) as line:
                line.say({"type": "hello", "version": "v1", "token": "sam-1"})
                line.frame("ok")
                report = server.reload(TOKENS.replace("{token: sam-1,", "{token: sam-9,")).json
                assert (report["changed"], report["closed"]) == (["auth.tokens"], 2)
                assert (await revoked.error())["code"] == "Unauthorized"
                assert await revoked.closed() == 1008
                assert line.error()["code"] == "Unauthorized"
                assert line.rest() == b""
            await kept.nothing()
            await kept.ws.close()

    run(go())
    assert enqueue(Http(server.process.http, "sam-1"), "revoked", "1").code == "Unauthorized"
    assert enqueue(Http(server.process.http, "sam-9"), "revoked", "1").status == 200


@pytest.mark.promise(
    "Limits, reload and HTTP details",
    "a revoked token is disconnected; a token with fewer scopes is checked again",
)
def test_a_token_that_allows_less_is_asked_at_the_next_request(start):
    server = start(TOKENS)
    with connected(server.process.control) as line, connected(server.process.control) as reader:
        for peer in (line, reader):
            peer.say({"type": "hello", "version": "v1", "token": "ann"})
            peer.frame("ok")
        line.say({"type": "enqueue", "to": "bob/1", "env": envelope("1"), "reqId": 1})
        line.result(1)
        reader.say({"type": "subscribe", "stream": "bob/1", "credit": 5, "reqId": 2})
        reader.result(2)
        assert reader.frame("deliver")["env"]["id"] == "1"
        assert server.reload(TOKENS.replace(', "streams:bob/*:*"', "")).json["closed"] == 1
        assert reader.error()["code"] == "Forbidden"  # a subscription that it may not have any more
        assert reader.rest() == b""
        line.say({"type": "enqueue", "to": "bob/1", "env": envelope("2"), "reqId": 3})
        assert line.error()["code"] == "Forbidden"
        line.say({"type": "enqueue", "to": "ann/1", "env": envelope("2"), "reqId": 4})
        assert line.result(4)["id"] == "2"


@pytest.mark.promise(
    "Limits, reload and HTTP details",
    "a revoked token is disconnected; a token with fewer scopes is checked again",
)
def test_when_tokens_come_to_be_needed_everybody_without_one_goes(start):
    server = start("streams: {maxDepth: 3}")
    with connected(server.process.control) as line:
        line.ping()
        assert server.reload(TOKENS).json["closed"] == 1
        assert line.error()["code"] == "Unauthorized" and line.rest() == b""
    with connected(server.process.control) as line:
        line.say({"type": "hello", "version": "v1", "token": "ann"})
        line.frame("ok")
        server.reload(TOKENS + "\nrates: {perToken: {perSecond: 0.001, burst: 1}}")
        for number in range(2):
            line.say({"type": "enqueue", "to": "ann/2", "env": envelope(f"{number}"), "reqId": number})
        assert line.result(0) and line.error()["code"] == "RateLimited"


def test_what_would_open_the_door_to_strangers_is_refused(start_server):
    server = Reloading(start_server("--http", "0.0.0.0:0", config=TOKENS))
    server.operator = Http(
        server.process.http.replace("0.0.0.0", "127.0.0.1"), server.operator.headers["Authorization"][7:]
    )
    answer = server.reload("streams: {maxDepth: 3}")
    assert answer.code == "InvalidConfig" and "would serve anyone without a token" in answer.error["message"]
    assert Http(server.operator.url).get("/v1/metrics").code == "Unauthorized"


@pytest.mark.promise(
    "Limits, reload and HTTP details", "every `COURIER_*` variable works; an unknown one gives a notice"
)
def test_each_half_of_the_port_can_be_off(start):
    server = start("listen: {requests: false, sockets: false}")
    http = Http(server.process.http)
    answer = enqueue(http, "off", "1")
    assert (answer.status, answer.code) == (404, "UnknownRoute")
    assert "listen.requests" in answer.error["message"]
    assert http.get("/health").status == 200
    assert enqueue(server.operator, "off", "1").status == 200

    async def go():
        async with sockets(server.process.http) as ways:
            refused = await ways.refused("/v1/subscribe?stream=s")
            assert refused.status == 404 and "listen.sockets" in refused.error["message"]

    run(go())
    with connected(server.process.control) as line:
        line.ping()


def test_rules_are_swapped_and_those_that_stay_keep_their_counts(start):
    rule = "triggers: [{id: r, when: {to: in}, do: [{action: route, to: out}]}%s]"
    other = ", {id: q, when: {to: in}, do: [{action: notify, to: told}]}"
    reloading = start(rule % "")
    Http(reloading.process.http).enqueue("in", "a")
    answer = reloading.reload(rule % other)
    assert answer.json["changed"] == ["triggers"]
    Http(reloading.process.http).enqueue("in", "b")
    rows = reloading.operator.get("/v1/triggers").json["triggers"]
    assert {row["id"]: row["counters"]["run"] for row in rows} == {"r": 2, "q": 1}
    broken = reloading.reload("triggers: [{id: r, when: {}, do: []}]")
    assert broken.status == 422
    assert len(reloading.operator.get("/v1/triggers").json["triggers"]) == 2
