"""Rates, idempotency keys, compressed bodies, origins and the frame recorder, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
from math import ceil

import aiohttp
import msgspec
import pytest

from tests.integration.serving import Http, connected, encode, envelope, run, sockets, until
from tests.server_process import ServerProcess

PAGE = "https://app.example.com"
SLOW = "{perSecond: 0.001, burst: 3}"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """A server whose senders have rates by their tokens and by the stream."""
    config = f"""
auth:
  tokens:
    - {{token: slow-http, scopes: ["streams:*:*"], name: a, rate: {SLOW}}}
    - {{token: slow-lines, scopes: ["streams:*:*"], name: b, rate: {SLOW}}}
    - {{token: slow-socket, scopes: ["streams:*:*"], name: c, rate: {SLOW}}}
    - {{token: slow-stage, scopes: ["streams:*:*"], name: d, rate: {SLOW}}}
    - {{token: free, scopes: ["streams:*:*"]}}
streams:
  perStreamCaps: {{"narrow/*": {{rate: {SLOW}}}}}
logs: {{record: frames.jsonl}}
"""
    process = ServerProcess(tmp_path_factory.mktemp("tokens"), config=config)
    yield process
    process.kill()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """A server behind a proxy of ours, open to everybody, with all that the environment can set."""
    config = f"""
