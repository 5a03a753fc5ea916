"""`/health` and `/health/live`: what they answer while a part fails, and who may read the reasons."""

from __future__ import annotations

import asyncio
import logging
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from penstock.core.health import PARTS, Health
from penstock.server.cells.cell_group import CellGroup
from penstock.server.config.load import Config
from penstock.server.http import health
from penstock.server.http.health import HealthMonitor
from tests.server.http.driving import OPERATOR_TOKEN, HttpDriver, drive


def test_every_part_is_there_and_a_server_in_memory_is_sound() -> None:
    async def work(driver: HttpDriver) -> None:
        status, body = await driver.ask("GET", "/health")
        assert (status, body["status"], tuple(body["parts"])) == (200, "ok", PARTS)
        assert body["parts"]["journal"]["state"] == "off" and "memory" in body["parts"]["journal"]["reason"]

    drive(work)


@pytest.mark.promise(
    "Operations", "a server that drains or refuses envelopes answers 503 on `/health`, 200 on `/health/live`"
)
def test_a_server_that_drains_is_alive() -> None:
    async def work(driver: HttpDriver) -> None:
        driver.service.runtime.drain(lambda left: None)
        reply = await driver.handle("GET", "/health")
        body = msgspec.json.decode(reply.body)
        assert (reply.status, body["ok"], body["status"]) == (503, False, "draining")
        status, body = await driver.ask("GET", "/health/live")
        assert (status, body["ok"]) == (200, True)

    drive(work)


def test_reasons_are_for_those_who_have_a_token_where_one_is_needed() -> None:
    async def work(driver: HttpDriver) -> None:
        driver.service.tokens.required = True
        _, body = await driver.ask("GET", "/health")
        assert set(body["parts"]["doors"]) == {"state", "since"}
        _, body = await driver.ask("GET", "/health", token=OPERATOR_TOKEN)
        assert body["parts"]["doors"]["reason"]

    drive(work)


def test_texts_of_the_journal_and_the_lake_follow_the_rule_of_the_reasons(tmp_path: Path) -> None:
    async def work() -> None:
        driver = HttpDriver(Config(), tmp_path / "data")
        archive, tokens = driver.service.archive, driver.service.tokens
        assert archive is not None
        archive.lake_trouble = driver.service.runtime.trouble = "a reason"
        try:
            tokens.required = True
            _, body = await driver.ask("GET", "/health")
            assert (body["journal"], body["lake"]) == ({"ok": False, "epoch": 0}, {"ok": False})
            assert b"a reason" not in msgspec.json.encode(body)
            _, body = await driver.ask("GET", "/health", token=OPERATOR_TOKEN)
            assert body["journal"] == {"ok": False, "trouble": "a reason", "epoch": 0, "notice": None}
            assert body["lake"] == {"ok": False, "trouble": "a reason"}
        finally:
            await archive.close()

    asyncio.run(work())


def test_processes_nodes_and_shards_follow_the_rule_of_the_reasons(tmp_path: Path) -> None:
    async def work(driver: HttpDriver) -> None:
        driver.services.cells = CellGroup(Config(), None, tmp_path, 2)
        driver.service.tokens.required = True
        _, body = await driver.ask("GET", "/health")
        assert "cells" not in body and set(body["parts"]["cells"]) == {"state", "since"}
        _, body = await driver.ask("GET", "/health", token=OPERATOR_TOKEN)
        assert [len(one["shards"]) for one in body["cells"]] == [8, 8]

    drive(work)


def test_a_look_that_fails_is_logged_once_and_the_next_one_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "LOOK_S", 0.0)

    async def work(driver: HttpDriver) -> None:
        services, left = driver.services, [OSError("stale")] * 2

        def pipeline() -> None:
            if left:
                raise left.pop()

        services.pipeline = pipeline
        task = asyncio.ensure_future(services.health.run(services))
        async with asyncio.timeout(10):
            while not services.health.health.parts:  # noqa: ASYNC110 - each turn is a look
                await asyncio.sleep(0)
        task.cancel()

    with caplog.at_level(logging.ERROR, logger="penstock"):
        drive(work)
    assert [record.getMessage() for record in caplog.records] == ["health.failed"]


