"""The entry of requests: authentication, checks before the body is read, and failing handlers."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import msgspec
import pytest

from penstock.server.config.load import Config
from penstock.server.config.sections import AuthSection, ListenSection, TokenSection
from penstock.server.http import routes
from penstock.server.http.listener import SMALL_BODY
from penstock.transports.exchanges import BodyMalformedError, BodyTooLargeError
from penstock.transports.http_replies import Reply
from tests.server.http.driving import OPERATOR_TOKEN, FakeExchange, HttpDriver, drive, envelope

TOKENS = Config(
    auth=AuthSection(
        tokens=(
            TokenSection("all-token", ("streams:*:*",), "all"),
            TokenSection("admin-token", ("admin:*",), "ops"),
        )
    )
)


def test_a_refused_request_is_answered_before_its_body_is_read() -> None:
    async def work(driver: HttpDriver) -> None:
        for asked, code in [
            (("POST", "/v1/nothing"), "UnknownRoute"),
            (("PATCH", "/v1/enqueue"), "MethodNotAllowed"),
            (("POST", "/v1/enqueue"), "Unauthorized"),
            (("GET", "/v1/subscribe"), "Unauthorized"),
        ]:
            assert await driver.code(*asked, b"{}") == code
            assert driver.exchange.reads == 0
        more = {"token": "all-token", "size": SMALL_BODY + 1}
        assert await driver.code("POST", "/v1/pull", b"{}", **more) == "TooLarge"
        more = {"token": "all-token", "headers": {"Content-Encoding": "br"}}
        assert await driver.code("POST", "/v1/enqueue", b"{}", **more) == "UnsupportedEncoding"
        assert driver.exchange.reads == 0
        assert await driver.code("GET", "/v1/control", token="all-token") == "InvalidRequest"

    drive(work, TOKENS)


def test_a_path_that_takes_other_methods_names_them_and_a_typo_the_nearest_path() -> None:
    async def work(driver: HttpDriver) -> None:
        reply = await driver.handle("PATCH", "/v1/triggers/r")
        assert reply.headers["Allow"] == "GET, HEAD, PUT, DELETE"
        _, body = await driver.ask("GET", "/v1/stat")
        assert "/v1/stats" in body["error"]["hint"]

    drive(work)


@pytest.mark.parametrize("path", [route.path for route in routes.ROUTES if route.is_admin and route.method == "GET"])
def test_an_administrators_route_needs_an_administrator(path: str) -> None:
    async def work(driver: HttpDriver) -> None:
        assert await driver.code("GET", path, token="all-token") == "Forbidden"
        served = (400,) if path == "/v1/cluster" else (200, 404)  # this server is no node of a cluster
        assert (await driver.ask("GET", path, token="admin-token"))[0] in served

    drive(work, TOKENS)


def test_an_anonymous_peer_of_another_machine_is_refused() -> None:
    async def work(driver: HttpDriver) -> None:
        assert (await driver.ask("GET", "/v1/metrics"))[0] == 200
        assert await driver.code("GET", "/v1/metrics", peer="10.0.0.1") == "Unauthorized"
        assert (await driver.ask("GET", "/health", peer="10.0.0.1"))[0] == 200

    drive(work)


def test_requests_and_sockets_are_switched_off_apart_but_never_for_the_operator() -> None:
    async def work(driver: HttpDriver) -> None:
        assert await driver.code("GET", "/v1/metrics") == "UnknownRoute"
        assert (await driver.ask("GET", "/v1/metrics", token=OPERATOR_TOKEN))[0] == 200
        assert (await driver.ask("GET", "/health"))[0] == 200
        opened = await driver.handle("GET", "/v1/control", upgrade=True)
        assert not isinstance(opened, Reply)

    drive(work, Config(listen=ListenSection(requests=False)))


def test_a_body_is_inflated_up_to_its_bound() -> None:
    async def work(driver: HttpDriver) -> None:
        headers = {"Content-Encoding": "gzip"}
        body = gzip.compress(msgspec.json.encode({"to": "q", "envelope": envelope("a")}))
        assert await driver.ask("POST", "/v1/enqueue", body, headers=headers) == (200, {"id": "a", "seq": 1})
        bomb = gzip.compress(b" " * (SMALL_BODY + 1))
        assert await driver.code("POST", "/v1/pull", bomb, headers=headers) == "TooLarge"
        assert await driver.code("POST", "/v1/pull", b"nonsense", headers=headers) == "InvalidRequest"

    drive(work)


def test_a_repeated_key_gets_the_first_reply_and_does_the_work_once() -> None:
    async def work(driver: HttpDriver) -> None:
        body = {"to": "q", "envelope": envelope("a")}
        headers = {"Idempotency-Key": "k"}
        first = await driver.handle("POST", "/v1/enqueue", body, headers=headers)
        again = await driver.handle("POST", "/v1/enqueue", body, headers=headers)
        assert again.body == first.body and again.headers["Idempotency-Replayed"] == "true"
        assert "Idempotency-Replayed" not in first.headers
        other = {"to": "q", "envelope": envelope("b")}
        assert await driver.code("POST", "/v1/enqueue", other, headers=headers) == "KeyConflict"
        assert (await driver.ask("GET", "/v1/stats", query={"stream": "q"}))[1]["depth"] == 1

    drive(work)


def test_a_kept_reply_has_the_cors_headers_of_the_request_that_repeats_it() -> None:
    async def work(driver: HttpDriver) -> None:
        body = {"to": "q", "envelope": envelope("a")}
        for site in ("http://a.example", "http://b.example"):
            headers = {"Idempotency-Key": "k", "Origin": site}
            reply = await driver.handle("POST", "/v1/enqueue", body, headers=headers)
            assert reply.headers["Access-Control-Allow-Origin"] == site

    drive(work, Config(listen=ListenSection(origins=("http://a.example", "http://b.example"))))


def test_a_failure_is_answered_by_its_kind() -> None:
    async def work(driver: HttpDriver) -> None:
        await driver.handle("GET", "/health")
        for error, status in [
            (BodyTooLargeError(), 413),
            (BodyMalformedError("bad chunk"), 400),
            (TimeoutError(), 504),
            (RuntimeError("a bug"), 500),
        ]:
            assert driver.endpoint.failed(driver.exchange, error).status == status  # type: ignore[arg-type]

    drive(work)


def test_a_parameter_that_is_given_twice_is_refused() -> None:
    async def work(driver: HttpDriver) -> None:
        await driver.handle("GET", "/v1/stats", query={"stream": "q"})
        driver.exchange.query_pairs *= 2
        reply = await driver.endpoint.handle(driver.exchange)  # type: ignore[arg-type]
        assert isinstance(reply, Reply) and reply.status == 400 and b"twice" in reply.body

    drive(work)


MANY = 2_500


def many() -> dict[str, Any]:
    return {"to": "q", "envelopes": [envelope(f"e{n}", payload="x" * 40) for n in range(MANY)]}


async def minted(driver: HttpDriver) -> str:
    body = {"name": "leaver", "scopes": ["streams:*:*"]}
    return str((await driver.ask("POST", "/v1/tokens", body, token=OPERATOR_TOKEN))[1]["token"])


async def revoke(driver: HttpDriver) -> None:
    assert (await driver.ask("DELETE", "/v1/tokens/leaver", token=OPERATOR_TOKEN))[0] == 200


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}], ids=["plain", "idempotent"])
def test_work_that_was_admitted_is_answered_though_its_token_is_revoked_meanwhile(headers: dict[str, str]) -> None:
    async def work(driver: HttpDriver) -> None:
        machine, token = driver.service.runtime.machine, await minted(driver)
        asked = asyncio.ensure_future(driver.ask("POST", "/v1/enqueue", many(), token=token, headers=headers))
        while not machine.bytes and not machine.pending_bytes:  # noqa: ASYNC110 - each turn is a step
            await asyncio.sleep(0)
        assert not asked.done()
        await revoke(driver)
        status, body = await asked
        assert (status, len(machine.channels["q"].live)) == (200, MANY), body

    drive(work)


def test_a_token_that_is_revoked_while_the_body_arrives_admits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(driver: HttpDriver) -> None:
        token, read = await minted(driver), FakeExchange.read

        async def slow(exchange: FakeExchange) -> bytes:
            with monkeypatch.context() as patch:
                patch.setattr(FakeExchange, "read", read)
                await revoke(driver)
            return await read(exchange)

        for body in (many(), {"to": "q", "envelopes": [envelope("1")]}):
            monkeypatch.setattr(FakeExchange, "read", slow)
            assert await driver.code("POST", "/v1/enqueue", body, token=token) == "Unauthorized"
            monkeypatch.setattr(FakeExchange, "read", read)
            assert "q" not in driver.service.runtime.machine.channels
            token = await minted(driver)

    drive(work)