auth: {{allowAnonymous: true}}
listen: {{trustedProxies: ["127.0.0.0/8"], origins: ["{PAGE}"]}}
limits: {{connections_per_address_max: 2}}
"""
    env = {
        "COURIER_RATE_LIMIT_PER_IP": "2",
        "COURIER_RATE_LIMIT_WINDOW_MS": "600000",
        "COURIER_PROTECT_METRICS": "1",
        "COURIER_WS_PORT": "0",
        "COURIER_HTPT_PORT": "1",
    }
    process = ServerProcess(tmp_path_factory.mktemp("proxied"), config=config, env=env)
    yield process
    process.kill()


def post(http: Http, id_: str, stream: str = "s", **headers: str):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.post("/v1/enqueue", {"to": stream, "envelope": envelope(id_)}, names)


def check_refusal(answer) -> None:
    assert (answer.status, answer.code) == (429, "RateLimited"), answer
    assert answer.headers["Retry-After"] == str(ceil(answer.error["retryAfterMs"] / 1000))
    assert 900_000 < answer.error["retryAfterMs"] <= 1_000_000


class TestRates:
    @pytest.mark.promise("Limits, reload and HTTP details", "acks and credit are never rate-limited")
    def test_over_http_each_envelope_counts_and_a_settle_does_not(self, tokens):
        http = Http(tokens.http, "slow-http")
        assert http.enqueue("rate/http", "1", "2") == [1, 2]
        assert post(http, "3", "rate/http").status == 200
        check_refusal(post(http, "4", "rate/http"))
        check_refusal(http.post("/v1/send", {"to": "rate/http", "type": "x", "payload": 1}))
        never = http.post("/v1/enqueue", {"to": "rate/http", "envelopes": [envelope(f"m{n}") for n in range(4)]})
        assert (never.status, never.code) == (413, "TooLarge") and "at most 3" in never.error["hint"]
        assert http.stats("rate/http")["depth"] == 3
        for delivery in http.pull("rate/http", max=3):
            assert http.settle(delivery["deliver"]["id"], "ack", leaseId=delivery["leaseId"]).status == 200
        assert post(Http(tokens.http, "free"), "4", "rate/http").status == 200

    @pytest.mark.promise(
        "Limits, reload and HTTP details",
        "rates apply to HTTP, control lines and sockets, by token, stream and address",
    )
    def test_over_control_lines_each_line_is_answered_in_its_place(self, tokens):
        with connected(tokens.control) as peer:
            peer.say({"type": "hello", "version": "v1", "token": "slow-lines"})
            peer.frame("ok")
            peer.say(
                *({"type": "enqueue", "to": "rate/lines", "env": envelope(f"{n}"), "reqId": n} for n in range(5)),
                {"type": "ping", "reqId": "end"},
            )
            frames = [peer.frame() for _ in range(6)]
        assert [frame["reqId"] for frame in frames] == [0, 1, 2, 3, 4, "end"]
        assert [frame.get("code") for frame in frames] == [None] * 3 + ["RateLimited"] * 2 + [None]

    @pytest.mark.promise(
        "Limits, reload and HTTP details",
        "rates apply to HTTP, control lines and sockets, by token, stream and address",
    )
    def test_over_a_control_socket(self, tokens):
        async def go():
            async with sockets(tokens.http) as ways:
                peer = await ways.open("/v1/control", headers={"Authorization": "Bearer slow-socket"})
                for number, code in enumerate([None, None, None, "RateLimited"]):
                    env = envelope(f"{number}")
                    await peer.say({"type": "enqueue", "to": "rate/socket", "env": env, "reqId": number})
                    assert (await peer.read()).get("code") == code
                await peer.ws.close()

        run(go())

    @pytest.mark.promise(
        "Limits, reload and HTTP details",
        "rates apply to HTTP, control lines and sockets, by token, stream and address",
    )
    def test_a_stream_has_one_rate_for_all_senders(self, tokens):
        http = Http(tokens.http, "free")
        operator = Http(tokens.http, (tokens.data / "run" / "operator.token").read_text().strip())
        assert http.enqueue("narrow/1", "1", "2") and operator.enqueue("narrow/1", "3")
        for sender in (http, operator):
            answer = post(sender, "4", "narrow/1")
            check_refusal(answer)
            assert answer.error["ref"] == "narrow/1"
        assert post(http, "4", "narrow/2").status == 200

    def test_a_staged_batch_waits_for_a_full_bucket_and_is_paid_for(self, tokens):
        http = Http(tokens.http, "slow-stage")
        for batch in (1, 2):
            lines = b"\n".join(encode({**envelope(f"{batch}-{n}"), "to": "rate/stage"}) for n in range(5))
            assert http.post(f"/v1/stage/app/{batch}/parts/p", lines).status == 200
        assert http.post("/v1/stage/app/1/commit", {"parts": ["p"]}).json["enqueued"] == 5
        answer = http.post("/v1/stage/app/2/commit", {"parts": ["p"]})
        assert (answer.status, answer.code) == (429, "RateLimited")
        assert answer.error["retryAfterMs"] > 4_000_000
        assert http.post("/v1/stage/app/1/commit", {"parts": ["p"]}).json["duplicate"] is True

    def test_refusals_are_counted(self, tokens):
        text = Http(tokens.http, "free").get("/metrics").body.decode()
        counts = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(counts["penstock_rate_limited_total"]) >= 1
        assert float(counts["penstock_rate_buckets"]) >= 1

    @pytest.mark.promise(
        "Limits, reload and HTTP details",
        "rates apply to HTTP, control lines and sockets, by token, stream and address",
    )
    def test_by_address_behind_a_proxy_that_is_trusted(self, proxied):
        http = Http(proxied.http)
        one, other = {"X_Forwarded_For": "192.0.2.1:4711"}, {"X_Forwarded_For": "192.0.2.1, 192.0.2.2"}
        assert [post(http, f"{n}", "addr", **one).status for n in range(3)] == [200, 200, 429]
        assert [post(http, f"o{n}", "addr", **other).status for n in range(3)] == [200, 200, 429]
        for n in range(3):
            network = {"X_Forwarded_For": f"2001:db8::{n + 1}"}
            assert post(http, f"v{n}", "addr", **network).status == (200 if n < 2 else 429)


class TestDoors:
    @pytest.mark.promise(
        "Limits, reload and HTTP details", "every `COURIER_*` variable works; an unknown one gives a notice"
    )
    def test_the_second_port_serves_the_same(self, proxied):
        http = Http(proxied.endpoints["ws"])
        assert proxied.endpoints["ws"] != proxied.http and http.get("/health").status == 200
        assert "unknown environment variable `COURIER_HTPT_PORT`; did you mean `COURIER_HTTP_PORT`?" in proxied.log()

    @pytest.mark.promise(
        "Limits, reload and HTTP details", "every `COURIER_*` variable works; an unknown one gives a notice"
    )
    def test_protected_metrics_need_a_token(self, proxied):
        http = Http(proxied.http)
        operator = Http(proxied.http, (proxied.data / "run" / "operator.token").read_text().strip())
        for path in ("/metrics", "/v1/metrics"):
            assert http.get(path).code == "Unauthorized"
            assert operator.get(path).status == 200

    @pytest.mark.promise("Limits, reload and HTTP details", "connections from one address are bounded")
    def test_connections_of_one_address_are_bounded(self, proxied):
        async def go():
            async with sockets(proxied.http) as ways:
                here = {"headers": {"X-Forwarded-For": "192.0.2.9"}}
                peers = [await ways.subscribe("crowd", **here) for _ in range(2)]
                third = await ways.subscribe("crowd", **here)
                assert (await third.error())["code"] == "QuotaExceeded"
                other = await ways.subscribe("crowd", headers={"X-Forwarded-For": "192.0.2.10"})
                await other.nothing()
                await peers[0].ws.close()
                await asyncio.to_thread(
                    until, lambda: Http(proxied.http).get("/health").json["clients"] == 2, "the first is gone"
                )
                again = await ways.subscribe("crowd", **here)
                await again.nothing()

        run(go())

    @pytest.mark.promise("Limits, reload and HTTP details", "frames are recorded whole, within a bound, without tokens")
    def test_frames_are_recorded_without_tokens(self, tokens):
        with connected(tokens.control) as peer:
            peer.say({"type": "hello", "version": "v1", "token": "free", "reqId": "mark-1"})
            peer.write(b'{"type":"pi', b'ng","reqId":"mark-2"}\n', b'not json, token "free"\n')
            peer.frame("ok"), peer.frame("ok"), peer.frame("error")
            peer.ping()
        file = tokens.folder / "frames.jsonl"
        text = until(lambda: "nothing before this" in file.read_text() and file.read_text())
        rows = [msgspec.json.decode(line) for line in text.splitlines()]
        (hello,) = [row for row in rows if (row["frame"] or {}).get("reqId") == "mark-1" and row["dir"] == "in"]
        assert hello["frame"]["token"] == "[hidden]" and hello["ts"].endswith("Z")
        mine = [row for row in rows if row["link"] == hello["link"]]
        assert [row["dir"] for row in mine if (row["frame"] or {}).get("reqId") == "mark-2"] == ["in", "out"]
        (broken,) = [row for row in mine if row["frame"] is None]
        assert broken["bytes"] == len('not json, token "free"')
        assert "slow-lines" not in text and '"free"' not in text
        assert file.stat().st_mode & 0o077 == 0


class TestKeys:
    @pytest.mark.promise(
        "Limits, reload and HTTP details",
        "`Idempotency-Key` applies a request once, is bounded, and waits for the first request",
    )
    def test_a_repeated_request_is_done_once_however_many_come_at_once(self, http, stream):
        async def go():
            async with aiohttp.ClientSession() as session:

                async def send():
                    headers = {"Idempotency-Key": stream}
                    body = {"to": stream, "type": "x", "payload": 1}
                    async with session.post(f"{http.url}/v1/send", json=body, headers=headers) as answer:
                        return answer.status, await answer.text(), answer.headers.get("Idempotency-Replayed")

                return await asyncio.gather(*(send() for _ in range(8)))

        answers = []

        async def work():
            answers.extend(await go())

        run(work())
        assert len({text for _, text, _ in answers}) == 1
        assert sorted(str(replayed) for _, _, replayed in answers) == ["None"] + ["true"] * 7
        assert http.stats(stream)["depth"] == 1

    def test_another_body_is_refused_and_another_route_is_another_key(self, http, stream):
        key = {"Idempotency-Key": stream}
        assert http.post("/v1/enqueue", {"to": stream, "envelope": envelope("1")}, key).status == 200
        answer = http.post("/v1/enqueue", {"to": stream, "envelope": envelope("2")}, key)
        assert (answer.status, answer.code) == (409, "KeyConflict")
        assert http.post("/v1/redrive", {"stream": stream}, key).code == "UnknownStream"
        assert http.post("/v1/enqueue", {"to": stream, "envelope": envelope("1")}, {"Idempotency-Key": "x" * 300}).status == 400  # fmt: skip
        assert http.stats(stream)["depth"] == 1

    def test_a_repeated_settle_gets_the_same_answer(self, http, stream):
        http.enqueue(stream, "1")
        (delivery,) = http.pull(stream)
        body = {"id": "1", "op": "ack", "leaseId": delivery["leaseId"]}
        key = {"Idempotency-Key": stream}
        first, again = (http.post("/v1/settle", body, key) for _ in range(2))
        assert first.status == again.status == 200 and first.body == again.body
        assert again.headers["Idempotency-Replayed"] == "true"
        assert http.post("/v1/settle", body).status == 409


class TestEncodings:
    def test_a_compressed_body_is_read(self, http, stream):
        body = gzip.compress(encode({"to": stream, "envelope": envelope("1")}))
        assert http.post("/v1/enqueue", body, {"Content-Encoding": "gzip"}).json == {"id": "1", "seq": 1}

    @pytest.mark.promise("Limits, reload and HTTP details", "compressed bodies are accepted within their bound")
    def test_a_bomb_is_stopped(self, http):
        bomb = gzip.compress(b'{"to":"' + b"a" * (9 << 20), 9)
        assert len(bomb) < 100_000
        assert http.post("/v1/enqueue", bomb, {"Content-Encoding": "gzip"}).code == "TooLarge"
        small = gzip.compress(b'{"stream":"' + b"a" * (1 << 20), 9)
        assert http.post("/v1/pull", small, {"Content-Encoding": "gzip"}).code == "TooLarge"

    @pytest.mark.promise("Limits, reload and HTTP details", "compressed bodies are accepted within their bound")
    def test_damaged_and_unknown_encodings_are_named(self, http):
        damaged = http.post("/v1/enqueue", b"no gzip at all", {"Content-Encoding": "gzip"})
        assert (damaged.status, damaged.error["ref"]) == (400, "Content-Encoding")
        unknown = http.post("/v1/enqueue", b"x", {"Content-Encoding": "br"})
        assert (unknown.status, unknown.code) == (415, "UnsupportedEncoding")
        assert unknown.headers["Accept-Encoding"] == "gzip, deflate"


class TestPages:
    ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}  # noqa: RUF012

    @pytest.mark.promise("Limits, reload and HTTP details", "only pages of listed origins may send requests")
    def test_a_listed_page_may_ask_and_read(self, proxied):
        http = Http(proxied.http)
        answer = http.ask("OPTIONS", "/v1/enqueue", headers={"Origin": PAGE, **self.ASKS})
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["Access-Control-Allow-Origin"] == PAGE
        assert answer.headers["Access-Control-Allow-Methods"] == "POST"
        for name in ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"):
            assert name in answer.headers["Access-Control-Allow-Headers"]
        assert int(answer.headers["Access-Control-Max-Age"]) > 0
        assert "Access-Control-Allow-Credentials" not in answer.headers
        for path, status in (("/health", 200), ("/v1/stats?stream=none", 404)):
            answer = http.get(path, {"Origin": PAGE})
            assert (answer.status, answer.headers["Vary"]) == (status, "Origin")
            assert answer.headers["Access-Control-Allow-Origin"] == PAGE
            assert "Retry-After" in answer.headers["Access-Control-Expose-Headers"]

    @pytest.mark.promise("Limits, reload and HTTP details", "only pages of listed origins may send requests")
    def test_other_origins_may_not(self, proxied, http):
        for other in ("https://evil.example.com", "null", f"{PAGE}.evil.com", "http://app.example.com"):
            for method, more in (("OPTIONS", self.ASKS), ("POST", {})):
                answer = Http(proxied.http).ask(method, "/v1/enqueue", b"{}", {"Origin": other, **more})
                assert (answer.status, answer.code) == (403, "Forbidden")
                assert "Access-Control-Allow-Origin" not in answer.headers
                assert answer.headers["Vary"] == "Origin"
        plain = http.get("/health")
        assert "Vary" not in plain.headers and "Access-Control-Allow-Origin" not in plain.headers
