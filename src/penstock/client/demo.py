"""Sample traffic for `penstock up --demo`: a few agents that work through inboxes, so that there is something to look at.

Jen asks the architect, makes jobs of the answer, and two workers do them; now and then a job is hopeless and becomes a dead letter. Ops takes the
alerts that come back from the pipeline. Run it against any server with `python -m penstock.client.demo URL`.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from penstock.client.client import Client, connect
from penstock.core.errors import PenstockError

ROUND_S = 1.0
"""Jen asks about this often."""
JOBS = 5
"""Jobs of one answer."""
HOPELESS = 40
"""One job in so many cannot be done."""
STREAM = "demo/jobs"


async def architect(client: Client) -> None:
    """Answers every question with a plan."""
    async for question in client.inbox():
        await question.reply({"plan": f"{question.payload['topic']} in {JOBS} steps"})
        await question.ack()


async def jen(client: Client) -> None:
    """Asks for a plan and makes jobs of it."""
    topics = ("a bridge", "a mill", "a sluice", "a canal")
    number = 0
    while True:
        topic = random.choice(topics)
        answer = await client.ask("architect", {"topic": topic}, timeout=10)
        for step in range(1, JOBS + 1):
            number += 1
            job = {"step": step, "of": JOBS, "topic": topic, "number": number}
            await client.send(STREAM, job, type="job", corr=answer.head.corr, refs=[answer.id])
        await asyncio.sleep(random.uniform(0.5, 1.5) * ROUND_S)


async def worker(client: Client, pace_s: float) -> None:
    """Does jobs, some quickly, some after a second try, a few never."""
    async for job in client.subscribe(STREAM, credit=4):
        await asyncio.sleep(random.uniform(0, 2 * pace_s))
        if job.payload["number"] % HOPELESS == 0:
            await job.term("there is no ground to build on")
        elif random.random() < 0.05:
            await job.nack(delay_ms=500, reason="it rains")
        else:
            await job.ack()


async def ops(client: Client) -> None:
    """Takes alerts as work like any other."""
    async for alert in client.inbox():
        await alert.ack()


async def run(url: str) -> None:
    """All of them, until the server goes."""
    async with asyncio.TaskGroup() as group:
        for name, work in (("architect", architect), ("jen", jen), ("ops", ops)):
            group.create_task(_as(url, name, work))
        for name, pace_s in (("sam", 0.05), ("kim", 0.2)):
            group.create_task(_as(url, name, lambda client, pace_s=pace_s: worker(client, pace_s)))


async def _as(url: str, name: str, work) -> None:  # type: ignore[no-untyped-def]
    async with connect(url, os.environ.get("PENSTOCK_TOKEN"), name) as client:
        await work(client)


def main() -> int:
    try:
        asyncio.run(run(sys.argv[1]))
    except* PenstockError:
        pass  # the server has gone; so do we
    except* KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
