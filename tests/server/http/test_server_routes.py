"""Health, metrics, the location of an envelope, and the landing page."""

from __future__ import annotations

import msgspec

from penstock.server.config.load import Config
from tests.server.http.driving import HttpDriver, drive, envelope


def test_health_says_whether_work_is_accepted_and_ignores_its_query() -> None:
    async def work(driver: HttpDriver) -> None:
        status, body = await driver.ask("GET", "/health", query={"x": "1"})
        assert status == 200 and body["ok"] and body["status"] == "ok" and "pipeline" not in body
        driver.service.runtime.drain(lambda left: None)
        reply = await driver.handle("GET", "/health")
        assert reply.status == 503 and reply.headers["Retry-After"] == "1"
        assert msgspec.json.decode(reply.body)["status"] == "draining"

    drive(work)


def test_an_envelope_is_found_and_an_unknown_one_is_refused() -> None:
    async def work(driver: HttpDriver) -> None:
        await driver.ask("POST", "/v1/enqueue", {"to": "q", "envelope": envelope("a/b")})
        status, body = await driver.ask("GET", "/v1/envelopes/a/b")
        assert status == 200 and [place["stream"] for place in body["places"]] == ["q"]
        assert await driver.code("GET", "/v1/envelopes/c") == "UnknownEnvelope"

    drive(work)


def test_metrics_are_sums_unless_each_stream_is_asked_for() -> None:
    async def work(driver: HttpDriver) -> None:
        await driver.ask("POST", "/v1/enqueue", {"to": "q", "envelope": envelope("a")})
        sums = await driver.handle("GET", "/metrics")
        each = await driver.handle("GET", "/metrics", query={"streams": "1"})
        assert b'stream="q"' in each.body and b'stream="q"' not in sums.body
        assert await driver.code("GET", "/metrics", query={"streams": "2"}) == "InvalidRequest"
        status, body = await driver.ask("GET", "/v1/metrics")
        assert status == 200 and [row["id"] for row in body["streams"]] == ["q"]

    drive(work)


def test_the_landing_page_has_commands_for_the_address_that_was_asked() -> None:
    async def work(driver: HttpDriver) -> None:
        reply = await driver.handle("GET", "/", headers={"Accept": "text/plain"})
        assert reply.content_type.startswith("text/plain") and b"http://localhost:8787/v1/send" in reply.body

    async def gateway(driver: HttpDriver) -> None:
        reply = await driver.handle("GET", "/", headers={"Accept": "text/plain"})
        assert b"/participants" in reply.body and b"/v1/send" not in reply.body

    drive(work)
    drive(gateway, Config(serves_courier=False))