@pytest.mark.promise(
    "Operations", "requests with a missing or unknown token are counted by reason, and logged once a second for a peer"
)
def test_missing_and_unknown_tokens_are_counted_logged_and_the_last_failure_of_the_doors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(driver: HttpDriver) -> None:
        driver.service.tokens.required = True
        for token in ("lost-token", "lost-token", None):
            assert await driver.code("GET", "/v1/stats", token=token) == "Unauthorized"
        assert await driver.code("GET", "/v1/stats", peer="10.0.0.9") == "Unauthorized"
        assert (await driver.ask("GET", "/health"))[0] == 200, "an open route needs no token"
        _, body = await driver.ask("GET", "/health", token=OPERATOR_TOKEN)
        doors = body["parts"]["doors"]
        assert doors["state"] == "ok" and doors["lastFailure"]["reason"].startswith("10.0.0.9 showed no token")
        assert "2 missing, 2 unknown" in doors["lastFailure"]["reason"] and "token ls" in doors["lastFailure"]["reason"]
        scraped = (await driver.handle("GET", "/metrics", token=OPERATOR_TOKEN)).body
        for reason in (b"missing", b"unknown"):
            assert b'penstock_tokens_refused_total{reason="%s"} 2.0' % reason in scraped

    with caplog.at_level(logging.WARNING, logger="penstock"):
        drive(work)
    lines = [record.__dict__ for record in caplog.records if record.getMessage() == "token.refused"]
    assert len(lines) == 2, "one for each peer"
    assert "lost-token" not in str(lines) and sha256(b"lost-token").hexdigest()[:8] in str(lines)


@pytest.mark.promise("Operations", "`explain` says that the journal refuses envelopes, and why, from the same health")
def test_explain_says_that_the_journal_refuses(tmp_path: Path) -> None:
    async def work() -> None:
        driver = HttpDriver(Config(), tmp_path / "data")
        archive, runtime = driver.service.archive, driver.service.runtime
        assert archive is not None
        try:
            body = {"to": "jobs", "envelope": {"id": "a", "ts": "2026-01-01T00:00:00Z", "type": "t", "payload": 1}}
            assert (await driver.ask("POST", "/v1/enqueue", body))[0] == 200
            runtime.trouble = "the disk is full"
            _, health = await driver.ask("GET", "/health")
            _, explained = await driver.ask("GET", "/v1/streams/jobs/explain")
            (found,) = [one for one in explained["reasons"] if one["code"] == "journal.failed"]
            part = health["parts"]["journal"]
            assert found["message"] == f"{part['reason']}; {part['action']}" and found["since"] == part["since"]
            runtime.trouble = None
            await driver.ask("GET", "/health")
            _, explained = await driver.ask("GET", "/v1/streams/jobs/explain")
            assert [one["code"] for one in explained["reasons"]] == ["no_consumer"]
        finally:
            await archive.close()

    asyncio.run(work())


def test_a_reader_that_stays_slow_degrades_the_doors_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class Reader:
        unread_bytes = 0
        is_paused = False
        reader_name = "sam (link 4, 127.0.0.1:5)"

        def unread(self) -> int:
            return self.unread_bytes

        def cut(self, size: int) -> None: ...

    async def work(driver: HttpDriver) -> None:
        services, monitor, reader = driver.services, HealthMonitor(Health()), Reader()
        services.runtime.peers.outboxes.note(reader, services.machine.limits.outbox_max)
        now = services.runtime.scheduler.now()
        looks = [monitor.look(services, now, is_turn=True).parts["doors"] for _ in range(3)]
        assert [look.state for look in looks] == ["ok", "degraded", "degraded"]
        assert "sam (link 4, 127.0.0.1:5) holds 1048576 bytes" in looks[1].reason and looks[1].action
        services.runtime.peers.outboxes.note(reader, 0)
        assert monitor.look(services, now, is_turn=True).parts["doors"].state == "ok"
        reader.is_paused = True  # the sockets of both sides hold most of what it was sent
        for size, state in ((9, "ok"), (7, "ok"), (7, "degraded"), (0, "ok")):
            services.runtime.peers.outboxes.note(reader, size)
            assert monitor.look(services, now, is_turn=True).parts["doors"].state == state, size

    with caplog.at_level(logging.INFO, logger="penstock"):
        drive(work)
    changes = [(record.levelname, record.fields["state"]) for record in caplog.records  # type: ignore[attr-defined]
               if record.getMessage() == "health.changed"]  # fmt: skip
    assert changes == [("WARNING", "degraded"), ("INFO", "ok")] * 2
