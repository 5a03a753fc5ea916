"""The demo's process: every part of the sample traffic in one event loop, until standard input is closed.

A part that fails is restarted after a growing pause, so the demo survives restarts of the server. The process prints each new failure on
standard error once.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import msgspec

from penstock.client.tokens import LocalRelay, load_signing_key
from penstock.demo import agents, dashboard, means, sensors, story
from penstock.demo.task import DemoTask, SpaceTask, StoryTask

PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 10.0
STABLE_S = 30.0
"""After a part ran this long, its next restart uses the first pause again."""
LEAVE_S = 2.0
"""How long the shutdown may take."""

Part = Callable[[], Awaitable[None]]


async def run(task: DemoTask) -> None:
    """Run all parts until cancelled."""
    async with asyncio.TaskGroup() as group:
        for name, part in parts(task):
            group.create_task(keep(name, part))


def parts(task: DemoTask) -> Iterator[tuple[str, Part]]:
    """Every part with its name."""
    for name in agents.AGENTS:
        yield name, partial(agents.act, name, task.url, task.token)
    if task.space is not None:
        yield from _participants(task.space)
    if task.relay is not None:
        yield "story", _story(task.relay)


def _participants(task: SpaceTask) -> Iterator[tuple[str, Part]]:
    if task.collector == "python":
        yield "collector", partial(means.collect, task.url, task.tokens["collector"])
    for name in sensors.SENSORS:
        yield name, partial(_measure, task.url, name, task.tokens[name])
    yield "dashboard", partial(_watch, task.url, task.tokens["dashboard"])


async def _measure(url: str, sensor: str, token: str) -> None:
    await sensors.measure(url, sensor, sensors.weather(sensor), token=token)


async def _watch(url: str, token: str) -> None:
    async for _ in dashboard.watch(url, token):
        pass


def _story(task: StoryTask) -> Part:
    relay = LocalRelay(task.pub, task.push, load_signing_key(task.signer))
    keys = story.new_keys(relay)
    if task.console is not None:
        print(f"  story    {story.link(task.console, keys)}", flush=True)
    return partial(story.write_story, relay, keys)


async def keep(name: str, part: Part) -> None:
    """Run a part, and restart it whenever it ends."""
    loop = asyncio.get_running_loop()
    pause_s, said = PAUSE_FIRST_S, ""
    while True:
        began_s = loop.time()
        problem = "it ended by itself"
        try:
            await part()
        except* Exception as failures:
            problem = str(next(_leaves(failures))).partition("\n")[0]
        if loop.time() - began_s >= STABLE_S:
            pause_s, said = PAUSE_FIRST_S, ""
        if problem != said:
            print(f"{name}: {problem}", file=sys.stderr, flush=True)
            said = problem
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def main() -> int:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=DemoTask)

    async def follow() -> None:
        work = asyncio.create_task(run(task))
        loop = asyncio.get_running_loop()

        def wait_for_end_of_input() -> None:
            sys.stdin.buffer.read()
            loop.call_soon_threadsafe(loop.call_later, LEAVE_S, os._exit, 0)
            loop.call_soon_threadsafe(work.cancel)  # last, because the loop may be closed after it

        threading.Thread(target=wait_for_end_of_input, daemon=True).start()
        await asyncio.wait([work])
        if not work.cancelled():
            work.result()

    asyncio.run(follow())
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())  # the thread that reads standard input may be blocked there
