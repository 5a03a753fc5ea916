"""A few agents that work through inboxes, with a trigger that notifies one of them when her jobs are done.

Jen asks the architect for a plan and turns it into jobs. Sam and Kim do the jobs. Some jobs are retried, and one that cannot be done
becomes a dead letter. When the last job of a plan is acked, the rule `demo-built` notifies Jen. Ops takes the alerts of the pipeline.

`penstock up --demo` runs this and has the rule. With any other server, run `python examples/agents.py [URL]` until Ctrl-C, and add the
rule with `penstock trigger put`.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import penstock

ROUND_S = 1.0
"""Average pause between two plans."""
JOBS = 5
"""Jobs per plan."""
HOPELESS = 40
"""One job in this many cannot be done."""
STREAM = "demo/jobs"
RULE: dict[str, Any] = {
    "id": "demo-built",
    "hook": "on_ack",
    "when": {"to": STREAM, "type": "job", "tags": "last"},
    "do": [
        {
            "action": "emit",
            "to": "agents/${env.from}/inbox",
            "type": "built",
            "payload": {"text": "${env.payload.topic} is built"},
        }
    ],
}
"""Sends Jen an envelope when the last job of a plan is acked."""

Work = Callable[[penstock.Client], Awaitable[None]]


async def architect(client: penstock.Client) -> None:
    """Answers every question with a plan."""
    async for question in client.inbox():
        await question.reply({"plan": f"{question.payload['topic']} in {JOBS} steps"})
        await question.ack()


async def jen(client: penstock.Client) -> None:
    """Asks for plans, turns them into jobs, and receives what was built."""
    async with client.inbox() as inbox, asyncio.TaskGroup() as group:
        group.create_task(read(inbox))
        number = 0
        while True:
            topic = random.choice(("a bridge", "a mill", "a sluice", "a canal"))
            plan = await client.ask("architect", {"topic": topic}, timeout=10)
            for step in range(1, JOBS + 1):
                number += 1
                job = {"step": step, "of": JOBS, "topic": topic, "number": number}
                tags = ["last"] if step == JOBS else []
                await client.send(STREAM, job, type="job", corr=plan.corr, refs=[plan.id], tags=tags)
            await asyncio.sleep(random.uniform(0.5, 1.5) * ROUND_S)


async def worker(client: penstock.Client, pace_s: float) -> None:
    """Does jobs: most at once, some after a retry, a few never."""
    async for job in client.subscribe(STREAM, credit=4):
        await asyncio.sleep(random.uniform(0, 2 * pace_s))
        if job.payload["number"] % HOPELESS == 0:
            await job.term("there is no ground to build on")
        elif random.random() < 0.05:
            await job.nack(delay_ms=500, reason="it rains")
        else:
            await job.ack()


async def ops(client: penstock.Client) -> None:
    """Takes alerts as work."""
    await read(client.inbox())


async def read(inbox: Any) -> None:
    """Ack every message."""
    async for message in inbox:
        await message.ack()


AGENTS: dict[str, Work] = {
    "architect": architect,
    "jen": jen,
    "ops": ops,
    "sam": partial(worker, pace_s=0.05),
    "kim": partial(worker, pace_s=0.2),
}


async def act(name: str, url: str | None = None, token: str | None = None) -> None:
    """Run one of the agents."""
    async with penstock.connect(url, token, name) as client:
        await AGENTS[name](client)


async def main(url: str | None) -> None:
    await asyncio.gather(*(act(name, url) for name in AGENTS))


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
    except KeyboardInterrupt:
        pass
    except penstock.PenstockError as error:
        sys.exit(f"error: {error}")
