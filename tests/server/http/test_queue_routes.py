"""A pull waits, leases and cleans up; staging reports a wrong path."""

from __future__ import annotations

import asyncio

from tests.server.http.driving import HttpDriver, drive, envelope


def test_a_pull_waits_for_the_first_envelope() -> None:
    async def work(driver: HttpDriver) -> None:
        waiting = asyncio.ensure_future(driver.ask("POST", "/v1/pull", {"stream": "q", "wait_ms": 5_000}))
        await asyncio.sleep(0)
        await driver.ask("POST", "/v1/enqueue", {"to": "q", "envelope": envelope("a")})
        status, body = await waiting
        (delivery,) = body["deliveries"]
        assert status == 200 and delivery["deliver"] == envelope("a", to="q") and delivery["attempt"] == 1
        settle = {"id": "a", "op": "ack", "leaseId": delivery["leaseId"]}
        assert await driver.ask("POST", "/v1/settle", settle) == (
            200,
            {"id": "a", "op": "ack", "settled": True},
        )

    drive(work)


def test_a_pull_whose_client_is_gone_takes_nothing() -> None:
    async def work(driver: HttpDriver) -> None:
        waiting = asyncio.ensure_future(driver.ask("POST", "/v1/pull", {"stream": "q", "wait_ms": 5_000}))
        await asyncio.sleep(0)
        assert driver.services.machine.consumers
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not driver.services.machine.consumers and not driver.service.runtime.peers.all()
        await driver.ask("POST", "/v1/enqueue", {"to": "q", "envelope": envelope("a")})
        stats = (await driver.ask("GET", "/v1/stats", query={"stream": "q"}))[1]
        assert (stats["depth"], stats["inflight"]) == (1, 0)

    drive(work)


def test_a_pull_that_asks_for_too_much_is_refused() -> None:
    async def work(driver: HttpDriver) -> None:
        for wrong in ({"max": 0}, {"wait_ms": -1}, {"lease_ms": 1}, {"stream": ""}, {"more": 1}):
            body = {"stream": "q", **wrong}
            assert (await driver.ask("POST", "/v1/pull", body))[0] == 400
        assert not driver.service.runtime.peers.all()

    drive(work)


def test_a_batch_is_staged_committed_and_remembered() -> None:
    async def work(driver: HttpDriver) -> None:
        line = b'{"to":"q","type":"t","payload":1}'
        status, body = await driver.ask("POST", "/v1/stage/app/3/parts/p", line)
        assert (status, body["staged"]) == (200, 1)
        status, body = await driver.ask("POST", "/v1/stage/app/3/commit", {"parts": ["p"]})
        assert (status, body["enqueued"], body["duplicate"]) == (200, 1, False)
        status, body = await driver.ask("POST", "/v1/stage/app/3/commit", {"parts": ["p"]})
        assert (status, body["duplicate"], body["last"]) == (200, True, 3)
        assert await driver.ask("GET", "/v1/stage/app") == (200, {"app": "app", "last": 3})
        status, body = await driver.ask("POST", "/v1/stage/app/4/abort")
        assert (status, body["dropped"]) == (200, 0)

    drive(work)


def test_a_path_that_names_no_batch_is_refused() -> None:
    async def work(driver: HttpDriver) -> None:
        for path in ("/v1/stage/a b/0/abort", "/v1/stage/app/x/abort", "/v1/stage/app/0/parts/a b"):
            _, body = await driver.ask("POST", path, b"{}")
            assert body["error"]["ref"] in ("app", "batch", "part")

    drive(work)
