"""The agents of the demo, each on a server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import penstock.testing
from penstock.demo import agents
from penstock.testing.server import MemoryServer

PATIENCE_S = 20.0


@pytest.fixture
def server() -> Iterator[MemoryServer]:
    with penstock.testing.serve({"triggers": [agents.RULE]}) as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "ROUND_S", 0.0)
    monkeypatch.setattr(agents.random, "uniform", lambda low, high: low)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work()

    asyncio.run(bounded())


@asynccontextmanager
async def acting(server: MemoryServer, *names: str) -> Any:
    """Agents at work while the block lasts."""
    tasks = [asyncio.ensure_future(agents.act(name, server.url)) for name in names]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            assert task.cancelled(), task.exception()


def job(number: int, *, is_last: bool = False) -> dict[str, Any]:
    payload = {"step": 5 if is_last else 1, "of": 5, "topic": "a mill", "number": number}
    tags = ["last"] if is_last else []
    return {"id": f"job-{number}", "type": "job", "from": "jen", "tags": tags, "payload": payload}


def test_the_architect_answers_with_a_plan(server: MemoryServer) -> None:
    async def work() -> None:
        async with acting(server, "architect"), server.connect("asker") as client:
            answer = await client.ask("architect", {"topic": "a bridge"}, timeout=10)
            assert answer.payload == {"plan": "a bridge in 5 steps"}

    run(work)


def test_jen_turns_a_plan_into_jobs_and_marks_the_last(server: MemoryServer) -> None:
    async def work() -> None:
        async with (
            acting(server, "architect", "jen"),
            server.connect() as client,
            client.subscribe(agents.STREAM, credit=agents.JOBS) as jobs,
        ):
            found = [await anext(jobs) for _ in range(agents.JOBS)]
            assert [one.payload["step"] for one in found] == [1, 2, 3, 4, 5]
            assert len({(one.corr, one.payload["topic"], one.sender, one.type) for one in found}) == 1
            assert (found[0].sender, found[0].type) == ("jen", "job") and found[0].corr
            envelopes = [msgspec.json.decode(one.body) for one in found]
            assert [one.get("tags") or [] for one in envelopes] == [[], [], [], [], ["last"]]
            assert all(len(one["refs"]) == 1 for one in envelopes), "each names the plan"

    run(work)


def test_workers_do_jobs_and_the_last_one_notifies_jen(server: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents.random, "random", lambda: 1.0)

    async def work() -> None:
        async with acting(server, "sam"), server.connect("jen") as client, client.inbox() as inbox:
            await client.enqueue(agents.STREAM, [job(1), job(2, is_last=True)])
            async for message in inbox:
                await message.ack()
                if message.type == "built":
                    assert message.payload == {"text": "a mill is built"}
                    return

    run(work)


def test_a_job_that_cannot_be_done_is_a_dead_letter(server: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents.random, "random", lambda: 1.0)

    async def work() -> None:
        async with acting(server, "kim"), server.connect() as client:
            await client.enqueue(agents.STREAM, [job(agents.HOPELESS), job(agents.HOPELESS + 1)])
            while not (dead := await client.peek(agents.STREAM, state="dead")):
                pass
            assert [row.id for row in dead] == [f"job-{agents.HOPELESS}"]
            while (stats := await client.stats(agents.STREAM)).inflight or stats.depth:
                pass

    run(work)


def test_a_job_may_be_delayed(server: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents.random, "random", lambda: 0.0)

    async def work() -> None:
        async with acting(server, "sam"), server.connect() as client:
            await client.enqueue(agents.STREAM, job(1))
            while not (await client.stats(agents.STREAM)).delayed:
                pass
            [row] = await client.peek(agents.STREAM, state="delayed")
            assert row.id == "job-1"

    run(work)


def test_ops_takes_alerts(server: MemoryServer) -> None:
    async def work() -> None:
        async with acting(server, "ops"), server.connect() as client:
            await client.send("ops", {"rule": "rate"}, type="alert")
            while (stats := await client.stats("agents/ops/inbox")).inflight or stats.depth:
                pass

    run(work)


def test_every_agent_is_known_by_its_name() -> None:
    assert list(agents.AGENTS) == ["architect", "jen", "ops", "sam", "kim"]
    assert agents.RULE["when"]["to"] == agents.STREAM
